#include "sim/strategy/kinds.hpp"

namespace sim {

// PyTorch's DistributedDataParallel, gradients all-reduced after the backward (blocking).
StrategyKind ddp_kind() {
  return {.name = "ddp",
          .description =
              "a replica per rank, each with its part of the batch; bucketed gradient all-reduce after the backward",
          .example = "ddp,dp=2",
          .keys = {"dp", "first_bucket_MiB", "bucket_MiB", "broadcast_buffers"},
          .defaults = [](Strategy& s) { s.dp = 2; },
          .check =
              [](const Strategy& s) {
                if (s.dp < 2) throw ConfigError("strategy 'ddp': dp={} must be at least 2", s.dp);
              }};
}

}  // namespace sim
