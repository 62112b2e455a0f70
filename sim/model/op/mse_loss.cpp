#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  if (op.inputs[0] != op.inputs[1])
    throw ConfigError("op 'mse_loss' needs prediction and target of one shape, found {} and {}",
                      to_string(op.inputs[0]), to_string(op.inputs[1]));
  Signature s;
  s.output = {op.inputs[0].dtype, {}};
  s.backward_reads = {{Operand::From::input, 0}, {Operand::From::input, 1}};
  return s;
}

Demand demand(const OpInstance& op, Pass pass, std::uint32_t) {
  const double x = size(op.inputs[0]);
  return {3 * count(op.inputs[0]), pass == Pass::forward ? 2 * x : 3 * x};
}

}  // namespace

OpKind mse_loss_kind() {
  return {.name = "mse_loss",
          .equation = "loss = mean((prediction - target)^2)",
          .role = OpRole::loss,
          .inputs = 2,
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
