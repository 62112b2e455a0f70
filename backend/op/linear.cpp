#include <ATen/ops/addmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>

#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work& work, const Operands& operands) {
  const bool bias = work.op.integer("bias") != 0;
  const auto& reads = operands.reads;
  if (work.pass == sim::Pass::forward) {
    operands.writes[0] = bias ? at::addmm(reads[2], reads[0], reads[1].t()) : at::mm(reads[0], reads[1].t());
    return;
  }
  // grad_x = grad_y · w, grad_w = grad_yᵀ · x, grad_b = sum of grad_y over the rows
  const at::Tensor &grad_output = reads[0], &x = reads[1], &weight = reads[2];
  std::size_t next = 0;
  if (wants_input_grad(work)) operands.writes[next++] = at::mm(grad_output, weight);
  if (!wants_parameter_grads(work)) return;
  operands.writes[next++] = at::mm(grad_output.t(), x);
  if (bias) operands.writes[next] = at::sum(grad_output, 0);
}

at::Tensor reference(const sim::OpInstance&, const ReferenceInputs& given) {
  return at::linear(given.inputs[0], given.parameters[0], bias_of(given));
}

}  // namespace

OpKernel linear_kernel() { return {.name = "linear", .run = run, .reference = reference}; }

}  // namespace backend
