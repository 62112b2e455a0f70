#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

/// torch.optim.Adam keeps its step counter as a float32 scalar beside the two moments.
Signature signature(const OpInstance& op) {
  Signature s;
  s.output = op.inputs[0];
  s.storage = OutputStorage::in_place;
  s.saved = {{"exp_avg", op.inputs[0]}, {"exp_avg_sq", op.inputs[0]}, {"step", {Dtype::f32, {}}}};
  return s;
}

Demand demand(const OpInstance& op, Pass, std::uint32_t) { return {12 * count(op.inputs[0]), 7 * size(op.inputs[0])}; }

}  // namespace

OpKind adam_kind() {
  return {.name = "adam",
          .equation = "m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g^2; p -= lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)",
          .role = OpRole::optimizer,
          .attributes = {{"lr", false, 1e-3, 0, 1e3, false},
                         {"beta1", false, 0.9, 0, 1, false},
                         {"beta2", false, 0.999, 0, 1, false},
                         {"eps", false, 1e-8, 0, 1, false},
                         {"weight_decay", false, 0, 0, 1, false}},
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
