#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/softmax.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const std::int64_t dim = work.op.integer("dim");
  const at::Tensor& first = operands.reads[0];
  if (work.pass == sim::Pass::forward)
    operands.writes[0] = at::_softmax(first, dim, /*half_to_float=*/false);
  else  // grad_output, output
    operands.writes[0] = at::_softmax_backward_data(first, operands.reads[1], dim, first.scalar_type());
}

at::Tensor reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  return at::softmax(given.inputs[0], op.integer("dim"));
}

}  // namespace

OpKernel softmax_kernel() { return {.name = "softmax", .run = run, .reference = reference}; }

}  // namespace backend
