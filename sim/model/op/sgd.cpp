#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

/// The output is the parameter itself, in place; `saved` are the states that live as long as the parameter.
Signature signature(const OpInstance& op) {
  Signature s;
  s.output = op.inputs[0];
  s.storage = OutputStorage::in_place;
  if (op.number("momentum") > 0) s.saved = {{"momentum_buffer", op.inputs[0]}};
  return s;
}

Demand demand(const OpInstance& op, Pass, std::uint32_t) {
  const bool momentum = op.number("momentum") > 0;
  return {(momentum ? 4 : 2) * count(op.inputs[0]), (momentum ? 5 : 3) * size(op.inputs[0])};
}

}  // namespace

OpKind sgd_kind() {
  return {.name = "sgd",
          .equation = "v = momentum*v + g + weight_decay*p; p -= lr*v",
          .role = OpRole::optimizer,
          .attributes = {{"lr", false, 1e-3, 0, 1e3, false},
                         {"momentum", false, 0, 0, 1, false},
                         {"weight_decay", false, 0, 0, 1, false}},
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
