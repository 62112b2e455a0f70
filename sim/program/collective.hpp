// Collectives: what each member gives and gets.
//
//   to_string(CollectiveKind::reduce_scatter);                             // "reduce_scatter"
//   operands_of(CollectiveKind::scatter, /*is_root=*/true).reads;          // Moved::parts: a block for each member
//   std::vector<Move> moves;
//   for_each_move(CollectiveKind::all_gather, 4, 0, [&](const Move& move) { moves.push_back(move); });
//
// A member's operands are blocks. Where a kind moves an array, it is one tensor. Where it moves parts, one for each
// member, they are as many tensors in the members' order, of any sizes, or one tensor that is cut into equal parts. A
// sum can also be a mean or a maximum (Reduction). all_reduce, broadcast and the root of a reduce work in place: they
// read and write one tensor; who gets a broadcast may only write it.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "sim/mesh/placement.hpp"
#include "sim/table.hpp"

namespace sim {

/// A new kind must be handled by every switch over them: the compiler says where.
enum class CollectiveKind : std::uint8_t {
  all_reduce,      // everyone gets the sum
  broadcast,       // everyone gets the root's array
  reduce,          // the root gets the sum
  all_gather,      // everyone gets everyone's array
  reduce_scatter,  // everyone gets the sum of its part
  all_to_all,      // everyone gets its part from everyone
  scatter,         // everyone gets its part from the root
  gather           // the root gets everyone's array
};
inline constexpr EnumNames<CollectiveKind, 8> kCollectiveNames{
    "collective",
    {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "scatter", "gather"}};
inline constexpr std::array kCollectiveKinds{
    CollectiveKind::all_reduce,     CollectiveKind::broadcast,  CollectiveKind::reduce,  CollectiveKind::all_gather,
    CollectiveKind::reduce_scatter, CollectiveKind::all_to_all, CollectiveKind::scatter, CollectiveKind::gather};
inline std::string_view to_string(CollectiveKind kind) { return kCollectiveNames.of(kind); }
/// One member gives or gets what the others don't.
bool has_root(CollectiveKind kind);
/// It makes one array of everyone's.
bool reduces(CollectiveKind kind);

enum class Moved : std::uint8_t { nothing, array, parts };
struct CollectiveOperands {
  Moved reads = Moved::array, writes = Moved::array;
  bool in_place = false;
  friend bool operator==(const CollectiveOperands&, const CollectiveOperands&) = default;
};
/// The operands of a member.
CollectiveOperands operands_of(CollectiveKind kind, bool is_root);
/// Every member reads and writes one tensor, the same.
bool works_in_place(CollectiveKind kind);

/// Who moves the bytes where members copy from each other's memory: those who get something.
bool is_mover(CollectiveKind kind, bool is_root);

/// Block `block` of what member `to` writes is block `from_block` of what member `from` reads, or the sum of that block
/// of everyone's (kEveryone).
constexpr std::uint32_t kEveryone = 0xffffffffU;
struct Move {
  std::uint32_t to = 0, block = 0, from = 0, from_block = 0;

  [[nodiscard]] bool is_from(std::uint32_t member) const { return from == kEveryone || from == member; }
};

/// All moves of a collective among `members`; `root` is a place in the member list.
template <class Visit>
void for_each_move(CollectiveKind kind, std::uint32_t members, std::uint32_t root, const Visit& visit) {
  const auto each = [&](const auto& of_member) {
    for (std::uint32_t m = 0; m < members; ++m) of_member(m);
  };
  switch (kind) {
    case CollectiveKind::all_reduce:
      return each([&](std::uint32_t m) { visit(Move{m, 0, kEveryone, 0}); });
    case CollectiveKind::broadcast:
      return each([&](std::uint32_t m) {
        if (m != root) visit(Move{m, 0, root, 0});
      });
    case CollectiveKind::reduce:
      return visit(Move{root, 0, kEveryone, 0});
    case CollectiveKind::all_gather:
      return each([&](std::uint32_t m) { each([&](std::uint32_t k) { visit(Move{m, k, k, 0}); }); });
    case CollectiveKind::reduce_scatter:
      return each([&](std::uint32_t m) { visit(Move{m, 0, kEveryone, m}); });
    case CollectiveKind::all_to_all:
      return each([&](std::uint32_t m) { each([&](std::uint32_t k) { visit(Move{m, k, k, m}); }); });
    case CollectiveKind::scatter:
      return each([&](std::uint32_t m) { visit(Move{m, 0, root, m}); });
    case CollectiveKind::gather:
      return each([&](std::uint32_t k) { visit(Move{root, k, k, 0}); });
  }
}

}  // namespace sim
