// Losses compute in f32 what comes in half precision, as autocast has them.
#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

TensorSpec prediction_of(const OpInstance& op) {
  TensorSpec prediction = op.inputs[0];
  prediction.dtype = at_least_f32(prediction.dtype);
  return prediction;
}

Signature mse_signature(const OpInstance& op) {
  const TensorSpec prediction = prediction_of(op);
  if (prediction != op.inputs[1]) need_one_shape(op, "prediction and target");
  Signature s{.output = {prediction.dtype, {}},
              .backward_reads = {{Operand::From::input, 0}, {Operand::From::input, 1}}};
  if (prediction != op.inputs[0]) {
    s.saved.push_back({"prediction.f32", prediction});
    s.backward_reads[0] = {Operand::From::saved, 0};
  }
  return s;
}

/// The target is read by nobody.
Signature sum_signature(const OpInstance& op) {
  return {.output = {prediction_of(op).dtype, {}}, .backward_reads = {{Operand::From::input, 0}}};
}

std::vector<Rule> sum_rules(const OpInstance& op) {
  std::vector<Rule> rules = loss_rules(op);
  rules[0].output = partial();
  return rules;
}

Signature cross_entropy_signature(const OpInstance& op) {
  const TensorSpec prediction = prediction_of(op);
  if (prediction.shape.size() < 2) need_rank(op, 2, "[batch, positions…, classes]");
  const TensorSpec expected{Dtype::i64, {prediction.shape.begin(), prediction.shape.end() - 1}},
      scalar{prediction.dtype, {}};
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
           .demand = per_element_in_f32<3, 2, 3>,
           .rules = loss_rules},
          {.name = "cross_entropy",
           .equation = "loss = mean_n(-log softmax(prediction_n)[target_n])",
           .role = OpRole::loss,
           .inputs = 2,
           .takes_class_indices = true,
           .signature = cross_entropy_signature,
           .demand = per_element_in_f32<5, 2, 4>,
           .rules = loss_rules},
          {.name = "sum_loss",
           .equation = "loss = sum(prediction): the gradient of every output is 1",
           .role = OpRole::loss,
           .inputs = 2,
           .is_sum = true,
           .signature = sum_signature,
           .demand = per_element_in_f32<1, 1>,
           .rules = sum_rules}};
}

}  // namespace sim
