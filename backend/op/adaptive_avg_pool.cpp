#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/div.h>

#include <array>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const std::int64_t side = work.op.integer("output_size");
  if (work.pass == sim::Pass::forward) {
    operands.writes[0] = at::adaptive_avg_pool2d(operands.reads[0], std::array{side, side});
    return;
  }
  const at::Tensor &grad_output = operands.reads[0], &x = operands.reads[1];
  // ATen takes output_size=1 as a mean over the plane, forward and backward.
  operands.writes[0] = side == 1 ? at::div(grad_output.expand(x.sizes()), x.size(2) * x.size(3))
                                 : at::_adaptive_avg_pool2d_backward(grad_output, x);
}

at::Tensor reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  const std::int64_t side = op.integer("output_size");
  return at::adaptive_avg_pool2d(given.inputs[0], {side, side});
}

}  // namespace

OpKernel adaptive_avg_pool_kernel() { return {.name = "adaptive_avg_pool", .run = run, .reference = reference}; }

}  // namespace backend
