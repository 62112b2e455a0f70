#include <ATen/ops/flatten.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work&, const Operands& operands) { operands.writes[0] = operands.reads[0].flatten(1); }

at::Tensor reference(const sim::OpInstance&, const ReferenceInputs& given) { return at::flatten(given.inputs[0], 1); }

}  // namespace

OpKernel flatten_kernel() { return {.name = "flatten", .run = run, .reference = reference}; }

}  // namespace backend
