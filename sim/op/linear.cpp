#include "sim/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  need_rank(op, 2, "[batch, features]");
  const TensorSpec& x = op.inputs[0];
  const std::int64_t in = x.shape[1], out = op.integer("out_features");
  Signature s;
  s.output = {x.dtype, {x.shape[0], out}};
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));  // torch.nn.Linear's default
  s.parameters.push_back({"weight", {x.dtype, {out, in}}, bound});
  if (op.integer("bias")) s.parameters.push_back({"bias", {x.dtype, {out}}, bound});
  s.backward_reads = {{Operand::From::input, 0}, {Operand::From::parameter, 0}};
  return s;
}

/// torch.utils.flop_counter: a [m,k]·[k,n] product is 2mkn; grad_input and grad_weight are one such product each.
Demand demand(const OpInstance& op, Pass pass, std::uint32_t grads) {
  const Signature s = op.signature();
  const double flops = 2.0 * count(s.output) * static_cast<double>(op.inputs[0].shape[1]);
  const double x = size(op.inputs[0]), w = size(s.parameters[0].spec), y = size(s.output);
  if (pass == Pass::forward) return {flops, x + w + y};
  const double input_grad = (grads & 1U) ? 1 : 0, weight_grad = (grads & kParameterGrads) ? 1 : 0;
  return {flops * (input_grad + weight_grad), y + input_grad * (w + x) + weight_grad * (x + w)};
}

/// One row is a matrix-vector product (BLAS gemv), which streams the weight once; more rows pack it first (gemm): here
/// [1,25088] by [25088,4096] takes 22 ms, two rows 50, eight 73.
std::string_view cpu_kernel(const OpInstance& op, Pass) { return op.inputs[0].shape[0] == 1 ? "gemv" : "gemm"; }

}  // namespace

OpKind linear_kind() {
  return {.name = "linear",
          .equation = "y = x * w^T + b",
          .has_parameters = true,
          .matrix = true,
          .attributes = {{"out_features", true, 0, 1}, {"bias", false, 1, 0, 1}},
          .signature = signature,
          .demand = demand,
          .cpu_kernel = cpu_kernel};
}

}  // namespace sim
