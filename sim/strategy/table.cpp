#include <algorithm>
#include <array>

#include "sim/strategy/layout.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

const Table<StrategyKind>& strategy_table() {
  static const std::array<StrategyKind, 8> kinds{
      {{.name = "single",
        .description = "one device; microbatches > 1 accumulate gradients (F B F B)",
        .example = "single",
        .keys = {{"schedule"}, {"microbatches"}, {"split_size"}, {"threads"}},
        .layout = replicas_of_stages},
       // Layer-wise model parallel as in PyTorch's tutorial: the stages work one after the other,
       // one is busy at a time.
       {.name = "model_parallel",
        .description = "layers cut into stages, one per rank; the whole batch passes through them in turn",
        .example = "model_parallel,pp=2",
        .keys = {{"pp", 2}, {"cut"}, {"threads"}},
        .layout = replicas_of_stages},
       {.name = "pipeline",
        .description = "model parallel with the batch split into microbatches, so that stages work at the same time",
        .example = "pipeline,pp=2,microbatches=2",
        .keys = {{"pp", 2}, {"cut"}, {"schedule"}, {"microbatches", 4}, {"split_size"}, {"threads"}},
        .layout = replicas_of_stages},
       // Over microbatches gradients add up; they travel in the last one's backward, as with DDP's no_sync.
       {.name = "ddp",
        .description =
            "PyTorch's DistributedDataParallel: a replica per rank, each with its part of the batch; gradients are "
            "all-reduced bucket by bucket while the backward goes on",
        .example = "ddp,dp=2",
        .keys = {{"dp", 2},
                 {"microbatches"},
                 {"split_size"},
                 {"first_bucket_MiB"},
                 {"bucket_MiB"},
                 {"overlap", 1},
                 {"broadcast_buffers"},
                 {"threads"}},
        .layout = replicas_of_stages},
       {.name = "ddp_blocking",
        .description = "the same, but the buckets wait for the end of the backward: what the overlap is worth",
        .example = "ddp_blocking,dp=2",
        .keys = {{"dp", 2},
                 {"microbatches"},
                 {"split_size"},
                 {"first_bucket_MiB"},
                 {"bucket_MiB"},
                 {"broadcast_buffers"},
                 {"threads"}},
        .layout = replicas_of_stages},
       {.name = "data_parallel",
        .description =
            "nn.DataParallel: the first device has parameters and batch, and sends every step what the others need",
        .example = "data_parallel,dp=2",
        .keys = {{"dp", 2}, {"bucket_MiB", 10}, {"threads"}},
        .needs_equal_parts = false,
        .layout = data_parallel},
       {.name = "hypar",
        .description =
            "HyPar: each layer, on each level of devices, cut by samples (dp), input (in) or output channels (out), "
            "such as levels=2x2,layers=3*dp+in/out: 2 x 2 devices, levels apart by /, layers by +, one for all alike",
        .example = "hypar,levels=2,layers=out",
        .keys = {{"levels"}, {"layers"}, {"form"}, {"threads"}},
        .layout = hypar},
       // What a text without a preset's name means: "dp=2,pp=2,microbatches=4".
       {.name = "mesh",
        .description = "any combination of degrees: dp replicas of a pipeline of pp stages",
        .example = "mesh,dp=2,pp=2,microbatches=2",
        .keys = {{"dp"},
                 {"pp"},
                 {"cut"},
                 {"schedule"},
                 {"microbatches"},
                 {"split_size"},
                 {"first_bucket_MiB"},
                 {"bucket_MiB"},
                 {"overlap", 1},
                 {"broadcast_buffers"},
                 {"threads"}},
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
