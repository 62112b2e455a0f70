#include <ATen/ops/_fused_sgd.h>

#include "backend/op/kernels.hpp"

namespace backend {

/// torch.optim.SGD(fused=True), dampening 0: one pass over memory. A momentum buffer of zeros makes the first step like
/// all others.
void run_sgd(const sim::Work& work, const Operands& operands) {
  const at::TensorList reads(operands.reads.data(), operands.reads.size());
  at::_fused_sgd_(reads.slice(0, 1), reads.slice(1, 1), /*momentum_buffer_list=*/reads.slice(2),
                  work.op.number("weight_decay"), work.op.number("momentum"), work.op.number("lr"), /*dampening=*/0,
                  /*nesterov=*/false, /*maximize=*/false,
                  /*is_first_step=*/false);
}

}  // namespace backend
