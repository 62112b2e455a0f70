// PyTorch's nn.DataParallel (R5): the first device has the parameters and the batch; each step it scatters the batch,
// broadcasts the parameters, gathers the outputs for the loss, and sums the gradients. The last part of a batch that
// the devices don't divide is smaller (torch.chunk).
#include "sim/strategy/layout.hpp"

namespace sim {

Layout data_parallel(const Model& model, const Strategy& strategy) {
  Layout layout{.mesh = {{{"dp", strategy.dp, Rest::chunks}}},
                .input = {rooted(0)},
                .target = {rooted(0)},
                .rows = {shard(0)},
                .parameters = {.at_root = true,
                               .first_bucket_MiB = strategy.bucket_MiB,
                               .bucket_MiB = strategy.bucket_MiB,
                               .broadcast_buffers = true},
                .rooted = true};
  layout.play.assign(model.nodes.size(), {{.rule = "batch"}});
  layout.play.back() = {{.at = 0}};
  return layout;
}

}  // namespace sim
