#include "sim/model/op/kinds.hpp"

// What a training loop does on the host inside the timed region: making a batch (R1, PyTorch's model-parallel
// tutorial) and reading the result (R2). The demands are rough counts: a normal number takes a logarithm, a square
// root, a sine and a cosine per pair (Box and Muller), about 40 FLOP each; what is made is written, and brought to the
// device.
namespace sim {
namespace {

Demand normal_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {40 * count(op.inputs[0]), 2 * size(op.inputs[0])};
}

Demand target_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {count(op.inputs[0]), 2 * size(op.inputs[0])};
}

Signature scalar(const OpInstance& op) {
  Signature s;
  s.output = {op.inputs[1].dtype, {}};
  return s;
}

Demand read_demand(const OpInstance& op, Pass, std::uint32_t) { return {count(op.inputs[1]), size(op.inputs[1])}; }

}  // namespace

OpKind make_input_kind() {
  return {.name = "make_input",
          .equation = "x = normal(0, 1), made on the host in every step",
          .role = OpRole::helper,
          .signature = like_input,
          .demand = normal_demand};
}

OpKind make_target_kind() {
  return {.name = "make_target",
          .equation = "random classes, as indices or one-hot, made on the host in every step",
          .role = OpRole::helper,
          .attributes = {{.name = "classes", .required = true, .minimum = 1}},
          .signature = like_input,
          .demand = target_demand};
}

OpKind read_result_kind() {
  return {.name = "read_result",
          .equation = "the host reads loss and number of correct predictions",
          .role = OpRole::helper,
          .inputs = 3,
          .signature = scalar,
          .demand = read_demand};
}

}  // namespace sim
