#include <ATen/ops/relu.h>
#include <ATen/ops/threshold_backward.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const at::Tensor& first = operands.reads[0];
  if (work.pass == sim::Pass::backward)
    operands.writes[0] = at::threshold_backward(first, operands.reads[1], 0);  // grad_output, output
  else
    operands.writes[0] = work.op.integer("inplace") ? first.relu_() : at::relu(first);
}

at::Tensor reference(const sim::OpInstance&, const ReferenceInputs& given) { return at::relu(given.inputs[0]); }

}  // namespace

OpKernel relu_kernel() { return {.name = "relu", .run = run, .reference = reference}; }

}  // namespace backend
