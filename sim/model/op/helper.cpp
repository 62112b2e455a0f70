// What lowering inserts. And what a training loop does on the host inside the timed region: making a batch (R1,
// PyTorch's model-parallel tutorial) and reading the result (R2). The demands of the latter are rough counts: a normal
// number takes 4.0 ns on a core whose f32 products reach 69 GFLOP/s (torch.Tensor.normal_, AMD EPYC: the generator, and a
// logarithm, a square root, a sine and a cosine per pair), as much as 280 FLOP; what is made is written, and brought
// to the device.
#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature like_input(const OpInstance& op) { return {.output = op.inputs[0]}; }

Signature accumulate_signature(const OpInstance& op) {
  need_one_shape(op, "two inputs");
  return {.output = op.inputs[0], .storage = OutputStorage::in_place};
}

std::int64_t dim_of(const OpInstance& op) {
  const std::int64_t dim = op.integer("dim");
  if (dim >= static_cast<std::int64_t>(op.inputs[0].shape.size()))
    throw ConfigError("dim={} is outside the input {}", dim, to_string(op.inputs[0]));
  return dim;
}

Signature slice_signature(const OpInstance& op) {
  const auto dim = static_cast<std::size_t>(dim_of(op));
  const std::int64_t begin = op.integer("begin"), part = op.integer("size");
  Signature s{.output = op.inputs[0]};
  if (begin + part > s.output.shape[dim])
    throw ConfigError("op 'slice': {} from {} on is more than {} of {}", part, begin, s.output.shape[dim],
                      to_string(op.inputs[0]));
  s.output.shape[dim] = part;
  return s;
}

Demand slice_demand(const OpInstance& op, Pass, std::uint32_t) {
  const TensorSpec y = op.signature().output;
  return {count(y), 2 * size(y)};
}

Signature blocks_signature(const OpInstance& op) {
  const std::int64_t whole = op.inputs[0].shape[static_cast<std::size_t>(dim_of(op))],
                     before_last = (op.integer("parts") - 1) * op.integer("block");
  if (before_last >= whole)
    throw ConfigError("op '{}': parts={} of block={} are more than {}", op.kind->name, op.integer("parts"),
                      op.integer("block"), whole);
  return {.output = op.inputs[0]};
}

const std::vector<AttributeSpec> kBlocks{
    {"dim", true, 0, 0, 8}, {"parts", true, 0, 1, 1 << 20}, {.name = "block", .required = true, .minimum = 1}};

Signature cast_signature(const OpInstance& op) {
  if (op.inputs[0].shape != op.inputs[1].shape)
    throw ConfigError("op 'cast': {} is no copy of {}", to_string(op.inputs[1]), to_string(op.inputs[0]));
  return {.output = op.inputs[1]};
}

Demand cast_demand(const OpInstance& op, Pass, std::uint32_t) {
  return {count(op.inputs[0]), size(op.inputs[0]) + size(op.inputs[1])};
}

Signature scalar(const OpInstance& op) { return {.output = {op.inputs[1].dtype, {}}}; }

Signature number_signature(const OpInstance& op) { return {.output = {op.inputs[0].dtype, {}}}; }

Signature found_signature(const OpInstance& /*op*/) { return {.output = {Dtype::f32, {}}}; }

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
          {.name = "cast",
           .equation = "y = scale * x, of another dtype",
           .role = OpRole::helper,
           .inputs = 2,  // x, and what y is like
           .signature = cast_signature,
           .demand = cast_demand},
          {.name = "blend",
           .equation = "p = keep * p + take * x, of each tensor (DASO's parameters and what nodes have sent)",
           .role = OpRole::helper,
           .attributes = {{.name = "keep", .required = true, .maximum = 1, .integral = false},
                          {.name = "take", .required = true, .maximum = 1, .integral = false}},
           .signature = like_input,
           .demand = per_element<3, 5>},  // p is scaled, then x is added
          {.name = "fill",
           .equation = "x = 0 (what pads a unit)",
           .role = OpRole::helper,
           .signature = like_input,
           .demand = per_element<0, 1>},
          {.name = "slice",
           .equation = "y = x[begin : begin + size] along dim",
           .role = OpRole::helper,
           .attributes = {{"dim", true, 0, 0, 8},
                          {.name = "begin", .required = true},
                          {.name = "size", .required = true, .minimum = 1}},
           .signature = slice_signature,
           .demand = slice_demand},
          {.name = "pack",
           .equation = "x cut along dim into blocks that each lie together; the last one takes the rest",
           .role = OpRole::helper,
           .attributes = kBlocks,
           .signature = blocks_signature,
           .demand = per_element<1, 2>},
          {.name = "unpack",
           .equation = "pack's inverse",
           .role = OpRole::helper,
           .attributes = kBlocks,
           .signature = blocks_signature,
           .demand = per_element<1, 2>},
          {.name = "cat",
           .equation = "x = the tensors, flat, one after the other",
           .role = OpRole::helper,
           .signature = like_input,
           .demand = per_element<1, 2>},
          {.name = "split_out",
           .equation = "x, one after the other of `parts` ranks the rows of each parameter, to the parameters",
           .role = OpRole::helper,
           .attributes = {{.name = "parts", .required = true, .minimum = 1}},
           .signature = like_input,
           .demand = per_element<1, 2>},
          {.name = "chunk_in",
           .equation = "split_out's inverse: gradients, with zeros where a rank has fewer rows than others",
           .role = OpRole::helper,
           .attributes = {{.name = "parts", .required = true, .minimum = 1}},
           .signature = like_input,
           .demand = per_element<1, 2>},
          {.name = "make_input",
           .equation = "x = normal(0, 1), made on the host in every step",
           .role = OpRole::helper,
           .on_host = true,
           .signature = like_input,
           .demand = per_element<280, 2>},
          {.name = "make_target",
           .equation = "random classes, as indices or one-hot, made on the host in every step",
           .role = OpRole::helper,
           .on_host = true,
           .attributes = {{.name = "classes", .required = true, .minimum = 1}},
           .signature = like_input,
           .demand = per_element<1, 2>},
          {.name = "count_nans",
           .equation = "the host learns whether there are NaNs",
           .role = OpRole::helper,
           .on_host = true,
           .signature = number_signature,
           .demand = per_element<1, 1>},
          {.name = "unscale",
           .equation = "g = g / scale, of each tensor; found = 1 where one isn't finite, else 0",
           .role = OpRole::helper,
           .signature = found_signature,
           .demand = per_element<1, 2>},
          {.name = "square_norm",
           .equation = "n = scale * the sum of the squares of all tensors",
           .role = OpRole::helper,
           .signature = number_signature,
           .demand = per_element<2, 1>},
          {.name = "clip",
           .equation = "g = g * min(1, max_norm / (sqrt(n) + 1e-6)), of each tensor",
           .role = OpRole::helper,
           .attributes = {{.name = "max_norm", .required = true, .maximum = 1e30, .integral = false}},
           .signature = like_input,
           .demand = per_element<1, 2>},
          {.name = "update_scale",
           .equation = "scale is halved where something was found, doubled after 2000 steps without",
           .role = OpRole::helper,
           .signature = like_input,
           .demand = per_element<1, 4>},
          {.name = "read_result",
           .equation = "the host reads loss and number of correct predictions",
           .role = OpRole::helper,
           .inputs = 3,
           .on_host = true,
           .signature = scalar,
           .demand = read_demand}};
}

}  // namespace sim
