#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  need_rank(op, 4, "[batch, channels, height, width]");
  const TensorSpec& x = op.inputs[0];
  const std::int64_t kernel = op.integer("kernel_size"), padding = op.integer("padding");
  const std::int64_t stride = op.integer("stride") ? op.integer("stride") : kernel;
  if (2 * padding > kernel) throw ConfigError("padding={} must be at most half of kernel_size={}", padding, kernel);
  auto pooled = [&](std::int64_t s) { return (s + 2 * padding - kernel) / stride + 1; };
  if (x.shape[2] + 2 * padding < kernel || x.shape[3] + 2 * padding < kernel)
    throw ConfigError("kernel_size={} is larger than the padded input {}", kernel, to_string(x));
  Signature s;
  s.output = {x.dtype, {x.shape[0], x.shape[1], pooled(x.shape[2]), pooled(x.shape[3])}};
  s.saved = {{"indices", {Dtype::i64, s.output.shape}}};
  s.backward_reads = {{Operand::From::input, 0}, {Operand::From::saved, 0}};
  return s;
}

Demand demand(const OpInstance& op, Pass pass, std::uint32_t) {
  const Signature s = op.signature();
  const double x = size(op.inputs[0]), y = size(s.output), indices = size(s.saved[0].spec);
  const double window = op.number("kernel_size") * op.number("kernel_size");
  // Backward fills grad_x with zeros, then scatters.
  if (pass == Pass::forward) return {count(s.output) * window, x + y + indices};
  return {count(s.output), y + indices + x};
}

}  // namespace

OpKind max_pool_kind() {
  return {.name = "max_pool",
          .equation = "y = max of each kernel_size x kernel_size window",
          .attributes = {{"kernel_size", true, 0, 1, 1024},
                         {"stride", false, 0, 0, 1024},  // 0: kernel_size
                         {"padding", false, 0, 0, 1024}},
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
