#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  const TensorSpec& x = op.inputs[0];
  need_rank(op, 4, "[batch, channels, height, width]");
  const std::int64_t groups = op.integer("groups"), channels = x.shape[1], out = op.integer("out_channels"),
                     kernel = op.integer("kernel_size");
  if (channels % groups != 0 || out % groups != 0)
    throw ConfigError("groups={} must divide the {} input and {} output channels", groups, channels, out);
  const std::int64_t reach = op.integer("dilation") * (kernel - 1) + 1, padding = 2 * op.integer("padding");
  if (std::min(x.shape[2], x.shape[3]) + padding < reach)
    throw ConfigError("kernel_size={} is larger than the padded input {}", kernel, to_string(x));
  const auto size = [&](std::int64_t s) { return (s + padding - reach) / op.integer("stride") + 1; };
  const std::int64_t height = size(x.shape[2]), width = size(x.shape[3]);
  // torch.nn.Conv2d's default: kaiming_uniform with a = sqrt(5), that is ±1/sqrt(fan_in), for weight and bias.
  const double bound = 1.0 / std::sqrt(static_cast<double>(channels / groups * kernel * kernel));
  const Dtype parameter = op.parameter_dtype();
  Signature s{.output = {op.multiplied(), {x.shape[0], out, height, width}, x.channels_last},
              .parameters = {{"weight", {parameter, {out, channels / groups, kernel, kernel}, x.channels_last}, bound}},
              .backward_reads = {{Operand::From::input, 0}, {Operand::From::parameter, 0}}};
  if (op.integer("bias")) s.parameters.push_back({"bias", {parameter, {out}}, bound});
  add_casts(op, s);
  return s;
}

/// torch.utils.flop_counter's conv_flop_count: 2 · batch · out_h·out_w · out_channels · in_channels/groups · k².
Demand demand(const OpInstance& op, Pass pass, std::uint32_t grads) {
  const Signature s = op.signature();
  const double flops = 2.0 * static_cast<double>(s.output.elements()) *
                       static_cast<double>(s.parameters[0].spec.elements()) / static_cast<double>(s.output.shape[1]);
  return matrix_demand(op, s, flops, pass, grads);
}

constexpr std::int64_t kManyPixels = 12;  // MKL's, see cpu_kernel

/// ATen/native/Convolution.cpp, ConvParams::use_mkldnn, with one thread: oneDNN; or a matrix product of the image's
/// columns (ConvolutionMM2d.cpp), which is faster at small inputs (kernel_size 1 below 16 samples, few elements in one
/// sample) and much slower at some. Where the columns are the image itself, they needn't be written. MKL runs along the
/// pixels of the output: one pixel is gemv, and below 12 it takes another path than above (measured with 32 to 2048
/// channels: 1.2 ns per weight for 2 to 8 pixels, 1.6 for 9, but 0.7 for 12 and 0.5 for 16).
CpuKernel cpu_kernel(const OpInstance& op, Pass) {
  const TensorSpec& x = op.inputs[0];
  if (x.channels_last) return {"oneDNN, channels last"};
  const std::int64_t kernel = op.integer("kernel_size"), stride = op.integer("stride"), batch = x.shape[0];
  const bool more_than_a_product = kernel > 1 || stride > 1 || op.integer("dilation") > 1 || batch >= 16;
  const bool large = op.integer("groups") > 1 || kernel > 3 || batch > 1 || x.elements() > 20480;
  if (x.dtype != Dtype::f64 && more_than_a_product && large) return {"oneDNN"};
  const std::vector<std::int64_t> y = op.signature().output.shape;
  const std::int64_t pixels = y[2] * y[3];
  if (kernel == 1 && stride == 1 && op.integer("padding") == 0)
    return {pixels == 1            ? "matrix product, one pixel"
            : pixels < kManyPixels ? "matrix product, few pixels"
                                   : "matrix product"};
  return {pixels == 1 ? "im2col, one pixel" : pixels < kManyPixels ? "im2col, few pixels" : "im2col"};
}

/// A convolution in groups is cut between them: its output channels don't depend on all input channels.
std::vector<Rule> rules(const OpInstance& op) {
  std::vector<Rule> all = matrix_rules(op, "out_channels");
  const std::int64_t groups = op.integer("groups");
  if (groups == 1) return all;
  const Placement x = shard(1, op.inputs[0].shape[1] / groups), y = shard(1, op.integer("out_channels") / groups);
  const std::vector<Placement> parameters = weight_and_bias(op, shard(0, y.unit), shard(0, y.unit));
  all.resize(1);
  all.push_back({.name = "groups",
                 .inputs = {x},
                 .parameters = parameters,
                 .output = y,
                 .grad_output = y,
                 .grad_inputs = {x},
                 .grad_parameters = parameters,
                 .attributes = {{"groups", shard(0)}, {"out_channels", shard(0, y.unit)}}});
  return all;
}

}  // namespace

OpKind conv2d_kind() {
  return {.name = "conv2d",
          .equation = "y[n,o] = sum_c w[o,c] * x[n,c] + b[o]",
          .inputs = 1,
          .has_parameters = true,
          .matrix = true,
          .attributes = {{"out_channels", true, 0, 1},
                         {"kernel_size", true, 0, 1, 1024},
                         {"stride", false, 1, 1, 1024},
                         {"padding", false, 0, 0, 1024},
                         {"dilation", false, 1, 1, 1024},
                         {"groups", false, 1, 1},
                         {"bias", false, 1, 0, 1}},
          .signature = signature,
          .demand = demand,
          .cpu_kernel = cpu_kernel,
          .rules = rules};
}

}  // namespace sim
