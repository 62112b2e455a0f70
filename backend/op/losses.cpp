#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
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

/// That of what enters the loss in f32: of the loss, times the loss scale where there is one after so many operands.
at::Tensor gradient_of_loss(const Operands& operands, std::size_t count, const at::TensorOptions& options) {
  if (operands.reads.size() == count) return at::scalar_tensor(operands.scale, options);
  return operands.reads[count].to(options.dtype()) * operands.scale;
}

/// Half precision as f32, which autocast's losses compute in.
at::Tensor widened(const at::Tensor& prediction) {
  return prediction.element_size() < 4 ? prediction.to(at::kFloat) : prediction;
}

/// [rows, positions…, classes] as [rows and positions, classes].
at::Tensor by_class(const at::Tensor& prediction) { return prediction.view({-1, prediction.size(-1)}); }

void mse_loss(const sim::Work& work, const Operands& operands) {
  const at::Tensor prediction = widened(operands.reads[0]), &target = operands.reads[1];
  if (work.pass == sim::Pass::forward) {
    // With Reduction::Mean ATen does the same two things, but leaves the scalar in a storage of the prediction's size.
    operands.writes[0] = at::mse_loss(prediction, target, at::Reduction::None).mean();
    if (operands.writes.size() > 1) operands.writes[1] = prediction;
    return;
  }
  const at::Tensor grad_loss = gradient_of_loss(operands, 2, prediction.options());
  operands.writes[0] = at::mse_loss_backward(grad_loss, prediction, target, at::Reduction::Mean)
                           .to(scalar_type(work.op.inputs[0].dtype));
}

at::Tensor mse_loss_reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::mse_loss(given.inputs[0], given.inputs[1]);
}

void cross_entropy(const sim::Work& work, const Operands& operands) {
  constexpr std::int64_t kNoIgnoredClass = -100;  // torch's default: no class has this index
  const auto& reads = operands.reads;
  if (work.pass == sim::Pass::forward) {
    const at::Tensor log_probabilities = at::_log_softmax(widened(reads[0]), -1, /*half_to_float=*/false);
    std::tie(operands.writes[0], operands.writes[2]) = at::nll_loss_forward(
        by_class(log_probabilities), /*target=*/reads[1].view(-1), /*weight=*/{}, at::Reduction::Mean, kNoIgnoredClass);
    operands.writes[1] = log_probabilities;
    return;
  }
  const at::Tensor &target = reads[0], &log_probabilities = reads[1], &total_weight = reads[2];
  const at::Tensor grad_loss = gradient_of_loss(operands, 3, log_probabilities.options());
  const at::Tensor grad_log = at::nll_loss_backward(grad_loss, by_class(log_probabilities), target.view(-1),
                                                    /*weight=*/{}, at::Reduction::Mean, kNoIgnoredClass, total_weight);
  operands.writes[0] = at::_log_softmax_backward_data(grad_log.view(log_probabilities.sizes()), log_probabilities, -1,
                                                      log_probabilities.scalar_type())
                           .to(scalar_type(work.op.inputs[0].dtype));
}

at::Tensor cross_entropy_reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::cross_entropy_loss(by_class(given.inputs[0]), given.inputs[1].view(-1));
}

void sum_loss(const sim::Work& work, const Operands& operands) {
  const at::Tensor& prediction = operands.reads[0];
  if (work.pass == sim::Pass::forward)
    operands.writes[0] = widened(prediction).sum();
  else if (operands.reads.size() == 1)
    operands.writes[0] = at::full_like(prediction, operands.scale);
  else
    operands.writes[0] = at::empty_like(prediction).copy_(gradient_of_loss(operands, 1, at::TensorOptions(at::kFloat)));
}

at::Tensor sum_loss_reference(const sim::OpInstance&, const ReferenceInputs& given) { return given.inputs[0].sum(); }

}  // namespace

std::vector<OpKernel> loss_kernels() {
  return {{"mse_loss", mse_loss, mse_loss_reference},
          {"cross_entropy", cross_entropy, cross_entropy_reference},
          {"sum_loss", sum_loss, sum_loss_reference}};
}

}  // namespace backend
