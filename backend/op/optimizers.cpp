#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>

#include "backend/op/op.hpp"

namespace backend {
namespace {

using Parameters = std::vector<at::Tensor>;

/// GradScaler's, after so many operands: the fused kernels then change nothing where it is 1.
std::optional<at::Tensor> found_of(const Operands& operands, std::size_t count) {
  return operands.reads.size() > count ? std::optional(operands.reads[count]) : std::nullopt;
}

// torch::optim's headers take 10 s: no other file includes them.
template <class Optimizer, class Options>
std::function<void()> step_of(const Parameters& parameters, const Options& options) {
  return [optimizer = std::make_shared<Optimizer>(parameters, options)] { optimizer->step(); };
}

/// torch.optim.SGD(fused=True), dampening 0: one pass over memory. A momentum buffer of zeros makes the first step like
/// all others.
void sgd(const sim::Work& work, const Operands& operands) {
  const at::TensorList reads(operands.reads.data(), operands.reads.size());
  const std::size_t count = work.op.inputs.size(), buffers = work.op.number("momentum") > 0 ? count : 0;
  at::_fused_sgd_(reads.slice(0, count), reads.slice(count, count),
                  /*momentum_buffer_list=*/reads.slice(2 * count, buffers), work.op.number("weight_decay"),
                  work.op.number("momentum"), work.op.number("lr"), /*dampening=*/0, /*nesterov=*/false,
                  /*maximize=*/false, /*is_first_step=*/false, /*grad_scale=*/{},
                  found_of(operands, 2 * count + buffers));
}

std::function<void()> sgd_reference(const sim::OpInstance& op, const Parameters& parameters) {
  return step_of<torch::optim::SGD>(parameters, torch::optim::SGDOptions(op.number("lr"))
                                                    .momentum(op.number("momentum"))
                                                    .weight_decay(op.number("weight_decay")));
}

/// torch.optim.Adam(fused=True): one pass over memory. Each parameter's step counter is a float32 scalar beside its moments.
/// `decoupled`: AdamW, whose weight decay isn't part of the gradient.
void adam(const sim::Work& work, const Operands& operands, bool decoupled) {
  const at::TensorList reads(operands.reads.data(), operands.reads.size());
  const std::size_t count = work.op.inputs.size();
  const auto list = [&](std::size_t which) { return reads.slice(which * count, count); };
  const std::optional<at::Tensor> found = found_of(operands, 5 * count);
  at::_foreach_add_(list(4), 1);
  const auto step = [&](auto* of_all) {
    of_all(list(0), list(1), list(2), list(3), /*max_exp_avg_sqs=*/{}, list(4), work.op.number("lr"),
           work.op.number("beta1"), work.op.number("beta2"), work.op.number("weight_decay"), work.op.number("eps"),
           /*amsgrad=*/false, /*maximize=*/false, /*grad_scale=*/{}, found);
  };
  using Step = void(at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                    double, double, double, double, double, bool, bool, const std::optional<at::Tensor>&,
                    const std::optional<at::Tensor>&);
  step(decoupled ? static_cast<Step*>(at::_fused_adamw_) : static_cast<Step*>(at::_fused_adam_));
  if (found) at::_foreach_sub_(list(4), std::vector<at::Tensor>(count, *found));
}

void adam_l2(const sim::Work& work, const Operands& operands) { adam(work, operands, /*decoupled=*/false); }
void adamw(const sim::Work& work, const Operands& operands) { adam(work, operands, /*decoupled=*/true); }

std::function<void()> adamw_reference(const sim::OpInstance& op, const Parameters& parameters) {
  return step_of<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(op.number("lr"))
                                                      .betas({op.number("beta1"), op.number("beta2")})
                                                      .eps(op.number("eps"))
                                                      .weight_decay(op.number("weight_decay")));
}

std::function<void()> adam_reference(const sim::OpInstance& op, const Parameters& parameters) {
  return step_of<torch::optim::Adam>(parameters, torch::optim::AdamOptions(op.number("lr"))
                                                     .betas({op.number("beta1"), op.number("beta2")})
                                                     .eps(op.number("eps"))
                                                     .weight_decay(op.number("weight_decay")));
}

}  // namespace

std::vector<OpKernel> optimizer_kernels() {
  return {{.name = "sgd", .run = sgd, .reference_step = sgd_reference},
          {.name = "adam", .run = adam_l2, .reference_step = adam_reference},
          {.name = "adamw", .run = adamw, .reference_step = adamw_reference}};
}

}  // namespace backend
