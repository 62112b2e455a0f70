#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mse_loss_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sum.h>

#include "backend/op/op.hpp"

namespace backend {
namespace {

void mse_loss(const sim::Work& work, const Operands& operands) {
  const at::Tensor &prediction = operands.reads[0], &target = operands.reads[1];
  if (work.pass == sim::Pass::forward) {
    // With Reduction::Mean ATen does the same two things, but leaves the scalar in a storage of the prediction's size.
    operands.writes[0] = at::mse_loss(prediction, target, at::Reduction::None).mean();
    return;
  }
  const at::Tensor grad_loss = at::scalar_tensor(operands.scale, prediction.options());
  operands.writes[0] = at::mse_loss_backward(grad_loss, prediction, target, at::Reduction::Mean);
}

at::Tensor mse_loss_reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::mse_loss(given.inputs[0], given.inputs[1]);
}

void cross_entropy(const sim::Work& work, const Operands& operands) {
  constexpr std::int64_t kNoIgnoredClass = -100;  // torch's default: no class has this index
  const auto& reads = operands.reads;
  if (work.pass == sim::Pass::forward) {
    const at::Tensor log_probabilities = at::_log_softmax(reads[0], 1, /*half_to_float=*/false);
    std::tie(operands.writes[0], operands.writes[2]) = at::nll_loss_forward(
        log_probabilities, /*target=*/reads[1], /*weight=*/{}, at::Reduction::Mean, kNoIgnoredClass);
    operands.writes[1] = log_probabilities;
    return;
  }
  const at::Tensor &target = reads[0], &log_probabilities = reads[1], &total_weight = reads[2];
  const at::Tensor grad_loss = at::scalar_tensor(operands.scale, log_probabilities.options());
  const at::Tensor grad_log = at::nll_loss_backward(grad_loss, log_probabilities, target, /*weight=*/{},
                                                    at::Reduction::Mean, kNoIgnoredClass, total_weight);
  operands.writes[0] = at::_log_softmax_backward_data(grad_log, log_probabilities, 1, log_probabilities.scalar_type());
}

at::Tensor cross_entropy_reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::cross_entropy_loss(given.inputs[0], given.inputs[1]);
}

void sum_loss(const sim::Work& work, const Operands& operands) {
  const at::Tensor& prediction = operands.reads[0];
  operands.writes[0] = work.pass == sim::Pass::forward ? prediction.sum() : at::full_like(prediction, operands.scale);
}

at::Tensor sum_loss_reference(const sim::OpInstance&, const ReferenceInputs& given) { return given.inputs[0].sum(); }

}  // namespace

std::vector<OpKernel> loss_kernels() {
  return {{"mse_loss", mse_loss, mse_loss_reference},
          {"cross_entropy", cross_entropy, cross_entropy_reference},
          {"sum_loss", sum_loss, sum_loss_reference}};
}

}  // namespace backend
