#include <ATen/ops/batch_norm.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
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

at::Tensor reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  given.buffers[2].add_(1);
  return at::batch_norm(given.inputs[0], given.parameters[0], given.parameters[1], given.buffers[0], given.buffers[1],
                        /*training=*/true, op.number("momentum"), op.number("eps"), /*cudnn_enabled=*/false);
}

}  // namespace

OpKernel batch_norm_kernel() { return {.name = "batch_norm", .run = run, .reference = reference}; }

}  // namespace backend
