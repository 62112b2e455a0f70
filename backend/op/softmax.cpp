#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>

#include "backend/op/kernels.hpp"

namespace backend {

void run_softmax(const sim::Work& work, const Operands& operands) {
  const std::int64_t dim = work.op.integer("dim");
  const at::Tensor& first = operands.reads[0];
  if (work.pass == sim::Pass::forward)
    operands.writes[0] = at::_softmax(first, dim, /*half_to_float=*/false);
  else  // grad_output, output
    operands.writes[0] = at::_softmax_backward_data(first, operands.reads[1], dim, first.scalar_type());
}

}  // namespace backend
