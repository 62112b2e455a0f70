#include <ATen/ops/_fused_adam.h>
#include <torch/optim/adam.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

/// torch.optim.Adam(fused=True): one pass over memory. The step counter is a float32 scalar beside the moments.
void run(const sim::Work& work, const Operands& operands) {
  const at::TensorList reads(operands.reads.data(), operands.reads.size());
  reads[4].add_(1);
  at::_fused_adam_(reads.slice(0, 1), reads.slice(1, 1), reads.slice(2, 1), reads.slice(3, 1), /*max_exp_avg_sqs=*/{},
                   reads.slice(4, 1), work.op.number("lr"), work.op.number("beta1"), work.op.number("beta2"),
                   work.op.number("weight_decay"), work.op.number("eps"), /*amsgrad=*/false, /*maximize=*/false);
}

std::unique_ptr<torch::optim::Optimizer> reference(const sim::OpInstance& op,
                                                   const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(op.number("lr"))
                                                              .betas({op.number("beta1"), op.number("beta2")})
                                                              .eps(op.number("eps"))
                                                              .weight_decay(op.number("weight_decay")));
}

}  // namespace

OpKernel adam_kernel() { return {.name = "adam", .run = run, .reference_optimizer = reference}; }

}  // namespace backend
