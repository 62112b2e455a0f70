#include <array>

#include "sim/strategy/strategy.hpp"

namespace sim {

const Table<StrategyKind>& strategy_table() {
  static const std::array<StrategyKind, 5> kinds{
      {{.name = "single",
        .description = "one device; microbatches > 1 accumulate gradients",
        .example = "single",
        .keys = {"schedule", "microbatches", "split_size"}},
       // Layer-wise model parallel as in PyTorch's tutorial: the stages work one after the other, one is busy at a time.
       {.name = "model_parallel",
        .description = "layers cut into stages, one per rank; the whole batch passes through them in turn",
        .example = "model_parallel,pp=2",
        .keys = {"pp", "cut"},
        .least_pp = 2},
       {.name = "pipeline",
        .description = "model parallel with the batch split into microbatches, so that stages work at the same time",
        .example = "pipeline,pp=2,microbatches=2",
        .keys = {"pp", "cut", "schedule", "microbatches", "split_size"},
        .least_pp = 2,
        .microbatches = 4},
       // PyTorch's DistributedDataParallel: with overlap=1 as it is, gradients all-reduced bucket by bucket while the
       // backward goes on; without, all of them after it (blocking): what the overlap is worth.
       {.name = "ddp",
        .description =
            "a replica per rank, each with its part of the batch; bucketed gradient all-reduce after the backward, "
            "or during it (overlap=1)",
        .example = "ddp,dp=2",
        .keys = {"dp", "first_bucket_MiB", "bucket_MiB", "overlap", "broadcast_buffers"},
        .least_dp = 2},
       // What a text without a preset's name means: "dp=2,pp=2,microbatches=4".
       {.name = "mesh",
        .description = "any combination of degrees: dp replicas of a pipeline of pp stages",
        .example = "mesh,dp=2,pp=2,microbatches=2",
        .keys = {"dp", "pp", "cut", "schedule", "microbatches", "split_size", "first_bucket_MiB", "bucket_MiB",
                 "overlap", "broadcast_buffers"}}}};
  static const Table<StrategyKind> table("strategy", kinds);
  return table;
}

}  // namespace sim
