#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

/// What is updated is the parameters themselves, in place; those of `states` are like them.
Signature update_signature(const OpInstance& op, std::initializer_list<const char*> states) {
  Signature s{.output = op.inputs[0], .storage = OutputStorage::in_place};
  for (const char* state : states)
    for (const TensorSpec& parameter : op.inputs) s.saved.push_back({state, parameter});
  return s;
}

Signature sgd_signature(const OpInstance& op) {
  if (op.number("momentum") > 0) return update_signature(op, {"momentum_buffer"});
  return update_signature(op, {});
}

/// So many FLOP per element of the parameters, and as many bytes as so many tensors like them.
template <int flops, int tensors>
Demand per_parameter(const OpInstance& op, Pass /*pass*/, std::uint32_t /*grads*/) {
  Demand demand;
  for (const TensorSpec& parameter : op.inputs) {
    demand.flops += flops * count(parameter);
    demand.bytes += tensors * size(parameter);
  }
  return demand;
}

Demand sgd_demand(const OpInstance& op, Pass pass, std::uint32_t grads) {
  return op.number("momentum") > 0 ? per_parameter<4, 5>(op, pass, grads) : per_parameter<2, 3>(op, pass, grads);
}

/// torch/optim/sgd.py (2.11), _multi_tensor_sgd: the gradients with weight_decay*p added are a list of their own. All
/// else is done in place.
double sgd_foreach_copies(const OpInstance& op) { return op.number("weight_decay") != 0 ? 1 : 0; }

/// torch/optim/adam.py (2.11), _multi_tensor_adam: exp_avg_sq_sqrt is a list of its own. So are before it the gradients
/// with weight_decay*p added, but they are deleted first.
double adam_foreach_copies(const OpInstance& /*op*/) { return 1; }

/// torch/optim/sgd.py (1.5), step: weight_decay an add, momentum a mul_ and an add_; p.add_; and p.grad.zero_().
double sgd_launches_each(const OpInstance& op) {
  return 2 + (op.number("weight_decay") != 0 ? 1 : 0) + (op.number("momentum") != 0 ? 2 : 0);
}

/// torch/optim/adam.py (1.5), step: weight_decay an add; mul_, add_, mul_, addcmul_, sqrt, div, add_, addcdiv_; and
/// p.grad.zero_().
double adam_launches_each(const OpInstance& op) { return 9 + (op.number("weight_decay") != 0 ? 1 : 0); }

/// torch.optim.Adam keeps each parameter's step counter as a float32 scalar beside the two moments.
Signature adam_signature(const OpInstance& op) {
  Signature s = update_signature(op, {"exp_avg", "exp_avg_sq"});
  s.saved.insert(s.saved.end(), op.inputs.size(), {"step", {Dtype::f32, {}}});
  return s;
}

std::vector<AttributeSpec> adam_attributes(double weight_decay) {
  return {{"lr", false, 1e-3, 0, 1e3, false},
          {"beta1", false, 0.9, 0, 1, false},
          {"beta2", false, 0.999, 0, 1, false},
          {"eps", false, 1e-8, 0, 1, false},
          {"weight_decay", false, weight_decay, 0, 1, false}};
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
           .foreach_copies = sgd_foreach_copies,
           .launches_each = sgd_launches_each},
          {.name = "adam",
           .equation = "m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g^2; p -= lr * (m/(1-b1^t)) / (sqrt(v/(1-b2^t)) + eps)",
           .role = OpRole::optimizer,
           .attributes = adam_attributes(/*weight_decay=*/0),
           .signature = adam_signature,
           .demand = per_parameter<12, 7>,
           .foreach_copies = adam_foreach_copies,
           .launches_each = adam_launches_each},
          {.name = "adamw",  // torch.optim.AdamW, with its defaults
           .equation = "as adam with weight_decay 0, after p -= lr*weight_decay*p",
           .role = OpRole::optimizer,
           .attributes = adam_attributes(/*weight_decay=*/1e-2),
           .signature = adam_signature,
           .demand = per_parameter<14, 7>,
           .foreach_copies = adam_foreach_copies,
           .launches_each = adam_launches_each}};
}

}  // namespace sim
