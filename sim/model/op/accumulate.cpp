#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  if (op.inputs[0] != op.inputs[1])
    throw ConfigError("op 'accumulate' needs two inputs of one shape, found {} and {}", to_string(op.inputs[0]),
                      to_string(op.inputs[1]));
  Signature s;
  s.output = op.inputs[0];
  s.storage = OutputStorage::in_place;
  return s;
}

Demand demand(const OpInstance& op, Pass, std::uint32_t) { return {count(op.inputs[0]), 3 * size(op.inputs[0])}; }

}  // namespace

OpKind accumulate_kind() {
  return {.name = "accumulate",
          .equation = "a += b (gradients of one tensor from two readers, or from two microbatches)",
          .role = OpRole::helper,
          .inputs = 2,
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
