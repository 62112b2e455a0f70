#include <ATen/ops/add.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const at::Tensor &a = operands.reads[0], &b = operands.reads[1];
  operands.writes[0] = work.op.integer("inplace") ? a.add_(b) : at::add(a, b);
}

at::Tensor reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::add(given.inputs[0], given.inputs[1]);
}

}  // namespace

OpKernel add_kernel() { return {.name = "add", .run = run, .reference = reference}; }

}  // namespace backend
