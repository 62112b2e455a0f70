#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature mse_signature(const OpInstance& op) {
  need_one_shape(op, "prediction and target");
  return {.output = {op.inputs[0].dtype, {}}, .backward_reads = {{Operand::From::input, 0}, {Operand::From::input, 1}}};
}

/// The target is read by nobody.
Signature sum_signature(const OpInstance& op) {
  return {.output = {op.inputs[0].dtype, {}}, .backward_reads = {{Operand::From::input, 0}}};
}

std::vector<Rule> sum_rules(const OpInstance& op) {
  std::vector<Rule> rules = loss_rules(op);
  rules[0].output = partial();
  return rules;
}

Signature cross_entropy_signature(const OpInstance& op) {
  need_rank(op, 2, "[batch, classes]");
  const TensorSpec& prediction = op.inputs[0];
  const TensorSpec expected{Dtype::i64, {prediction.shape[0]}}, scalar{prediction.dtype, {}};
  if (op.inputs[1] != expected)
    throw ConfigError("op 'cross_entropy' needs a target {}, found {}", to_string(expected), to_string(op.inputs[1]));
  return {.output = scalar,
          .saved = {{"log_probabilities", prediction}, {"total_weight", scalar}},
          .backward_reads = {{Operand::From::input, 1}, {Operand::From::saved, 0}, {Operand::From::saved, 1}}};
}

}  // namespace

std::vector<OpKind> loss_kinds() {
  return {{.name = "mse_loss",
           .equation = "loss = mean((prediction - target)^2)",
           .role = OpRole::loss,
           .inputs = 2,
           .signature = mse_signature,
           .demand = per_element<3, 2, 3>,
           .rules = loss_rules},
          {.name = "cross_entropy",
           .equation = "loss = mean_n(-log softmax(prediction_n)[target_n])",
           .role = OpRole::loss,
           .inputs = 2,
           .takes_class_indices = true,
           .signature = cross_entropy_signature,
           .demand = per_element<5, 2, 4>,
           .rules = loss_rules},
          {.name = "sum_loss",
           .equation = "loss = sum(prediction): the gradient of every output is 1",
           .role = OpRole::loss,
           .inputs = 2,
           .is_sum = true,
           .signature = sum_signature,
           .demand = per_element<1, 1>,
           .rules = sum_rules}};
}

}  // namespace sim
