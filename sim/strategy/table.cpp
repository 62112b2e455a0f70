#include <array>

#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/strategy/strategy.hpp"
#include "sim/strategy/zero.hpp"

namespace sim {
namespace {

/// Megatron's order: neighbours share layers, then gradients.
const std::vector<const AxisKind*> kGrid{&kStages, &kReplicas, &kTensorParts};

ParameterCycle ddp_cycle(const Model& model, const Strategy& strategy) {
  return {.first_bucket_MiB = strategy.first_bucket_MiB,
          .bucket_MiB = strategy.bucket_MiB,
          .overlap = strategy.overlap,
          .every_microbatch = strategy.sums_each_microbatch && strategy.microbatches > 1,
          .is_mean = true,
          .broadcast_buffers = strategy.broadcast_buffers && strategy.dp > 1,
          .cut = parameter_cut(model, strategy)};
}

/// `more`: those that only some of these presets take, or that have a number of their own there.
std::vector<StrategyKind::Key> zero_keys(int stage, std::vector<StrategyKind::Key> more, bool is_hybrid = false) {
  std::vector<StrategyKind::Key> keys{{"zero", stage}, "microbatches", "split_size", "accumulate",
                                      "recompute",     "threads",      "bodies"};
  if (is_hybrid)
    keys.insert(keys.begin(), {{"replicas", 2}, {"shard", 2}});
  else
    keys.insert(keys.begin(), {"dp", 2});
  const auto add = [&](const char* key) {
    if (std::ranges::find(more, key, &StrategyKind::Key::option) == more.end()) keys.emplace_back(key);
  };
  if (stage < 3) add("wire");
  for (const char* key : {"units", "overlap", "broadcast_buffers", "param_dtype", "reduce_dtype"}) add(key);
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

/// A pipeline by the name of its schedule.
StrategyKind named_pipeline(std::string_view name, std::string_view description, std::string_view schedule = "") {
  StrategyKind kind{.name = name,
                    .description = description,
                    .example = name,
                    .keys = {{"pp", 2}, "cut", {"microbatches", 4}, "split_size", "recompute", "threads", "bodies"},
                    .is_proposed = false,
                    .axes = kGrid,
                    .parameters = ddp_cycle,
                    .schedule = schedule.empty() ? name : schedule};
  if (schedule_table().at(kind.schedule).most_chunks > 1) kind.keys.emplace_back("chunks");
  return kind;
}

/// heat/nn/data_parallel.py.
template <bool delayed>
ParameterCycle heat_cycle(const Model& /*model*/, const Strategy& /*strategy*/) {
  return {.single = true, .delayed = delayed, .is_mean = true};
}

ParameterCycle data_parallel_cycle(const Model& /*model*/, const Strategy& strategy) {
  return {.at_root = true,
          .first_bucket_MiB = strategy.bucket_MiB,
          .bucket_MiB = strategy.bucket_MiB,
          .broadcast_buffers = true};
}

}  // namespace

const Table<StrategyKind>& strategy_table() {
  static const auto kinds = std::to_array<StrategyKind>(
      {{.name = "single",
        .description = "one device; microbatches > 1 accumulate gradients (F B F B)",
        .example = "single",
        .keys = {"schedule", "microbatches", "split_size", "recompute", "threads", "bodies"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       // Layer-wise model parallel as in PyTorch's tutorial: the stages work one after the other,
       // one is busy at a time.
       {.name = "model_parallel",
        .description = "layers cut into stages, one per rank; the whole batch passes through them in turn",
        .example = "model_parallel,pp=2",
        .keys = {{"pp", 2}, "cut", "recompute", "threads", "bodies"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "pipeline",
        .description = "model parallel with the batch split into microbatches, so that stages work at the same time",
        .example = "pipeline,pp=2,microbatches=2",
        .keys = {{"pp", 2},
                 "cut",
                 "schedule",
                 {"microbatches", 4},
                 "split_size",
                 "chunks",
                 "recompute",
                 "threads",
                 "bodies"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       named_pipeline("gpipe", "a pipeline of all forwards, then all backwards (pipeline, schedule=gpipe)"),
       named_pipeline("1f1b", "a pipeline of forwards and backwards in turn (pipeline, schedule=1f1b)"),
       named_pipeline("interleaved", "1f1b whose ranks have several stages each (pipeline, schedule=interleaved)"),
       named_pipeline("zero_bubble",
                      "1f1b whose bubble is filled with parameters' gradients (ZB-H1: pipeline, schedule=zb_h1)",
                      "zb_h1"),
       named_pipeline("zbv", "zero bubble whose ranks have two stages, there and back (pipeline, schedule=zbv)"),
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
                 "accumulate",
                 "recompute",
                 "threads",
                 "bodies"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "ddp_blocking",
        .description = "the same, but the buckets wait for the end of the backward: what the overlap is worth",
        .example = "ddp_blocking,dp=2",
        .keys = {{"dp", 2},
                 "microbatches",
                 "split_size",
                 "first_bucket_MiB",
                 "bucket_MiB",
                 "broadcast_buffers",
                 "accumulate",
                 "recompute",
                 "threads",
                 "bodies"},
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "heat",
        .description =
            "Heat's DataParallel as it is by default: each parameter's gradient is all-reduced by itself while the "
            "training goes on, and waited for, and its layer updated, where the next step's forward needs it",
        .example = "heat,dp=2",
        .keys = {{"dp", 2}, "threads", {"bodies", 8}},
        .is_proposed = false,
        .not_tried = "Heat's loop instead of PyTorch's",
        .axes = kGrid,
        .parameters = heat_cycle<true>},
       {.name = "heat_blocking",
        .description =
            "Heat's DataParallel with blocking_parameter_updates: the backward stands still for each parameter's "
            "all-reduce",
        .example = "heat_blocking,dp=2",
        .keys = {{"dp", 2}, "threads", "bodies"},
        .is_proposed = false,
        .not_tried = "Heat's loop instead of PyTorch's",
        .axes = kGrid,
        .parameters = heat_cycle<false>},
       {.name = "daso",
        .description = "Heat's DASO: DDP inside each node, and nodes that go their own ways; in turn one rank of each "
                       "averages its "
                       "parameters with the other nodes' while the training goes on",
        .example = "daso,nodes=2,local=2",
        .keys = {{"nodes", 2},
                 {"local", 2},
                 "skips",
                 "wait",
                 "local_skips",
                 "chunk",
                 "downcast",
                 "first_bucket_MiB",
                 "bucket_MiB",
                 {"overlap", 1},
                 "broadcast_buffers",
                 "threads",
                 {"bodies", 2}},
        .is_proposed = false,
        .not_tried = "nodes train apart, with other results",
        .axes = {&kNodes},
        .parameters = ddp_cycle},
       {.name = "data_parallel",
        .description =
            "nn.DataParallel: the first device has parameters and batch, and sends every step what the others need",
        .example = "data_parallel,dp=2",
        .keys = {{"dp", 2}, {"bucket_MiB", 10}, "threads", "bodies"},
        .needs_equal_parts = false,
        .axes = {&kChunks},
        .parameters = data_parallel_cycle,
        .peer = PeerKind::data_parallel,
        .also = "dp"},
       // ZeRO: what replicas have in common is cut among them.
       {.name = "zero1",
        .description =
            "ZeRO 1 as Megatron's distributed optimizer: gradients are reduce-scattered after the backward, each rank "
            "updates its part, and weights are all-gathered",
        .example = "zero1,dp=2",
        .keys = zero_keys(1, {}),
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "zero2",
        .description = "ZeRO 2: gradients are reduce-scattered while the backward goes on, also each microbatch's",
        .example = "zero2,dp=2",
        .keys = zero_keys(2, {{"overlap", 1}}),
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "zero3",
        .description =
            "ZeRO 3 as FSDP's flat parameters: weights are cut, too, and all-gathered before they're used, block by "
            "block",
        .example = "zero3,dp=2",
        .keys = zero_keys(3, {{"overlap", 1}, "prefetch", "reshard"}),
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "fsdp",
        .description =
            "PyTorch's fully_shard (FSDP2): as zero3, but each parameter is cut by its rows, and copied out of what is "
            "gathered",
        .example = "fsdp,dp=2",
        .keys = zero_keys(3, {{"overlap", 1}, "prefetch", "reshard", {"flat", 0}}),
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "hsdp",
        .description =
            "hybrid sharding: fsdp among the ranks of a group (a node), whose sums are all-reduced between the groups",
        .example = "hsdp,replicas=2,shard=2",
        .keys = zero_keys(3, {{"overlap", 1}, "prefetch", "reshard", {"flat", 0}}, /*is_hybrid=*/true),
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "deepspeed_stage_1",
        .description =
            "DeepSpeed's stage 1 as Lightning sets it: gradients are all-reduced after the backward, each rank updates "
            "its part, and weights are all-gathered",
        .example = "deepspeed_stage_1,dp=2",
        .keys = zero_keys(1, {{"units", "2e8"}, {"wire", "all"}, {"param_dtype", "half"}}),
        .is_proposed = false,
        .not_tried = "ZeRO as DeepSpeed sets it: see zero1 to zero3",
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "deepspeed_stage_2",
        .description = "the same, but buckets are all-reduced as they are full, and each rank keeps its part only",
        .example = "deepspeed_stage_2,dp=2",
        .keys = zero_keys(2, {{"units", "2e8"}, {"wire", "all"}, {"param_dtype", "half"}}),
        .is_proposed = false,
        .not_tried = "ZeRO as DeepSpeed sets it: see zero1 to zero3",
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "deepspeed_stage_3",
        .description = "DeepSpeed's stage 3 as Lightning sets it: zero3 by layer, but small parameters stay whole, and "
                       "weights that are used again soon are kept",
        .example = "deepspeed_stage_3,dp=2",
        .keys = zero_keys(3, {{"units", "layer"},
                              "prefetch_elements",
                              "persistence",
                              "reuse_elements",
                              "reshard",
                              {"param_dtype", "half"}}),
        .is_proposed = false,
        .not_tried = "ZeRO as DeepSpeed sets it: see zero1 to zero3",
        .axes = kGrid,
        .parameters = ddp_cycle},
       {.name = "tp",
        .description =
            "tensor parallel: layers cut by output and by input channels in turn (Megatron's column and row parallel), "
            "and a sum after every second one",
        .example = "tp,tp=2",
        .keys = {{"tp", 2}, "sp", "microbatches", "split_size", "recompute", "threads", "bodies"},
        .axes = kGrid,
        .parameters = ddp_cycle,
        .peer = PeerKind::parts},
       {.name = "hypar",
        .description =
            "HyPar: each layer, on each level of devices, cut by samples (dp), input (in) or output channels (out), "
            "such as levels=2x2,layers=3*dp+in/out: 2 x 2 devices, levels apart by /, layers by +, one for all alike",
        .example = "hypar,levels=2,layers=out",
        .keys = {"levels", "layers", "form", "microbatches", "split_size", "recompute", "threads", "bodies"},
        .axes = {&kLevels},
        .parameters = [](const Model&, const Strategy&) { return ParameterCycle{.in_place = true}; },
        .peer = PeerKind::parts},
       // What a text without a preset's name means: "dp=2,pp=2,microbatches=4".
       {.name = "mesh",
        .description =
            "any combination of degrees: a pipeline of pp stages, each of dp replicas of layers cut tp times, whose "
            "states may be cut among the replicas (zero)",
        .example = "mesh,dp=2,pp=2,microbatches=2",
        .keys = {"dp",
                 "pp",
                 "tp",
                 "sp",
                 "order",
                 "cut",
                 "schedule",
                 "microbatches",
                 "split_size",
                 "chunks",
                 "first_bucket_MiB",
                 "bucket_MiB",
                 {"overlap", 1},
                 "broadcast_buffers",
                 "zero",
                 "replicas",
                 "shard",
                 "units",
                 "prefetch",
                 "reshard",
                 "flat",
                 "param_dtype",
                 "reduce_dtype",
                 "accumulate",
                 "wire",
                 "recompute",
                 "threads",
                 "bodies"},
        .axes = kGrid,
        .parameters = ddp_cycle}});
  static const Table<StrategyKind> table("strategy", kinds);
  return table;
}

}  // namespace sim
