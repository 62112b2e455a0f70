// dp: each rank plays all nodes with its part of the samples.
#include "sim/strategy/axis/axis.hpp"

namespace sim {

namespace {

void add_replicas(Layout& layout, const Model& /*model*/, const Strategy& strategy) {
  const bool is_cut = strategy.dp > 1;
  layout.add_axis({"dp", strategy.dp}, is_cut ? shard(0) : replicate(),
                  [&](std::size_t) { return Layout::Play{.rule = is_cut ? "batch" : ""}; });
}

}  // namespace

const AxisKind kReplicas{"dp", add_replicas};

}  // namespace sim
