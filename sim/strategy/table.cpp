#include <array>

#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {
namespace {

/// Megatron's order: neighbours share layers, then gradients.
const std::vector<const AxisKind*> kGrid{&kStages, &kReplicas, &kTensorParts};

ParameterCycle ddp_cycle(const Strategy& strategy) {
  return {.first_bucket_MiB = strategy.first_bucket_MiB,
          .bucket_MiB = strategy.bucket_MiB,
          .overlap = strategy.overlap,
          .is_mean = true,
          .broadcast_buffers = strategy.broadcast_buffers && strategy.dp > 1};
}

ParameterCycle data_parallel_cycle(const Strategy& strategy) {
  return {.at_root = true,
          .first_bucket_MiB = strategy.bucket_MiB,
          .bucket_MiB = strategy.bucket_MiB,
          .broadcast_buffers = true};
}

}  // namespace

const Table<StrategyKind>& strategy_table() {
  static const std::array<StrategyKind, 9> kinds{
      {{.name = "single",
        .description = "one device; microbatches > 1 accumulate gradients (F B F B)",
        .example = "single",
        .keys = {"schedule", "microbatches", "split_size", "threads"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       // Layer-wise model parallel as in PyTorch's tutorial: the stages work one after the other,
       // one is busy at a time.
       {.name = "model_parallel",
        .description = "layers cut into stages, one per rank; the whole batch passes through them in turn",
        .example = "model_parallel,pp=2",
        .keys = {{"pp", 2}, "cut", "threads"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "pipeline",
        .description = "model parallel with the batch split into microbatches, so that stages work at the same time",
        .example = "pipeline,pp=2,microbatches=2",
        .keys = {{"pp", 2}, "cut", "schedule", {"microbatches", 4}, "split_size", "threads"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       // Over microbatches gradients add up; they travel in the last one's backward, as with DDP's no_sync.
       {.name = "ddp",
        .description =
            "PyTorch's DistributedDataParallel: a replica per rank, each with its part of the batch; gradients are "
            "all-reduced bucket by bucket while the backward goes on",
        .example = "ddp,dp=2",
        .keys = {{"dp", 2},
                 "microbatches",
                 "split_size",
                 "first_bucket_MiB",
                 "bucket_MiB",
                 {"overlap", 1},
                 "broadcast_buffers",
                 "threads"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "ddp_blocking",
        .description = "the same, but the buckets wait for the end of the backward: what the overlap is worth",
        .example = "ddp_blocking,dp=2",
        .keys =
            {{"dp", 2}, "microbatches", "split_size", "first_bucket_MiB", "bucket_MiB", "broadcast_buffers", "threads"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "data_parallel",
        .description =
            "nn.DataParallel: the first device has parameters and batch, and sends every step what the others need",
        .example = "data_parallel,dp=2",
        .keys = {{"dp", 2}, {"bucket_MiB", 10}, "threads"},
        .needs_equal_parts = false,
        .axes = {&kChunks},
        .parameters = data_parallel_cycle,
        .peer = PeerKind::data_parallel},
       {.name = "tp",
        .description =
            "tensor parallel: layers cut by output and by input channels in turn (Megatron's column and row parallel), "
            "and a sum after every second one",
        .example = "tp,tp=2",
        .keys = {{"tp", 2}, "microbatches", "split_size", "threads"},
        .axes = kGrid,
        .parameters = ddp_cycle,
        .peer = PeerKind::parts},
       {.name = "hypar",
        .description =
            "HyPar: each layer, on each level of devices, cut by samples (dp), input (in) or output channels (out), "
            "such as levels=2x2,layers=3*dp+in/out: 2 x 2 devices, levels apart by /, layers by +, one for all alike",
        .example = "hypar,levels=2,layers=out",
        .keys = {"levels", "layers", "form", "threads"},
        .axes = {&kLevels},
        .parameters = [](const Strategy&) { return ParameterCycle{.in_place = true}; },
        .peer = PeerKind::parts},
       // What a text without a preset's name means: "dp=2,pp=2,microbatches=4".
       {.name = "mesh",
        .description =
            "any combination of degrees: a pipeline of pp stages, each of dp replicas of layers cut tp times",
        .example = "mesh,dp=2,pp=2,microbatches=2",
        .keys = {"dp",
                 "pp",
                 "tp",
                 "order",
                 "cut",
                 "schedule",
                 "microbatches",
                 "split_size",
                 "first_bucket_MiB",
                 "bucket_MiB",
                 {"overlap", 1},
                 "broadcast_buffers",
                 "threads"},
        .axes = kGrid,
        .parameters = ddp_cycle}}};
  static const Table<StrategyKind> table("strategy", kinds);
  return table;
}

}  // namespace sim
