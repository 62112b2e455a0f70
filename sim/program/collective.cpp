#include "sim/program/collective.hpp"

namespace sim {
namespace {

struct Row {
  bool has_root;
  CollectiveOperands root, others;  // without a root all are others
};

Row row(CollectiveKind kind) {
  constexpr CollectiveOperands kInPlace{Moved::array, Moved::array, true};
  switch (kind) {
    case CollectiveKind::all_reduce:
      return {false, {}, kInPlace};
    case CollectiveKind::broadcast:
      return {true, kInPlace, kInPlace};
    case CollectiveKind::reduce:
      return {true, kInPlace, {Moved::array, Moved::nothing}};
    case CollectiveKind::all_gather:
      return {false, {}, {Moved::array, Moved::parts}};
    case CollectiveKind::reduce_scatter:
      return {false, {}, {Moved::parts, Moved::array}};
    case CollectiveKind::all_to_all:
      return {false, {}, {Moved::parts, Moved::parts}};
    case CollectiveKind::scatter:
      return {true, {Moved::parts, Moved::array}, {Moved::nothing, Moved::array}};
    case CollectiveKind::gather:
      return {true, {Moved::array, Moved::parts}, {Moved::array, Moved::nothing}};
  }
  throw InternalError("collective kind {}", static_cast<int>(kind));
}

}  // namespace

bool has_root(CollectiveKind kind) { return row(kind).has_root; }

bool reduces(CollectiveKind kind) {
  return kind == CollectiveKind::all_reduce || kind == CollectiveKind::reduce || kind == CollectiveKind::reduce_scatter;
}

CollectiveOperands operands_of(CollectiveKind kind, bool is_root) {
  const Row of_kind = row(kind);
  return of_kind.has_root && is_root ? of_kind.root : of_kind.others;
}

bool works_in_place(CollectiveKind kind) { return operands_of(kind, /*is_root=*/false).in_place; }

bool is_mover(CollectiveKind kind, bool is_root) {
  if (kind == CollectiveKind::broadcast || kind == CollectiveKind::scatter) return !is_root;
  return operands_of(kind, is_root).writes != Moved::nothing;
}

}  // namespace sim
