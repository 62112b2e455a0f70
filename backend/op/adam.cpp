#include <ATen/ops/_fused_adam.h>

#include "backend/op/kernels.hpp"

namespace backend {

/// torch.optim.Adam(fused=True): one pass over memory. The step counter is a float32 scalar beside the moments.
void run_adam(const sim::Work& work, const Operands& operands) {
  const at::TensorList reads(operands.reads.data(), operands.reads.size());
  reads[4].add_(1);
  at::_fused_adam_(reads.slice(0, 1), reads.slice(1, 1), reads.slice(2, 1), reads.slice(3, 1), /*max_exp_avg_sqs=*/{},
                   reads.slice(4, 1), work.op.number("lr"), work.op.number("beta1"), work.op.number("beta2"),
                   work.op.number("weight_decay"), work.op.number("eps"), /*amsgrad=*/false, /*maximize=*/false);
}

}  // namespace backend
