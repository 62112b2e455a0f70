#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  need_rank(op, 2, "[batch, features]");
  const TensorSpec& x = op.inputs[0];
  const std::int64_t in = x.shape[1], out = op.integer("out_features");
  const double bound = 1.0 / std::sqrt(static_cast<double>(in));  // torch.nn.Linear's default
  const Dtype parameter = op.parameter_dtype();
  Signature s{.output = {op.multiplied(), {x.shape[0], out}},
              .parameters = {{"weight", {parameter, {out, in}}, bound}},
              .backward_reads = {{Operand::From::input, 0, kParameterGrads}, {Operand::From::parameter, 0, 1}}};
  if (op.integer("bias")) s.parameters.push_back({"bias", {parameter, {out}}, bound});
  add_casts(op, s);
  return s;
}

/// torch.utils.flop_counter: a [m,k]·[k,n] product is 2mkn; grad_input and grad_weight are one such product each.
Demand demand(const OpInstance& op, Pass pass, std::uint32_t grads) {
  const Signature s = op.signature();
  return matrix_demand(op, s, 2.0 * count(s.output) * static_cast<double>(op.inputs[0].shape[1]), pass, grads);
}

/// MKL multiplies up to three rows by a weight one after the other, as matrix-vector products (gemv), each of which
/// streams the weight; more rows pack it first (gemm). Measured, per weight of [4096,4096]: 0.20, 0.45 and 0.68 ns for
/// one to three rows, 0.47 for four, 0.54 for eight. The weight's gradient is a matrix-vector product (ger) of one row
/// only: 0.24 ns, 0.75 for two and three.
CpuKernel cpu_kernel(const OpInstance& op, Pass pass) {
  const std::int64_t rows = op.inputs[0].shape[0], most = pass == Pass::forward ? 3 : 1;
  if (rows > most) return {"gemm"};
  return {"gemv", static_cast<double>(rows)};
}

std::vector<Rule> rules(const OpInstance& op) { return matrix_rules(op, "out_features"); }

}  // namespace

OpKind linear_kind() {
  return {.name = "linear",
          .equation = "y = x * w^T + b",
          .has_parameters = true,
          .matrix = true,
          .last_gradient_first = true,  // the weight's goes through a transpose
          .attributes = {{"out_features", true, 0, 1}, {"bias", false, 1, 0, 1}},
          .signature = signature,
          .demand = demand,
          .cpu_kernel = cpu_kernel,
          .rules = rules};
}

}  // namespace sim
