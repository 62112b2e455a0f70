#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  need_rank(op, 2, "[batch, classes]");
  const TensorSpec& prediction = op.inputs[0];
  const TensorSpec expected{Dtype::i64, {prediction.shape[0]}};
  if (op.inputs[1] != expected)
    throw ConfigError("op 'cross_entropy' needs a target {}, found {}", to_string(expected), to_string(op.inputs[1]));
  Signature s;
  s.output = {prediction.dtype, {}};
  s.saved = {{"log_probabilities", prediction}, {"total_weight", {prediction.dtype, {}}}};
  s.backward_reads = {{Operand::From::input, 1}, {Operand::From::saved, 0}, {Operand::From::saved, 1}};
  return s;
}

Demand demand(const OpInstance& op, Pass pass, std::uint32_t) {
  const double x = size(op.inputs[0]), n = count(op.inputs[0]);
  return {5 * n, pass == Pass::forward ? 2 * x : 4 * x};
}

}  // namespace

OpKind cross_entropy_kind() {
  return {.name = "cross_entropy",
          .equation = "loss = mean_n(-log softmax(prediction_n)[target_n])",
          .role = OpRole::loss,
          .inputs = 2,
          .takes_class_indices = true,
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
