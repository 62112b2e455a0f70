#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  need_rank(op, 2, 5, "[batch, channels, …] of 2 to 5 dimensions");
  const TensorSpec& x = op.inputs[0];
  const TensorSpec channels{at_least_f32(x.dtype), {x.shape[1]}};
  if (x.elements() == x.shape[1])
    throw ConfigError("op 'batch_norm' needs more than one value per channel in training, found {}", to_string(x));
  return {.output = x,
          .parameters = {{"weight", channels, 0, 1}, {"bias", channels, 0, 0}},
          .buffers = {{"running_mean", channels, 0},
                      {"running_var", channels, 1},
                      {"num_batches_tracked", {Dtype::i64, {}}, 0}},
          .saved = {{"save_mean", channels}, {"save_invstd", channels}},
          .backward_reads = {{Operand::From::input, 0},
                             {Operand::From::parameter, 0},
                             {Operand::From::saved, 0},
                             {Operand::From::saved, 1}}};
}

/// Two passes over x forward (statistics, then normalise): read twice, written once. Backward: x and grad_y are read
/// twice, grad_x written once.
Demand demand(const OpInstance& op, Pass pass, std::uint32_t) {
  const double x = size(op.inputs[0]), n = count(op.inputs[0]);
  if (pass == Pass::forward) return {5 * n, 3 * x};
  return {8 * n, 5 * x};
}

/// ATen/native/cpu/batch_norm_kernel.cpp goes plane by plane (height × width values), vector by vector. Backward, a
/// plane that isn't whole vectors (64 bytes: AVX-512) costs about 0.1 us more than one that is, five times a 4×4
/// plane's time. Without planes it goes as where channels lie last.
CpuKernel cpu_kernel(const OpInstance& op, Pass pass) {
  const TensorSpec& x = op.inputs[0];
  if (x.channels_last || x.shape.size() == 2) return {"channels last"};
  if (pass != Pass::backward) return {};
  const std::int64_t plane = x.elements() / (x.shape[0] * x.shape[1]);
  return {plane * size_of(x.dtype) % 64 == 0 ? "whole vectors" : "with rests"};
}

/// Cut by samples, every part has statistics of its own.
std::vector<Rule> rules(const OpInstance& /*op*/) {
  return {{.name = "batch",
           .inputs = {shard(0)},
           .parameters = {replicate(), replicate()},
           .buffers = {own(), own(), own()},
           .output = shard(0),
           .grad_output = shard(0),
           .grad_inputs = {shard(0)},
           .grad_parameters = {partial(), partial()},
           .by_part = true},
          {.name = "channels",
           .inputs = {shard(1)},
           .parameters = {shard(0), shard(0)},
           .buffers = {shard(0), shard(0), replicate()},
           .output = shard(1),
           .grad_output = shard(1),
           .grad_inputs = {shard(1)},
           .grad_parameters = {shard(0), shard(0)}}};
}

}  // namespace

OpKind batch_norm_kind() {
  return {.name = "batch_norm",
          .equation = "y = (x - mean_c) / sqrt(var_c + eps) * w_c + b_c, statistics of this batch",
          .has_parameters = true,
          .attributes = {{"eps", false, 1e-5, 0, 1, false}, {"momentum", false, 0.1, 0, 1, false}},
          .signature = signature,
          .demand = demand,
          .cpu_kernel = cpu_kernel,
          .rules = rules};
}

}  // namespace sim
