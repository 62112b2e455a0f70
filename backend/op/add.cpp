#include <ATen/ops/add.h>

#include "backend/op/kernels.hpp"

namespace backend {

void run_add(const sim::Work& work, const Operands& operands) {
  const at::Tensor &a = operands.reads[0], &b = operands.reads[1];
  operands.writes[0] = work.op.integer("inplace") ? a.add_(b) : at::add(a, b);
}

}  // namespace backend
