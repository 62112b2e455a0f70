#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  const std::int64_t dim = op.integer("dim");
  if (dim >= static_cast<std::int64_t>(op.inputs[0].shape.size()))
    throw ConfigError("dim={} is outside the input {}", dim, to_string(op.inputs[0]));
  Signature s;
  s.output = op.inputs[0];
  s.backward_reads = {{Operand::From::output, 0}};
  return s;
}

Demand demand(const OpInstance& op, Pass pass, std::uint32_t) {
  const double x = size(op.inputs[0]), n = count(op.inputs[0]);
  return {5 * n, pass == Pass::forward ? 2 * x : 3 * x};
}

}  // namespace

OpKind softmax_kind() {
  return {.name = "softmax",
          .equation = "y_i = exp(x_i) / sum_j exp(x_j) along dim",
          .attributes = {{"dim", false, 1, 0, 8}},
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
