#include <ATen/core/Reduction.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mse_loss_backward.h>
#include <ATen/ops/scalar_tensor.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const at::Tensor &prediction = operands.reads[0], &target = operands.reads[1];
  if (work.pass == sim::Pass::forward) {
    // With Reduction::Mean ATen does the same two things, but leaves the scalar in a storage of the prediction's size.
    operands.writes[0] = at::mse_loss(prediction, target, at::Reduction::None).mean();
    return;
  }
  const at::Tensor grad_loss = at::scalar_tensor(operands.scale, prediction.options());
  operands.writes[0] = at::mse_loss_backward(grad_loss, prediction, target, at::Reduction::Mean);
}

at::Tensor reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::mse_loss(given.inputs[0], given.inputs[1]);
}

}  // namespace

OpKernel mse_loss_kernel() { return {.name = "mse_loss", .run = run, .reference = reference}; }

}  // namespace backend
