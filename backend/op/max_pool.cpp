#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>

#include <array>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const std::int64_t size = work.op.integer("kernel_size");
  const std::int64_t step = work.op.integer("stride") ? work.op.integer("stride") : size;
  const std::int64_t pad = work.op.integer("padding");
  const std::array kernel{size, size}, stride{step, step}, padding{pad, pad};
  const std::array<std::int64_t, 2> dilation{1, 1};
  const auto& reads = operands.reads;
  if (work.pass == sim::Pass::forward)
    std::tie(operands.writes[0], operands.writes[1]) =
        at::max_pool2d_with_indices(reads[0], kernel, stride, padding, dilation, /*ceil_mode=*/false);
  else  // grad_output, input, indices
    operands.writes[0] = at::max_pool2d_with_indices_backward(reads[0], reads[1], kernel, stride, padding, dilation,
                                                              /*ceil_mode=*/false, reads[2]);
}

at::Tensor reference(const sim::OpInstance& op, const ReferenceInputs& given) {
  const std::int64_t size = op.integer("kernel_size"), stride = op.integer("stride");
  return at::max_pool2d(given.inputs[0], size, stride ? stride : size, op.integer("padding"));
}

}  // namespace

OpKernel max_pool_kernel() { return {.name = "max_pool", .run = run, .reference = reference}; }

}  // namespace backend
