#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <array>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const auto square = [&](std::string_view attribute) {
    const std::int64_t size = work.op.integer(attribute);
    return std::array{size, size};
  };
  const auto stride = square("stride"), padding = square("padding"), dilation = square("dilation");
  const std::array<std::int64_t, 2> output_padding{};
  const std::int64_t groups = work.op.integer("groups");
  const bool bias = work.op.integer("bias") != 0;
  const auto& reads = operands.reads;
  if (work.pass == sim::Pass::forward) {
    operands.writes[0] = at::convolution(reads[0], reads[1], bias ? std::optional(reads[2]) : std::nullopt, stride,
                                         padding, dilation, /*transposed=*/false, output_padding, groups);
    return;
  }
  const bool input = wants_input_grad(work), parameters = wants_parameter_grads(work);
  const at::Tensor &grad_output = reads[0], &x = reads[1], &weight = reads[2];
  const std::array<std::int64_t, 1> bias_sizes{weight.size(0)};
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
      grad_output, x, weight, bias ? at::OptionalIntArrayRef(bias_sizes) : std::nullopt, stride, padding, dilation,
      /*transposed=*/false, output_padding, groups, {input, parameters, parameters && bias});
  std::size_t next = 0;
  if (input) operands.writes[next++] = std::move(grad_input);
  if (!parameters) return;
  operands.writes[next++] = std::move(grad_weight);
  if (bias) operands.writes[next] = std::move(grad_bias);
}

at::Tensor reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  return at::conv2d(given.inputs[0], given.parameters[0], bias_of(given), op.integer("stride"), op.integer("padding"),
                    op.integer("dilation"), op.integer("groups"));
}

}  // namespace

OpKernel conv2d_kernel() { return {.name = "conv2d", .run = run, .reference = reference}; }

}  // namespace backend
