#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  need_rank(op, 4, "[batch, channels, height, width]");
  const TensorSpec& x = op.inputs[0];
  const std::int64_t side = op.integer("output_size");
  Signature s;
  s.output = {x.dtype, {x.shape[0], x.shape[1], side, side}};
  s.backward_reads = {{Operand::From::input, 0}};
  return s;
}

Demand demand(const OpInstance& op, Pass, std::uint32_t) {
  const double x = size(op.inputs[0]), y = size(op.signature().output);
  return {count(op.inputs[0]), x + y};
}

}  // namespace

OpKind adaptive_avg_pool_kind() {
  return {.name = "adaptive_avg_pool",
          .equation = "y[i,j] = mean of window (i,j) of an output_size x output_size partition",
          .attributes = {{"output_size", true, 0, 1, 4096}},
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
