#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  if (op.inputs[0] != op.inputs[1])
    throw ConfigError("op 'add' needs two inputs of one shape, found {} and {}", to_string(op.inputs[0]),
                      to_string(op.inputs[1]));
  Signature s;
  s.output = op.inputs[0];
  s.storage = op.integer("inplace") ? OutputStorage::in_place : OutputStorage::fresh;
  s.backward_is_alias = true;
  return s;
}

Demand demand(const OpInstance& op, Pass, std::uint32_t) { return {count(op.inputs[0]), 3 * size(op.inputs[0])}; }

}  // namespace

OpKind add_kind() {
  return {.name = "add",
          .equation = "y = a + b",
          .inputs = 2,
          .attributes = {{"inplace", false, 0, 0, 1}},
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
