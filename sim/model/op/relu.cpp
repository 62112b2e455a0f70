#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  Signature s;
  s.output = op.inputs[0];
  s.storage = op.integer("inplace") ? OutputStorage::in_place : OutputStorage::fresh;
  s.backward_reads = {{Operand::From::output, 0}};
  return s;
}

Demand demand(const OpInstance& op, Pass pass, std::uint32_t) {
  const double x = size(op.inputs[0]);
  return {count(op.inputs[0]), pass == Pass::forward ? 2 * x : 3 * x};
}

}  // namespace

OpKind relu_kind() {
  return {.name = "relu",
          .equation = "y = max(x, 0)",
          .attributes = {{"inplace", false, 0, 0, 1}},
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
