#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

TensorSpec of_channels(const OpInstance& op, std::int64_t numbers = 1) {
  const TensorSpec& x = op.inputs[0];
  return {at_least_f32(x.dtype), {numbers * x.shape[1]}};
}

std::vector<BufferSpec> running_statistics(const TensorSpec& channels) {
  return {{"running_mean", channels, 0}, {"running_var", channels, 1}, {"num_batches_tracked", {Dtype::i64, {}}, 0}};
}

Signature signature(const OpInstance& op) {
  need_rank(op, 2, 5, "[batch, channels, …] of 2 to 5 dimensions");
  const TensorSpec &x = op.inputs[0], channels = of_channels(op);
  if (x.elements() == x.shape[1] && !is_synced(op.attributes))
    throw ConfigError("op 'batch_norm' needs more than one value per channel in training, found {}", to_string(x));
  return {.output = x,
          .parameters = {{"weight", channels, 0, 1}, {"bias", channels, 0, 0}},
          .buffers = running_statistics(channels),
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

/// Cut by samples, every part has statistics of its own, or, with sync=1, all have those of all samples.
std::vector<Rule> rules(const OpInstance& op) {
  const bool sync = is_synced(op.attributes);
  return {{.name = "batch",
           .inputs = {shard(0)},
           .parameters = {replicate(), replicate()},
           .buffers = std::vector(3, sync ? replicate() : own()),
           .output = shard(0),
           .grad_output = shard(0),
           .grad_inputs = {shard(0)},
           .grad_parameters = {partial(), partial()},
           .by_part = !sync,
           .together = sync},
          {.name = "channels",
           .inputs = {shard(1)},
           .parameters = {shard(0), shard(0)},
           .buffers = {shard(0), shard(0), replicate()},
           .output = shard(1),
           .grad_output = shard(1),
           .grad_inputs = {shard(1)},
           .grad_parameters = {shard(0), shard(0)}}};
}

// ---- With sync=1, of samples that are cut: torch.nn.SyncBatchNorm (torch/nn/modules/_functions.py) ----

/// Mean and biased variance of each channel, and how many values these are of.
Signature stats_signature(const OpInstance& op) {
  TensorSpec stats = of_channels(op, 2);
  ++stats.shape[0];
  return {.output = stats};
}

Demand stats_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {3 * count(op.inputs[0]), size(op.inputs[0]) + size(stats_signature(op).output)};
}

Signature apply_signature(const OpInstance& op) {
  const TensorSpec channels = of_channels(op);
  return {.output = op.inputs[0],
          .buffers = running_statistics(channels),
          .saved = {{"save_mean", channels}, {"save_invstd", channels}, {"save_count", {channels.dtype, {1}}}}};
}

/// Kernels beside the one over x: those that put the ranks' statistics together.
Demand apply_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {2 * count(op.inputs[0]), 2 * size(op.inputs[0]) + size(op.inputs[1]), 2};
}

/// The sums of grad_y, which are the gradient of the bias, and those of grad_y * (x - mean) * invstd, the weight's.
Signature sums_signature(const OpInstance& op) {
  const TensorSpec channels = of_channels(op);
  Signature s{.output = of_channels(op, 2)};
  if (op.integer("parameters") != 0) s.saved = {{"grad_weight", channels}, {"grad_bias", channels}};
  return s;
}

Demand sums_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {4 * count(op.inputs[0]), 2 * size(op.inputs[0]) + size(of_channels(op, 2))};
}

Signature norm_grad_signature(const OpInstance& op) { return {.output = op.inputs[0]}; }

}  // namespace

std::vector<OpKind> sync_kinds() {
  return {{.name = "norm_stats",
           .equation = "mean and variance of each channel, and the number of values, of the rank's samples",
           .role = OpRole::helper,
           .signature = stats_signature,
           .demand = stats_demand},
          {.name = "norm_apply",
           .equation = "y as batch_norm's, with the statistics of all ranks' samples",
           .role = OpRole::helper,
           .inputs = 4,  // x, all ranks' stats, weight, bias
           .attributes = {{"eps", false, 1e-5, 0, 1, false}, {"momentum", false, 0.1, 0, 1, false}},
           .signature = apply_signature,
           .demand = apply_demand},
          {.name = "norm_sums",
           .equation = "sums over the rank's samples of grad_y and of grad_y * (x - mean_c) / sqrt(var_c + eps)",
           .role = OpRole::helper,
           .inputs = 4,  // grad_y, x, mean, 1 / sqrt(var + eps)
           .attributes = {{"parameters", false, 1, 0, 1}},
           .signature = sums_signature,
           .demand = sums_demand},
          {.name = "norm_grad",
           .equation = "gradient of x, by those sums over all ranks' samples",
           .role = OpRole::helper,
           .inputs = 7,  // grad_y, x, weight, mean, 1 / sqrt(var + eps), number of values, sums
           .of_backward = true,
           .signature = norm_grad_signature,
           .demand = per_element<5, 3>}};
}

OpKind batch_norm_kind() {
  return {
      .name = "batch_norm",
      .equation = "y = (x - mean_c) / sqrt(var_c + eps) * w_c + b_c, statistics of this batch (sync=1: of all ranks')",
      .has_parameters = true,
      .attributes = {{"eps", false, 1e-5, 0, 1, false},
                     {"momentum", false, 0.1, 0, 1, false},
                     {"sync", false, 0, 0, 1}},
      .signature = signature,
      .demand = demand,
      .cpu_kernel = cpu_kernel,
      .rules = rules};
}

}  // namespace sim
