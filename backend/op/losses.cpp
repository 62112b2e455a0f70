#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/mse_loss_backward.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
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

/// The gradient of a reduction of the prediction to which every element gives `each` of itself.
at::Tensor gradient_of_each(const Operands& operands, double each) {
  const at::Tensor& prediction = operands.reads[0];
  if (operands.reads.size() == 1) return at::full_like(prediction, operands.scale * each);
  return at::empty_like(prediction).copy_(gradient_of_loss(operands, 1, at::TensorOptions(at::kFloat)) * each);
}

void sum_loss(const sim::Work& work, const Operands& operands) {
  operands.writes[0] =
      work.pass == sim::Pass::forward ? widened(operands.reads[0]).sum() : gradient_of_each(operands, 1);
}

at::Tensor sum_loss_reference(const sim::OpInstance&, const ReferenceInputs& given) { return given.inputs[0].sum(); }

void mean_loss(const sim::Work& work, const Operands& operands) {
  const at::Tensor& prediction = operands.reads[0];
  operands.writes[0] = work.pass == sim::Pass::forward
                           ? widened(prediction).mean()
                           : gradient_of_each(operands, 1 / static_cast<double>(prediction.numel()));
}

at::Tensor mean_loss_reference(const sim::OpInstance&, const ReferenceInputs& given) { return given.inputs[0].mean(); }

// ---- A cross_entropy of which each rank has some classes: megatron/core/tensor_parallel/cross_entropy.py ----

/// Of each target which of the rank's own classes it is, and whether it is none; then 0.
std::pair<at::Tensor, at::Tensor> own_classes(const sim::Work& work, const at::Tensor& target,
                                              const at::Tensor& first) {
  const at::Tensor from_first = target - first;
  const at::Tensor is_elsewhere = (from_first < 0).logical_or_(from_first >= work.op.inputs[0].shape.back());
  return {from_first.masked_fill(is_elsewhere, 0), is_elsewhere};
}

void class_max(const sim::Work&, const Operands& operands) {
  operands.writes[0] = widened(at::amax(operands.reads[0], -1));
}

void class_sums(const sim::Work& work, const Operands& operands) {
  at::Tensor shifted = operands.reads[0];
  const at::Tensor largest = operands.reads[1].unsqueeze(-1);
  if (work.op.integer("inplace") != 0)
    shifted.sub_(largest);
  else
    shifted = shifted - largest;
  const auto [own, is_elsewhere] = own_classes(work, operands.reads[2], operands.reads[3]);
  const at::Tensor of_target = shifted.gather(-1, own.unsqueeze(-1)).squeeze(-1).masked_fill_(is_elsewhere, 0);
  operands.writes[0] = shifted.exp_();
  operands.writes[1] = at::stack({shifted.sum(-1), of_target}, -1);
}

void class_loss(const sim::Work&, const Operands& operands) {
  const at::Tensor& sums = operands.reads[0];
  operands.writes[0] = (sums.select(-1, 0).log() - sums.select(-1, 1)).mean();
}

void class_grad(const sim::Work& work, const Operands& operands) {
  at::Tensor softmax = operands.reads[0];
  const at::Tensor &sums = operands.reads[1], &target = operands.reads[2];
  const auto [own, is_elsewhere] = own_classes(work, target, operands.reads[3]);
  softmax.div_(sums.select(-1, 0).unsqueeze(-1));
  const at::Tensor minus_one = is_elsewhere.to(softmax.scalar_type()).sub_(1);  // or 0
  softmax.scatter_add_(-1, own.unsqueeze(-1), minus_one.unsqueeze(-1));
  softmax.mul_(gradient_of_loss(operands, 4, softmax.options()) / static_cast<double>(target.numel()));
  operands.writes[0] = softmax.to(scalar_type(work.op.inputs[0].dtype));
}

}  // namespace

std::vector<OpKernel> class_kernels() {
  return {{"class_max", class_max}, {"class_sums", class_sums}, {"class_loss", class_loss}, {"class_grad", class_grad}};
}

std::vector<OpKernel> loss_kernels() {
  return {{"mse_loss", mse_loss, mse_loss_reference},
          {"cross_entropy", cross_entropy, cross_entropy_reference},
          {"mean_loss", mean_loss, mean_loss_reference},
          {"sum_loss", sum_loss, sum_loss_reference}};
}

}  // namespace backend
