#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

/// The output is the parameter itself, in place; `states` live as long as the parameter.
Signature update_signature(const OpInstance& op, std::vector<SavedSpec> states) {
  return {.output = op.inputs[0], .storage = OutputStorage::in_place, .saved = std::move(states)};
}

Signature sgd_signature(const OpInstance& op) {
  if (op.number("momentum") > 0) return update_signature(op, {{"momentum_buffer", op.inputs[0]}});
  return update_signature(op, {});
}

Demand sgd_demand(const OpInstance& op, Pass pass, std::uint32_t grads) {
  return op.number("momentum") > 0 ? per_element<4, 5>(op, pass, grads) : per_element<2, 3>(op, pass, grads);
}

/// torch/optim/sgd.py (2.11), _multi_tensor_sgd: the gradients with weight_decay*p added are a list of their own. All
/// else is done in place.
double sgd_foreach_copies(const OpInstance& op) { return op.number("weight_decay") != 0 ? 1 : 0; }

/// torch/optim/adam.py (2.11), _multi_tensor_adam: exp_avg_sq_sqrt is a list of its own. So are before it the gradients
/// with weight_decay*p added, but they are deleted first.
double adam_foreach_copies(const OpInstance& /*op*/) { return 1; }

/// torch.optim.Adam keeps its step counter as a float32 scalar beside the two moments.
Signature adam_signature(const OpInstance& op) {
  return update_signature(op, {{"exp_avg", op.inputs[0]}, {"exp_avg_sq", op.inputs[0]}, {"step", {Dtype::f32, {}}}});
}

}  // namespace

std::vector<OpKind> optimizer_kinds() {
  return {{.name = "sgd",
           .equation = "v = momentum*v + g + weight_decay*p; p -= lr*v",
           .role = OpRole::optimizer,
           .attributes = {{"lr", false, 1e-3, 0, 1e3, false},
                          {"momentum", false, 0, 0, 1, false},
                          {"weight_decay", false, 0, 0, 1, false}},
           .signature = sgd_signature,
           .demand = sgd_demand,
           .foreach_copies = sgd_foreach_copies},
          {.name = "adam",
           .equation = "m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g^2; p -= lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)",
           .role = OpRole::optimizer,
           .attributes = {{"lr", false, 1e-3, 0, 1e3, false},
                          {"beta1", false, 0.9, 0, 1, false},
                          {"beta2", false, 0.999, 0, 1, false},
                          {"eps", false, 1e-8, 0, 1, false},
                          {"weight_decay", false, 0, 0, 1, false}},
           .signature = adam_signature,
           .demand = per_element<12, 7>,
           .foreach_copies = adam_foreach_copies}};
}

}  // namespace sim
