#include "sim/op/kinds.hpp"

namespace sim {
namespace {

/// The output is a tensor that exists already (a bucket's slice, a gradient) with the input's number of elements.
Signature signature(const OpInstance& op) {
  Signature s;
  s.output = op.inputs[0];
  return s;
}

Demand demand(const OpInstance& op, Pass, std::uint32_t) { return {count(op.inputs[0]), 2 * size(op.inputs[0])}; }

}  // namespace

OpKind scaled_copy_kind() {
  return {.name = "scaled_copy",
          .equation = "y = scale * x (into and out of communication buckets)",
          .role = OpRole::helper,
          .signature = signature,
          .demand = demand};
}

}  // namespace sim
