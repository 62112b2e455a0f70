#include "sim/strategy/kinds.hpp"

namespace sim {

// PyTorch's DistributedDataParallel: with overlap=1 as it is, gradients all-reduced bucket by bucket while the backward
// goes on; without, all of them after it (blocking): what the overlap is worth.
StrategyKind ddp_kind() {
  return {.name = "ddp",
          .description =
              "a replica per rank, each with its part of the batch; bucketed gradient all-reduce after the backward, "
              "or during it (overlap=1)",
          .example = "ddp,dp=2",
          .keys = {"dp", "first_bucket_MiB", "bucket_MiB", "overlap", "broadcast_buffers"},
          .defaults = [](Strategy& s) { s.dp = 2; },
          .check =
              [](const Strategy& s) {
                if (s.dp < 2) throw ConfigError("strategy 'ddp': dp={} must be at least 2", s.dp);
              }};
}

}  // namespace sim
