#include "sim/strategy/kinds.hpp"

namespace sim {

// What a text without a preset's name means: "dp=2,pp=2,microbatches=4".
StrategyKind mesh_kind() {
  return {.name = "mesh",
          .description = "any combination of degrees: dp replicas of a pipeline of pp stages",
          .example = "mesh,dp=2,pp=2,microbatches=2",
          .keys = {"dp", "pp", "cut", "schedule", "microbatches", "split_size", "first_bucket_MiB", "bucket_MiB",
                   "overlap", "broadcast_buffers"}};
}

}  // namespace sim
