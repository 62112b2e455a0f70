// How: a parallel strategy, as a text and as degrees.
//
//   Strategy s = parse_strategy("pipeline,pp=2,split_size=4,cut=r1", model);     // preset, then overrides
//   Strategy d = parse_strategy("dp=2,pp=2,microbatches=4", model);              // degrees alone do too
//   s.text();                                  // canonical: parse_strategy makes the same strategy of it again
//
// A preset (a row of table.cpp) says which keys it takes, what they are at least, and what Layout (layout.hpp) it makes
// of them; lowering knows layouts, no names.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.hpp"
#include "sim/table.hpp"

namespace sim {

struct Strategy {
  std::string preset;
  std::uint32_t dp = 1;            // data-parallel replicas
  std::uint32_t pp = 1;            // pipeline or model-parallel stages
  std::string schedule = "gpipe";  // an entry of schedule_table; its default where there is one microbatch only
  std::int64_t microbatches = 1;   // per replica and step
  std::uint32_t threads = 1;       // of each rank, each with a CPU core for itself
  /// Last node (or name prefix: "layer2" = its last node) of every stage but the last; empty: balanced by predicted
  /// cost.
  std::vector<std::string> cut;
  double first_bucket_MiB = 1, bucket_MiB = 25;  // DDP's gradient buckets; PyTorch's defaults
  bool overlap = false;           // of replicas: a bucket goes when its gradients are complete, not after the backward
  bool broadcast_buffers = true;  // DDP: rank 0's batch-norm buffers go to all before each forward
  // HyPar: the hierarchy's branches, outermost first; by level a choice (dp, in, out) for all layers or for each.
  std::vector<std::uint32_t> levels;
  std::vector<std::vector<std::string>> layers;
  bool rooted = false;     // sums at the first device, then to all
  std::uint32_t idle = 0;  // devices asked for that get no sample (data_parallel)

  [[nodiscard]] std::uint32_t ranks() const;
  [[nodiscard]] std::string text() const;
};

struct Layout;

struct StrategyKind {
  std::string_view name;
  std::string_view description;  // one line
  std::string_view example;  // a small text that works for every model of even batch: what benches and grids execute
  std::vector<std::string_view> keys;  // keys its text may set; an unknown one is an error
  /// What the degrees are where the text doesn't say, and at least: with less
  /// it would be another strategy (ConfigError).
  std::uint32_t least_dp = 1, least_pp = 1;
  std::int64_t microbatches = 1;  // where the text doesn't say
  double bucket_MiB = 25;
  bool overlap = false;           // of replicas, where the text doesn't say
  bool needs_equal_parts = true;  // dp must divide the batch
  Layout (*layout)(const Model&, const Strategy&) = nullptr;

  [[nodiscard]] bool takes(std::string_view key) const { return std::ranges::find(keys, key) != keys.end(); }
};
const Table<StrategyKind>& strategy_table();

/// ConfigError where the text is none, whatever the model: an unknown preset or key.
void check_strategy_text(std::string_view text);

/// Keys: dp, pp, schedule, microbatches or split_size (samples per microbatch), cut (a preset of the model, `balanced`,
/// or node names joined by '+'), first_bucket_MiB, bucket_MiB, overlap (0 or 1), broadcast_buffers (0 or 1), levels
/// (2x2), layers (choices joined by '+', 3*dp for dp+dp+dp, levels by '/'), form (derived or rooted), threads (of each
/// rank). ConfigError when the text is wrong or the model's global_batch can't be divided so.
Strategy parse_strategy(std::string_view text, const Model& model);

/// The model that a strategy plays, where `device_batch` is given: as many samples for each of its data-parallel
/// replicas. Else the model itself.
Model with_global_batch(const Model& model, std::string_view strategy);

/// What a user should know of it beside its text; often nothing.
std::string remark_on(const Strategy& strategy, const Model& model);

/// The stage of every node, non-decreasing: which stage executes it. `strategy.cut` names, or cuts balanced by the
/// roofline time of forward + backward on a generic device. ConfigError for a cut name that doesn't exist (lists
/// similar ones) or cuts out of order.
std::vector<std::uint32_t> stages_of(const Model& model, const Strategy& strategy);

}  // namespace sim
