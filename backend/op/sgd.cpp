#include <ATen/ops/_fused_sgd.h>
#include <torch/optim/sgd.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

/// torch.optim.SGD(fused=True), dampening 0: one pass over memory. A momentum buffer of zeros makes the first step like
/// all others.
void run(const sim::Work& work, const Operands& operands) {
  const at::TensorList reads(operands.reads.data(), operands.reads.size());
  at::_fused_sgd_(reads.slice(0, 1), reads.slice(1, 1), /*momentum_buffer_list=*/reads.slice(2),
                  work.op.number("weight_decay"), work.op.number("momentum"), work.op.number("lr"), /*dampening=*/0,
                  /*nesterov=*/false, /*maximize=*/false,
                  /*is_first_step=*/false);
}

std::unique_ptr<torch::optim::Optimizer> reference(const sim::OpInstance& op,
                                                   const std::vector<at::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(op.number("lr"))
                                                             .momentum(op.number("momentum"))
                                                             .weight_decay(op.number("weight_decay")));
}

}  // namespace

OpKernel sgd_kernel() { return {.name = "sgd", .run = run, .reference_optimizer = reference}; }

}  // namespace backend
