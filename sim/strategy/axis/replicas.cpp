// dp: each rank plays all nodes with its part of the samples. Along it ZeRO cuts what it cuts, or along the inner one of
// two axes (replicas, shard), in which every replica has all of it (HSDP).
#include "sim/strategy/axis/axis.hpp"

namespace sim {

namespace {

void add_replicas(Layout& layout, const Model& /*model*/, const Strategy& strategy) {
  const auto add = [&](const char* name, std::uint32_t size) {
    const bool is_cut = size > 1;
    layout.add_axis({name, size}, is_cut ? shard(0) : replicate(),
                    [&](std::size_t) { return Layout::Play{.rule = is_cut ? "batch" : ""}; });
  };
  if (strategy.shard > 0) {
    add("replicas", strategy.dp / strategy.shard);
    add("shard", strategy.shard);
  } else {
    add("dp", strategy.dp);
  }
  if (layout.parameters.cut) layout.parameters.cut->axis = static_cast<std::uint32_t>(layout.mesh.axes.size()) - 1;
}

}  // namespace

const AxisKind kReplicas{"dp", add_replicas};

}  // namespace sim
