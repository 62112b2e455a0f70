#include <ATen/ops/argmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>

#include "backend/op/kernels.hpp"
#include "backend/rank/initial.hpp"

namespace backend {
namespace {

/// Made on the host, and brought to the device.
template <class Make>
void on_the_host(const at::Tensor& tensor, const Make& make) {
  if (tensor.is_cpu()) return make(tensor);
  const at::Tensor made = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  make(made);
  tensor.copy_(made);
}

void run_make_input(const sim::Work&, const Operands& operands) {
  on_the_host(operands.writes[0], [&](const at::Tensor& x) { make_input(x, operands.seed); });
}

void run_make_target(const sim::Work& work, const Operands& operands) {
  on_the_host(operands.writes[0],
              [&](const at::Tensor& target) { make_target(target, work.op.integer("classes"), operands.seed); });
}

/// Both reads wait for the device.
void run_read_result(const sim::Work&, const Operands& operands) {
  static_cast<void>(operands.reads[0].item<double>());
  const at::Tensor predicted = at::argmax(operands.reads[1], 1), &target = operands.reads[2];
  static_cast<void>(at::eq(predicted, target.dim() == 1 ? target : at::argmax(target, 1)).sum().item<std::int64_t>());
}

}  // namespace

OpKernel make_input_kernel() { return {.name = "make_input", .run = run_make_input}; }
OpKernel make_target_kernel() { return {.name = "make_target", .run = run_make_target}; }
OpKernel read_result_kernel() { return {.name = "read_result", .run = run_read_result}; }

}  // namespace backend
