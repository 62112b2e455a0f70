#include <algorithm>
#include <array>

#include "sim/strategy/layout.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

const Table<StrategyKind>& strategy_table() {
  static const std::array<StrategyKind, 7> kinds{
      {{.name = "single",
        .description = "one device; microbatches > 1 accumulate gradients",
        .example = "single",
        .keys = {"schedule", "microbatches", "split_size"},
        .layout = replicas_of_stages},
       // Layer-wise model parallel as in PyTorch's tutorial: the stages work one after the other, one is busy at a time.
       {.name = "model_parallel",
        .description = "layers cut into stages, one per rank; the whole batch passes through them in turn",
        .example = "model_parallel,pp=2",
        .keys = {"pp", "cut"},
        .least_pp = 2,
        .layout = replicas_of_stages},
       {.name = "pipeline",
        .description = "model parallel with the batch split into microbatches, so that stages work at the same time",
        .example = "pipeline,pp=2,microbatches=2",
        .keys = {"pp", "cut", "schedule", "microbatches", "split_size"},
        .least_pp = 2,
        .microbatches = 4,
        .layout = replicas_of_stages},
       // PyTorch's DistributedDataParallel: with overlap=1 as it is, gradients all-reduced bucket by bucket while the
       // backward goes on; without, all of them after it (blocking): what the overlap is worth.
       {.name = "ddp",
        .description =
            "a replica per rank, each with its part of the batch; bucketed gradient all-reduce after the backward, "
            "or during it (overlap=1)",
        .example = "ddp,dp=2",
        .keys = {"dp", "first_bucket_MiB", "bucket_MiB", "overlap", "broadcast_buffers"},
        .least_dp = 2,
        .layout = replicas_of_stages},
       {.name = "data_parallel",
        .description =
            "nn.DataParallel: the first device has parameters and batch, and sends every step what the others need",
        .example = "data_parallel,dp=2",
        .keys = {"dp", "bucket_MiB"},
        .least_dp = 2,
        .bucket_MiB = 10,
        .needs_equal_parts = false,
        .layout = data_parallel},
       {.name = "hypar",
        .description =
            "HyPar: each layer, on each level of devices, cut by samples (dp), input (in) or output channels (out)",
        .example = "hypar,levels=2,layers=out",
        .keys = {"levels", "layers", "form"},
        .layout = hypar},
       // What a text without a preset's name means: "dp=2,pp=2,microbatches=4".
       {.name = "mesh",
        .description = "any combination of degrees: dp replicas of a pipeline of pp stages",
        .example = "mesh,dp=2,pp=2,microbatches=2",
        .keys = {"dp", "pp", "cut", "schedule", "microbatches", "split_size", "first_bucket_MiB", "bucket_MiB",
                 "overlap", "broadcast_buffers"},
        .layout = replicas_of_stages}}};
  static const Table<StrategyKind> table("strategy", kinds);
  return table;
}

std::uint32_t Layout::stage_axis() const {
  std::uint32_t axis = 0;
  const auto is_stage = [&](const std::vector<Play>& of_node) { return of_node[axis].at != Play::kAll; };
  while (axis < mesh.axes.size() && !std::ranges::all_of(play, is_stage)) ++axis;
  return axis;
}

Layout layout_of(const Model& model, const Strategy& strategy) {
  return strategy_table().at(strategy.preset.empty() ? "mesh" : strategy.preset).layout(model, strategy);
}

}  // namespace sim
