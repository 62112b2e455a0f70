#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Demand demand(const OpInstance& op, Pass, std::uint32_t) { return {count(op.inputs[0]), 2 * size(op.inputs[0])}; }

}  // namespace

OpKind scaled_copy_kind() {
  return {.name = "scaled_copy",
          .equation = "y = scale * x (into and out of communication buckets)",
          .role = OpRole::helper,
          .signature = like_input,  // a bucket's slice, a gradient: as many elements
          .demand = demand};
}

}  // namespace sim
