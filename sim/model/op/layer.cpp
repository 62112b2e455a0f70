// Layers without parameters.
#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature relu_signature(const OpInstance& op) {
  return {.output = op.inputs[0], .storage = fresh_or_in_place(op), .backward_reads = {{Operand::From::output, 0}}};
}

Signature softmax_signature(const OpInstance& op) {
  const std::int64_t dim = op.integer("dim");
  if (dim >= static_cast<std::int64_t>(op.inputs[0].shape.size()))
    throw ConfigError("dim={} is outside the input {}", dim, to_string(op.inputs[0]));
  TensorSpec y = op.inputs[0];
  y.dtype = at_least_f32(y.dtype);
  return {.output = y, .backward_reads = {{Operand::From::output, 0}}};
}

Signature add_signature(const OpInstance& op) {
  need_one_shape(op, "two inputs");
  return {.output = op.inputs[0], .storage = fresh_or_in_place(op), .backward_is_alias = true};
}

/// Features lie channel by channel: several channels of several pixels that lie side by side are moved.
bool flatten_moves(const TensorSpec& x) {
  return x.channels_last && x.shape[1] > 1 && x.elements() != x.shape[0] * x.shape[1];
}

Signature flatten_signature(const OpInstance& op) {
  const TensorSpec& x = op.inputs[0];
  if (x.shape.size() < 2) throw ConfigError("op 'flatten' needs an input [batch, …], found {}", to_string(x));
  const bool moves = flatten_moves(x);
  return {.output = {x.dtype, {x.shape[0], x.elements() / x.shape[0]}},
          .storage = moves ? OutputStorage::fresh : OutputStorage::view,
          .backward_is_alias = !moves};
}

Demand flatten_demand(const OpInstance& op, Pass pass, std::uint32_t grads) {
  return flatten_moves(op.inputs[0]) ? per_element<0, 2>(op, pass, grads) : Demand{};
}

Signature max_signature(const OpInstance& op) {
  need_rank(op, 4, "[batch, channels, height, width]");
  const TensorSpec& x = op.inputs[0];
  const std::int64_t kernel = op.integer("kernel_size"), padding = op.integer("padding");
  const std::int64_t stride = op.integer("stride") ? op.integer("stride") : kernel;
  if (2 * padding > kernel) throw ConfigError("padding={} must be at most half of kernel_size={}", padding, kernel);
  auto pooled = [&](std::int64_t s) { return (s + 2 * padding - kernel) / stride + 1; };
  if (x.shape[2] + 2 * padding < kernel || x.shape[3] + 2 * padding < kernel)
    throw ConfigError("kernel_size={} is larger than the padded input {}", kernel, to_string(x));
  const Shape y{x.shape[0], x.shape[1], pooled(x.shape[2]), pooled(x.shape[3])};
  return {.output = {x.dtype, y, x.channels_last},
          .saved = {{"indices", {Dtype::i64, y, x.channels_last}}},
          .backward_reads = {{Operand::From::input, 0}, {Operand::From::saved, 0}}};
}

/// Backward fills grad_x with zeros, then scatters.
Demand max_demand(const OpInstance& op, Pass pass, std::uint32_t) {
  const Signature s = op.signature();
  const double window = op.number("kernel_size") * op.number("kernel_size");
  return {count(s.output) * (pass == Pass::forward ? window : 1),
          size(op.inputs[0]) + size(s.output) + size(s.saved[0].spec)};
}

Signature average_signature(const OpInstance& op) {
  need_rank(op, 4, "[batch, channels, height, width]");
  const TensorSpec& x = op.inputs[0];
  const std::int64_t side = op.integer("output_size");
  return {.output = {x.dtype, {x.shape[0], x.shape[1], side, side}, x.channels_last},
          .backward_reads = {{Operand::From::input, 0}}};
}

Demand average_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {count(op.inputs[0]), size(op.inputs[0]) + size(op.signature().output)};
}

/// ATen has kernels of their own for pools whose channels lie side by side.
CpuKernel by_format(const OpInstance& op, Pass /*pass*/) {
  if (op.inputs[0].channels_last) return {"channels last"};
  return {};
}

std::vector<Rule> elementwise_rules(const OpInstance& op) { return rules_along(op, all_dims(op)); }

/// The rules of pools.
std::vector<Rule> planewise_rules(const OpInstance& op) { return rules_along(op, {0, 1}); }

std::vector<Rule> softmax_rules(const OpInstance& op) {
  std::vector<std::uint32_t> dims = all_dims(op);
  std::erase(dims, static_cast<std::uint32_t>(op.integer("dim")));
  return rules_along(op, dims);
}

/// The elements of a channel stay together.
std::vector<Rule> flatten_rules(const OpInstance& op) {
  std::vector<Rule> rules = rules_along(op, {0, 1});
  const Shape& x = op.inputs[0].shape;
  rules[1].output = rules[1].grad_output = shard(1, elements(x) / (x[0] * x[1]));
  return rules;
}

}  // namespace

std::vector<OpKind> layer_kinds() {
  return {{.name = "relu",
           .equation = "y = max(x, 0)",
           .attributes = {{"inplace", false, 0, 0, 1}},
           .signature = relu_signature,
           .demand = per_element<1, 2, 3>,
           .rules = elementwise_rules},
          {.name = "max_pool",
           .equation = "y = max of each kernel_size x kernel_size window",
           .attributes = {{"kernel_size", true, 0, 1, 1024},
                          {"stride", false, 0, 0, 1024},  // 0: kernel_size
                          {"padding", false, 0, 0, 1024}},
           .signature = max_signature,
           .demand = max_demand,
           .cpu_kernel = by_format,
           .rules = planewise_rules},
          {.name = "adaptive_avg_pool",
           .equation = "y[i,j] = mean of window (i,j) of an output_size x output_size partition",
           .attributes = {{"output_size", true, 0, 1, 4096}},
           .signature = average_signature,
           .demand = average_demand,
           .cpu_kernel = by_format,
           .rules = planewise_rules},
          {.name = "flatten",
           .equation = "y = x as [batch, features] (a view; of channels_last a copy)",
           .signature = flatten_signature,
           .demand = flatten_demand,
           .rules = flatten_rules},
          {.name = "add",
           .equation = "y = a + b",
           .inputs = 2,
           .attributes = {{"inplace", false, 0, 0, 1}},
           .signature = add_signature,
           .demand = per_element<1, 3>,
           .rules = elementwise_rules},
          {.name = "softmax",
           .equation = "y_i = exp(x_i) / sum_j exp(x_j) along dim",
           .attributes = {{"dim", false, 1, 0, 8}},
           .signature = softmax_signature,
           .demand = per_element_in_f32<5, 2, 3>,
           .rules = softmax_rules}};
}

}  // namespace sim
