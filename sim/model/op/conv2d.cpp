#include <array>

#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

std::int64_t output_size(std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                         std::int64_t dilation) {
  return (input + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
}

Signature signature(const OpInstance& op) {
  const TensorSpec& x = op.inputs[0];
  need_rank(op, 4, "[batch, channels, height, width]");
  const std::int64_t groups = op.integer("groups"), out = op.integer("out_channels"),
                     kernel = op.integer("kernel_size");
  const std::int64_t channels = x.shape[1];
  if (channels % groups != 0 || out % groups != 0)
    throw ConfigError("groups={} must divide the {} input and {} output channels", groups, channels, out);
  auto size = [&](std::int64_t s) {
    return output_size(s, kernel, op.integer("stride"), op.integer("padding"), op.integer("dilation"));
  };
  const std::int64_t height = size(x.shape[2]), width = size(x.shape[3]);
  if (height < 1 || width < 1)
    throw ConfigError("kernel_size={} is larger than the padded input {}", kernel, to_string(x));
  Signature s;
  s.output = {x.dtype, {x.shape[0], out, height, width}};
  // torch.nn.Conv2d's default: kaiming_uniform with a = sqrt(5), that is ±1/sqrt(fan_in), for weight and bias.
  const double bound = 1.0 / std::sqrt(static_cast<double>(channels / groups * kernel * kernel));
  s.parameters.push_back({"weight", {x.dtype, {out, channels / groups, kernel, kernel}}, bound});
  if (op.integer("bias")) s.parameters.push_back({"bias", {x.dtype, {out}}, bound});
  s.backward_reads = {{Operand::From::input, 0}, {Operand::From::parameter, 0}};
  return s;
}

/// torch.utils.flop_counter's conv_flop_count: 2 · batch · out_h·out_w · out_channels · in_channels/groups · k². The
/// two gradients cost the same each: every product of the forward appears once in either sum.
Demand demand(const OpInstance& op, Pass pass, std::uint32_t grads) {
  const Signature s = op.signature();
  const double flops = 2.0 * static_cast<double>(s.output.elements()) *
                       static_cast<double>(s.parameters[0].spec.elements()) / static_cast<double>(s.output.shape[1]);
  const double x = size(op.inputs[0]), w = size(s.parameters[0].spec), y = size(s.output);
  if (pass == Pass::forward) return {flops, x + w + y};
  const double input_grad = (grads & 1U) ? 1 : 0, weight_grad = (grads & kParameterGrads) ? 1 : 0;
  return {flops * (input_grad + weight_grad), y + input_grad * (w + x) + weight_grad * (x + w)};
}

constexpr std::int64_t kManyPixels = 12;  // MKL's, see cpu_kernel

/// ATen/native/Convolution.cpp, ConvParams::use_mkldnn, with one thread: oneDNN; or a matrix product of the image's
/// columns (ConvolutionMM2d.cpp), which is faster at small inputs (kernel_size 1 below 16 samples, few elements in one
/// sample) and much slower at some. Where the columns are the image itself, they needn't be written. MKL runs along the
/// pixels of the output: one pixel is gemv, and below 12 it takes another path than above (measured with 32 to 2048
/// channels: 1.2 ns per weight for 2 to 8 pixels, 1.6 for 9, but 0.7 for 12 and 0.5 for 16).
CpuKernel cpu_kernel(const OpInstance& op, Pass) {
  const TensorSpec& x = op.inputs[0];
  const std::int64_t kernel = op.integer("kernel_size"), stride = op.integer("stride"), batch = x.shape[0];
  const bool more_than_a_product = kernel > 1 || stride > 1 || op.integer("dilation") > 1 || batch >= 16;
  const bool large = op.integer("groups") > 1 || kernel > 3 || batch > 1 || x.elements() > 20480;
  if (x.dtype != Dtype::f64 && more_than_a_product && large) return {"oneDNN"};
  const std::vector<std::int64_t> y = op.signature().output.shape;
  const std::int64_t pixels = y[2] * y[3];
  using Names = std::array<std::string_view, 3>;
  const std::size_t class_of_pixels = pixels == 1 ? 0 : pixels < kManyPixels ? 1 : 2;
  if (kernel == 1 && stride == 1 && op.integer("padding") == 0)
    return {Names{"matrix product, one pixel", "matrix product, few pixels", "matrix product"}.at(class_of_pixels)};
  return {Names{"im2col, one pixel", "im2col, few pixels", "im2col"}.at(class_of_pixels)};
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
          .cpu_kernel = cpu_kernel};
}

}  // namespace sim
