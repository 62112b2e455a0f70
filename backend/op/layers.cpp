#include <ATen/ScalarOps.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/flatten.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/threshold_backward.h>

#include <array>
#include <optional>

#include "backend/op/op.hpp"

namespace backend {
namespace {

/// Bit 0 and bit 31 of `grads`: which gradients a backward pass writes.
bool wants_input_grad(const sim::Work& work) { return (work.grads & 1U) != 0; }
bool wants_parameter_grads(const sim::Work& work) { return (work.grads & sim::kParameterGrads) != 0; }

/// The bias of conv2d and linear.
std::optional<at::Tensor> bias_of(const ReferenceInputs& given) {
  return given.parameters.size() > 1 ? std::optional(given.parameters[1]) : std::nullopt;
}

at::Tensor as(const at::Tensor& tensor, sim::Dtype dtype) { return tensor.to(scalar_type(dtype)); }

/// What a matrix op multiplies: input, weight and bias as they are, or copies in autocast's dtype, of which the first two
/// are kept (sim's add_casts).
struct Factors {
  at::Tensor x, weight, bias;
};
Factors factors_of(const sim::Work& work, const Operands& operands) {
  const at::ScalarType dtype = scalar_type(work.op.multiplied());
  std::size_t saved = 1;
  const auto kept = [&](const at::Tensor& tensor) {
    if (tensor.scalar_type() == dtype) return tensor;
    operands.writes[saved] = tensor.to(dtype);
    return operands.writes[saved++];
  };
  const auto& reads = operands.reads;
  Factors factors{kept(reads[0]), kept(reads[1]), {}};
  if (work.op.integer("bias") != 0) factors.bias = reads[2].to(dtype);
  return factors;
}

void conv2d(const sim::Work& work, const Operands& operands) {
  const auto square = [&](std::string_view attribute) {
    const std::int64_t size = work.op.integer(attribute);
    return std::array{size, size};
  };
  const auto stride = square("stride"), padding = square("padding"), dilation = square("dilation");
  const std::array<std::int64_t, 2> output_padding{};
  const std::int64_t groups = work.op.integer("groups");
  const bool bias = work.op.integer("bias") != 0;
  const auto& reads = operands.reads;
  const sim::Dtype input_dtype = work.op.inputs[0].dtype, parameter_dtype = work.op.parameter_dtype();
  // cuDNN has no channels_last in f64: it takes such tensors and gives back others.
  const auto in_format = [&](const at::Tensor& result) {
    return work.op.inputs[0].channels_last ? result.contiguous(at::MemoryFormat::ChannelsLast) : result;
  };
  if (work.pass == sim::Pass::forward) {
    const auto [x, weight, b] = factors_of(work, operands);
    operands.writes[0] = in_format(at::convolution(x, weight, bias ? std::optional(b) : std::nullopt, stride, padding,
                                                   dilation, /*transposed=*/false, output_padding, groups));
    return;
  }
  const bool input = wants_input_grad(work), parameters = wants_parameter_grads(work);
  const at::Tensor &grad_output = reads[0], &x = reads[1], &weight = reads[2];
  const std::array<std::int64_t, 1> bias_sizes{weight.size(0)};
  auto [grad_input, grad_weight, grad_bias] = at::convolution_backward(
      grad_output, x, weight, bias ? at::OptionalIntArrayRef(bias_sizes) : std::nullopt, stride, padding, dilation,
      /*transposed=*/false, output_padding, groups, {input, parameters, parameters && bias});
  std::size_t next = 0;
  if (input) operands.writes[next++] = as(in_format(grad_input), input_dtype);
  if (!parameters) return;
  operands.writes[next++] = as(in_format(grad_weight), parameter_dtype);
  if (bias) operands.writes[next] = as(grad_bias, parameter_dtype);
}

at::Tensor conv2d_reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  return at::conv2d(given.inputs[0], given.parameters[0], bias_of(given), op.integer("stride"), op.integer("padding"),
                    op.integer("dilation"), op.integer("groups"));
}

void linear(const sim::Work& work, const Operands& operands) {
  const bool bias = work.op.integer("bias") != 0;
  const auto& reads = operands.reads;
  if (work.pass == sim::Pass::forward) {
    const auto [x, weight, b] = factors_of(work, operands);
    operands.writes[0] = bias ? at::addmm(b, x, weight.t()) : at::mm(x, weight.t());
    return;
  }
  // grad_x = grad_y · w, grad_w = grad_yᵀ · x, grad_b = sum of grad_y over the rows
  const at::Tensor& grad_output = reads[0];
  std::size_t next = 0;
  const sim::Dtype input_dtype = work.op.inputs[0].dtype, parameter_dtype = work.op.parameter_dtype();
  if (wants_input_grad(work)) operands.writes[next++] = as(at::mm(grad_output, /*weight*/ reads.back()), input_dtype);
  if (!wants_parameter_grads(work)) return;
  operands.writes[next++] = as(at::mm(grad_output.t(), /*x*/ reads[1]), parameter_dtype);
  if (bias) operands.writes[next] = as(at::sum(grad_output, 0), parameter_dtype);
}

at::Tensor linear_reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::linear(given.inputs[0], given.parameters[0], bias_of(given));
}

void batch_norm(const sim::Work& work, const Operands& operands) {
  const auto& reads = operands.reads;
  const double eps = work.op.number("eps");
  if (work.pass == sim::Pass::forward) {
    const at::Tensor &x = reads[0], &weight = reads[1], &bias = reads[2];
    const at::Tensor &running_mean = reads[3], &running_var = reads[4], &num_batches_tracked = reads[5];
    std::tie(operands.writes[0], operands.writes[1], operands.writes[2]) = at::native_batch_norm(
        x, weight, bias, running_mean, running_var, /*training=*/true, work.op.number("momentum"), eps);
    num_batches_tracked.add_(1);
    return;
  }
  const bool input = wants_input_grad(work), parameters = wants_parameter_grads(work);
  const at::Tensor &grad_output = reads[0], &x = reads[1], &weight = reads[2], &save_mean = reads[3],
                   &save_invstd = reads[4];
  // In training mode the running statistics don't enter the gradient.
  auto [grad_input, grad_weight, grad_bias] =
      at::native_batch_norm_backward(grad_output, x, weight, /*running_mean=*/{}, /*running_var=*/{}, save_mean,
                                     save_invstd, /*train=*/true, eps, {input, parameters, parameters});
  std::size_t next = 0;
  if (input) operands.writes[next++] = std::move(grad_input);
  if (!parameters) return;
  operands.writes[next++] = std::move(grad_weight);
  operands.writes[next] = std::move(grad_bias);
}

at::Tensor batch_norm_reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  if (given.is_training) given.buffers[2].add_(1);
  return at::batch_norm(given.inputs[0], given.parameters[0], given.parameters[1], given.buffers[0], given.buffers[1],
                        given.is_training, op.number("momentum"), op.number("eps"), /*cudnn_enabled=*/false);
}

void relu(const sim::Work& work, const Operands& operands) {
  const at::Tensor& first = operands.reads[0];
  if (work.pass == sim::Pass::backward)
    operands.writes[0] = at::threshold_backward(first, operands.reads[1], 0);  // grad_output, output
  else
    operands.writes[0] = work.op.integer("inplace") ? first.relu_() : at::relu(first);
}

at::Tensor relu_reference(const sim::OpInstance&, const ReferenceInputs& given) { return at::relu(given.inputs[0]); }

void max_pool(const sim::Work& work, const Operands& operands) {
  const std::int64_t size = work.op.integer("kernel_size");
  const std::int64_t step = work.op.integer("stride") ? work.op.integer("stride") : size;
  const std::int64_t pad = work.op.integer("padding");
  const std::array kernel{size, size}, stride{step, step}, padding{pad, pad};
  const std::array<std::int64_t, 2> dilation{1, 1};
  const auto& reads = operands.reads;
  if (work.pass == sim::Pass::forward)
    std::tie(operands.writes[0], operands.writes[1]) =
        at::max_pool2d_with_indices(reads[0], kernel, stride, padding, dilation, /*ceil_mode=*/false);
  else  // grad_output, input, indices
    operands.writes[0] = at::max_pool2d_with_indices_backward(reads[0], reads[1], kernel, stride, padding, dilation,
                                                              /*ceil_mode=*/false, reads[2]);
}

at::Tensor max_pool_reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  const std::int64_t size = op.integer("kernel_size"), stride = op.integer("stride");
  return at::max_pool2d(given.inputs[0], size, stride ? stride : size, op.integer("padding"));
}

void adaptive_avg_pool(const sim::Work& work, const Operands& operands) {
  const std::int64_t side = work.op.integer("output_size");
  if (work.pass == sim::Pass::forward) {
    operands.writes[0] = at::adaptive_avg_pool2d(operands.reads[0], std::array{side, side});
    return;
  }
  const at::Tensor &grad_output = operands.reads[0], &x = operands.reads[1];
  // ATen takes output_size=1 as a mean over the plane, forward and backward.
  if (side != 1) {
    operands.writes[0] = at::_adaptive_avg_pool2d_backward(grad_output, x);
    return;
  }
  operands.writes[0] = at::empty_like(x);
  at::div_out(operands.writes[0], grad_output.expand(x.sizes()),
              at::native::wrapped_scalar_tensor(x.size(2) * x.size(3)));
}

at::Tensor adaptive_avg_pool_reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  const std::int64_t side = op.integer("output_size");
  return at::adaptive_avg_pool2d(given.inputs[0], {side, side});
}

void flatten(const sim::Work& work, const Operands& operands) {
  const at::Tensor& first = operands.reads[0];
  if (work.pass == sim::Pass::forward)
    operands.writes[0] = first.flatten(1);
  else  // grad_output, of what was moved
    operands.writes[0] = first.view(work.op.inputs[0].shape).contiguous(memory_format(work.op.inputs[0]));
}

at::Tensor flatten_reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::flatten(given.inputs[0], 1);
}

void add(const sim::Work& work, const Operands& operands) {
  const at::Tensor &a = operands.reads[0], &b = operands.reads[1];
  operands.writes[0] = work.op.integer("inplace") ? a.add_(b) : at::add(a, b);
}

at::Tensor add_reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::add(given.inputs[0], given.inputs[1]);
}

void softmax(const sim::Work& work, const Operands& operands) {
  const std::int64_t dim = work.op.integer("dim");
  const at::Tensor& first = operands.reads[0];
  const sim::Dtype dtype = work.op.inputs[0].dtype;
  if (work.pass == sim::Pass::forward)
    operands.writes[0] = at::_softmax(as(first, sim::at_least_f32(dtype)), dim, /*half_to_float=*/false);
  else  // grad_output, output
    operands.writes[0] = as(at::_softmax_backward_data(first, operands.reads[1], dim, first.scalar_type()), dtype);
}

at::Tensor softmax_reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  return at::softmax(given.inputs[0], op.integer("dim"));
}

}  // namespace

std::vector<OpKernel> layer_kernels() {
  return {{"conv2d", conv2d, conv2d_reference},
          {"linear", linear, linear_reference},
          {"batch_norm", batch_norm, batch_norm_reference},
          aten_kernel(),
          {"relu", relu, relu_reference},
          {"max_pool", max_pool, max_pool_reference},
          {"adaptive_avg_pool", adaptive_avg_pool, adaptive_avg_pool_reference},
          {"flatten", flatten, flatten_reference},
          {"add", add, add_reference},
          {"softmax", softmax, softmax_reference}};
}

}  // namespace backend
