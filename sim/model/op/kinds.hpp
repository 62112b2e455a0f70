// The rows of op_table, one function per file of this folder, and what these files share.
#pragma once

#include <cmath>

#include "sim/error.hpp"
#include "sim/model/op/op.hpp"
#include "sim/model/op/rule.hpp"

namespace sim {

OpKind conv2d_kind();
OpKind linear_kind();
OpKind batch_norm_kind();
OpKind aten_kind();
std::vector<OpKind> layer_kinds();
std::vector<OpKind> loss_kinds();
std::vector<OpKind> class_kinds();
std::vector<OpKind> sync_kinds();
std::vector<OpKind> optimizer_kinds();
std::vector<OpKind> helper_kinds();

/// Bytes of a tensor as a number for a Demand.
inline double size(const TensorSpec& spec) { return static_cast<double>(spec.bytes()); }
inline double count(const TensorSpec& spec) { return static_cast<double>(spec.elements()); }

/// The demand of an op that does so many FLOP per element of its first input, and reads and writes as many bytes as
/// `forward` or `backward` tensors like it.
template <int flops, int forward, int backward = forward>
Demand per_element(const OpInstance& op, Pass pass, std::uint32_t /*grads*/) {
  return {flops * count(op.inputs[0]), (pass == Pass::backward ? backward : forward) * size(op.inputs[0])};
}
/// The demand of an op that computes in f32 whatever its input's dtype is: half precision is read and written as f32
/// first (and the input's gradient the other way round).
template <int flops, int forward, int backward = forward>
Demand per_element_in_f32(const OpInstance& op, Pass pass, std::uint32_t grads) {
  const double given = size(op.inputs[0]), wide = given / static_cast<double>(size_of(op.inputs[0].dtype)) *
                                                  static_cast<double>(size_of(at_least_f32(op.inputs[0].dtype)));
  Demand demand = per_element<flops, forward, backward>(op, pass, grads);
  demand.bytes *= wide / given;
  if (wide != given) demand.bytes += given + wide;
  return demand;
}

/// Adds autocast's casts: a matrix op multiplies copies of what isn't in that dtype, which autograd keeps for the
/// backward. The signature's first input and first parameter are what the backward reads.
inline void add_casts(const OpInstance& op, Signature& s) {
  const Dtype dtype = op.multiplied();
  const auto cast = [&](const char* name, TensorSpec spec, std::size_t read) {
    if (spec.dtype == dtype) return;
    spec.dtype = dtype;
    s.backward_reads[read].from = Operand::From::saved;
    s.backward_reads[read].index = static_cast<int>(s.saved.size());
    s.saved.push_back({fmt::format("{}.{}", name, to_string(dtype)), spec});
  };
  cast("input", op.inputs[0], 0);
  cast("weight", s.parameters[0].spec, 1);
}

/// The demand of a matrix product with the signature's first parameter. Both gradients cost `flops`, as the forward
/// does: every product of the forward appears once in either sum. What autocast casts, there and back, is read and
/// written once more.
inline Demand matrix_demand(const OpInstance& op, const Signature& s, double flops, Pass pass, std::uint32_t grads) {
  const double width = static_cast<double>(size_of(op.multiplied()));
  const double x = count(op.inputs[0]) * width, w = count(s.parameters[0].spec) * width, y = size(s.output);
  const double cast_x = op.inputs[0].dtype == op.multiplied() ? 0 : x + size(op.inputs[0]),
               cast_w = s.parameters[0].spec.dtype == op.multiplied() ? 0 : w + size(s.parameters[0].spec);
  const double kernels = 1 + (cast_x > 0 ? 1 : 0) + (cast_w > 0 ? 1 : 0);
  if (pass == Pass::forward) return {flops, x + w + y + cast_x + cast_w, kernels};
  const double input_grad = (grads & 1U) ? 1 : 0, weight_grad = (grads & kParameterGrads) ? 1 : 0;
  return {flops * (input_grad + weight_grad), y + input_grad * (w + x + cast_x) + weight_grad * (x + w + cast_w),
          1 + (cast_x > 0 ? input_grad : 0) + (cast_w > 0 ? weight_grad : 0)};
}

/// The rules of an op that treats all elements, or all planes, alike: cut along these of the first input's dimensions,
/// with as much of every other input; the output is cut alike.
std::vector<Rule> rules_along(const OpInstance& op, const std::vector<std::uint32_t>& dims);
/// All of the first input's dimensions.
std::vector<std::uint32_t> all_dims(const OpInstance& op);
/// "batch", "channels", "features", …: as the shape conventions of op.hpp call it.
std::string dim_name(const OpInstance& op, std::uint32_t dim);
/// The rules of linear and conv2d, whose weight is [output, input, …]: cut by samples,
/// output or input features or channels.
std::vector<Rule> matrix_rules(const OpInstance& op, std::string_view size_attribute);
/// The placements of an op's weight, and of its bias where its attribute "bias" says so.
std::vector<Placement> weight_and_bias(const OpInstance& op, const Placement& weight, const Placement& bias);
/// The rules of a loss: the mean over the samples.
std::vector<Rule> loss_rules(const OpInstance& op);

/// The storage of the output of an op with the attribute "inplace".
inline OutputStorage fresh_or_in_place(const OpInstance& op) {
  return op.integer("inplace") ? OutputStorage::in_place : OutputStorage::fresh;
}

/// ConfigError unless the first input has `least` to `most` dimensions.
inline void need_rank(const OpInstance& op, std::size_t least, std::size_t most, std::string_view expected) {
  const TensorSpec& found = op.inputs[0];
  if (found.shape.size() >= least && found.shape.size() <= most) return;
  std::string sizes = "batch";  // whatever it is
  for (std::size_t dim = 1; dim < found.shape.size(); ++dim) sizes += fmt::format(", {}", found.shape[dim]);
  throw ConfigError("op '{}' needs an input {}, found [{}]{}", op.kind->name, expected, sizes,
                    most == 2 && found.shape.size() > 2 ? "; put a 'flatten' before it" : "");
}
inline void need_rank(const OpInstance& op, std::size_t rank, std::string_view expected) {
  need_rank(op, rank, rank, expected);
}
/// ConfigError unless the two inputs are alike; `inputs` says what they are.
inline void need_one_shape(const OpInstance& op, std::string_view inputs) {
  if (op.inputs[0] != op.inputs[1])
    throw ConfigError("op '{}' needs {} of one shape, found {} and {}", op.kind->name, inputs, to_string(op.inputs[0]),
                      to_string(op.inputs[1]));
}

}  // namespace sim
