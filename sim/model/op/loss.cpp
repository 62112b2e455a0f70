// Losses compute in f32 what comes in half precision, as autocast has them. But F.cross_entropy only on CPUs: on GPUs it is on
// no list, its log_softmax stays in half precision (it is given its input's dtype), and nll_loss casts that. So PyTorch keeps
// 2 + 4 bytes for each class there, where this one keeps 4 (seen in torch 2.11's dispatch of tensors without values).
#include <limits>

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

/// Of a sum or a mean of all that the model gives; the target is read by nobody.
Signature reduction_signature(const OpInstance& op) {
  return {.output = {prediction_of(op).dtype, {}}, .backward_reads = {{Operand::From::input, 0}}};
}

std::vector<Rule> sum_rules(const OpInstance& op) {
  std::vector<Rule> rules = loss_rules(op);
  rules[0].output = partial();
  return rules;
}

Signature cross_entropy_signature(const OpInstance& op) {
  const TensorSpec prediction = prediction_of(op);
  need_rank(op, 2, std::numeric_limits<std::size_t>::max(), "[batch, positions…, classes]");
  const TensorSpec expected{Dtype::i64, {prediction.shape.begin(), prediction.shape.end() - 1}},
      scalar{prediction.dtype, {}};
  if (op.inputs[1] != expected)
    throw ConfigError("op 'cross_entropy' needs a target {}, found {}", to_string(expected), to_string(op.inputs[1]));
  return {.output = scalar,
          .saved = {{"log_probabilities", prediction}, {"total_weight", scalar}},
          .backward_reads = {{Operand::From::input, 1}, {Operand::From::saved, 0}, {Operand::From::saved, 1}}};
}

/// Sums of exponentials and the target's logit are sums over the parts: megatron/core/tensor_parallel/cross_entropy.py.
std::vector<Rule> cross_entropy_rules(const OpInstance& op) {
  std::vector<Rule> rules = loss_rules(op);
  const auto classes = static_cast<std::uint32_t>(op.inputs[0].shape.size() - 1);
  rules.push_back({.name = "classes",
                   .inputs = {shard(classes), replicate()},
                   .output = replicate(),
                   .grad_output = replicate(),
                   .grad_inputs = {shard(classes), replicate()},
                   .together = true});
  return rules;
}

// ---- A cross_entropy of which each rank has the logits of some classes, in the ops that lowering plays in its place ----

/// [rows, positions…]: a number for each target.
TensorSpec of_each_target(const OpInstance& op) {
  TensorSpec spec = prediction_of(op);
  spec.shape.pop_back();
  return spec;
}

Signature class_max_signature(const OpInstance& op) { return {.output = of_each_target(op)}; }

/// The sums are [rows, positions…, 2]: of the own exponentials, and the target's logit less the maximum, or 0 where
/// another rank has it.
Signature class_sums_signature(const OpInstance& op) {
  const TensorSpec exponentials = prediction_of(op);
  TensorSpec sums = exponentials;
  sums.shape.back() = 2;
  if (op.integer("inplace") != 0 && exponentials != op.inputs[0])
    throw ConfigError("op 'class_sums': {} has no room for {}", to_string(op.inputs[0]), to_string(exponentials));
  return {.output = exponentials, .storage = fresh_or_in_place(op), .saved = {{"sums", sums}}};
}

Signature class_loss_signature(const OpInstance& op) { return {.output = {op.inputs[0].dtype, {}}}; }

/// In the place of the exponentials, unless the logits are in half precision.
Signature class_grad_signature(const OpInstance& op) {
  const bool is_wide = prediction_of(op) == op.inputs[0];
  return {.output = op.inputs[0], .storage = is_wide ? OutputStorage::in_place : OutputStorage::fresh};
}

Demand class_max_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {count(op.inputs[0]), size(op.inputs[0]) + size(of_each_target(op))};
}

/// Kernels beside those of the exponentials: of each target its place here, whether it is here, its logit.
Demand class_sums_demand(const OpInstance& op, Pass, std::uint32_t) {
  const TensorSpec each = of_each_target(op);
  constexpr double kKernels = 11;
  return {3 * count(op.inputs[0]) + 2 * count(each),
          size(op.inputs[0]) + size(prediction_of(op)) + size(op.inputs[1]) + 3 * size(each), kKernels};
}

Demand class_loss_demand(const OpInstance& op, Pass, std::uint32_t) {
  constexpr double kKernels = 3;  // log, difference, mean
  return {1.5 * count(op.inputs[0]), size(op.inputs[0]), kKernels};
}

Demand class_grad_demand(const OpInstance& op, Pass, std::uint32_t) {
  const TensorSpec each = of_each_target(op);
  constexpr double kKernels = 12;
  return {2 * count(op.inputs[0]) + count(each),
          size(prediction_of(op)) + size(op.inputs[0]) + size(op.inputs[1]) + 2 * size(each), kKernels};
}

}  // namespace

std::vector<OpKind> class_kinds() {
  return {{.name = "class_max",
           .equation = "m = max(logits), over the classes",
           .role = OpRole::helper,
           .signature = class_max_signature,
           .demand = class_max_demand},
          {.name = "class_sums",
           .equation = "e = exp(logits - m); the sum of e, and the target's logit - m where it is the rank's own",
           .role = OpRole::helper,
           .inputs = 2,
           .attributes = {{"inplace", false, 0, 0, 1}},
           .signature = class_sums_signature,
           .demand = class_sums_demand},
          {.name = "class_loss",
           .equation = "loss = mean(log(sum of e) - (target's logit - m))",
           .role = OpRole::helper,
           .gives_loss = true,
           .signature = class_loss_signature,
           .demand = class_loss_demand},
          {.name = "class_grad",
           .equation = "gradient = scale * (e / (sum of e) - one-hot target), in the place of e",
           .role = OpRole::helper,
           .inputs = 2,
           .signature = class_grad_signature,
           .demand = class_grad_demand}};
}

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
           .rules = cross_entropy_rules},
          {.name = "mean_loss",
           .equation = "loss = mean(prediction): the model gives its loss itself",
           .role = OpRole::loss,
           .inputs = 2,
           .signature = reduction_signature,
           .demand = per_element_in_f32<1, 1>,
           .rules = loss_rules},
          {.name = "sum_loss",
           .equation = "loss = sum(prediction): the gradient of every output is 1",
           .role = OpRole::loss,
           .inputs = 2,
           .is_sum = true,
           .signature = reduction_signature,
           .demand = per_element_in_f32<1, 1>,
           .rules = sum_rules}};
}

}  // namespace sim
