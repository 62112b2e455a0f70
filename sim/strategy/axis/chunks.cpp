// dp of PyTorch's nn.DataParallel (R5): the first device has the batch, scatters it each step and gathers the outputs for
// the loss. The last part of a batch that the devices don't divide is smaller (torch.chunk).
#include "sim/strategy/axis/axis.hpp"

namespace sim {

namespace {

void add_chunks(Layout& layout, const Model& model, const Strategy& strategy) {
  const std::size_t loss = model.nodes.size() - 1;
  layout.add_axis({"dp", strategy.dp, Rest::chunks}, shard(0),
                  [&](std::size_t n) { return n == loss ? Layout::Play{.at = 0} : Layout::Play{.rule = "batch"}; });
  layout.input.back() = layout.target.back() = rooted(0);
  layout.rooted = true;
}

}  // namespace

const AxisKind kChunks{"dp", add_chunks};

}  // namespace sim
