// What lowering inserts. And what a training loop does on the host inside the timed region: making a batch (R1,
// PyTorch's model-parallel tutorial) and reading the result (R2). The demands of the latter are rough counts: a normal
// number takes a logarithm, a square root, a sine and a cosine per pair (Box and Muller), about 40 FLOP each; what is
// made is written, and brought to the device.
#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature like_input(const OpInstance& op) { return {.output = op.inputs[0]}; }

Signature accumulate_signature(const OpInstance& op) {
  need_one_shape(op, "two inputs");
  return {.output = op.inputs[0], .storage = OutputStorage::in_place};
}

Signature scalar(const OpInstance& op) { return {.output = {op.inputs[1].dtype, {}}}; }

Demand read_demand(const OpInstance& op, Pass, std::uint32_t) { return {count(op.inputs[1]), size(op.inputs[1])}; }

}  // namespace

std::vector<OpKind> helper_kinds() {
  return {{.name = "accumulate",
           .equation = "a += b (gradients of one tensor from two readers, or from two microbatches)",
           .role = OpRole::helper,
           .inputs = 2,
           .signature = accumulate_signature,
           .demand = per_element<1, 3>},
          {.name = "scaled_copy",
           .equation = "y = scale * x (into and out of communication buckets)",
           .role = OpRole::helper,
           .signature = like_input,  // a bucket's slice, a gradient: as many elements
           .demand = per_element<1, 2>},
          {.name = "make_input",
           .equation = "x = normal(0, 1), made on the host in every step",
           .role = OpRole::helper,
           .signature = like_input,
           .demand = per_element<40, 2>},
          {.name = "make_target",
           .equation = "random classes, as indices or one-hot, made on the host in every step",
           .role = OpRole::helper,
           .attributes = {{.name = "classes", .required = true, .minimum = 1}},
           .signature = like_input,
           .demand = per_element<1, 2>},
          {.name = "read_result",
           .equation = "the host reads loss and number of correct predictions",
           .role = OpRole::helper,
           .inputs = 3,
           .signature = scalar,
           .demand = read_demand}};
}

}  // namespace sim
