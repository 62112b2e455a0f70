#include <ATen/ScalarOps.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

/// Into a tensor of the executor (a bucket's slice) where there is one. The same call as DDP's reducer makes.
void run(const sim::Work&, const Operands& operands) {
  const at::Tensor& source = operands.reads[0];
  at::Tensor& destination = operands.writes[0];
  if (!destination.defined()) destination = at::empty_like(source);
  at::Tensor view = destination.view_as(source);
  if (operands.scale == 1)
    view.copy_(source);
  else
    at::mul_out(view, source, at::native::wrapped_scalar_tensor(operands.scale));
}

}  // namespace

OpKernel scaled_copy_kernel() { return {.name = "scaled_copy", .run = run}; }

}  // namespace backend
