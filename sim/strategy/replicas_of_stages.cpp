// single, model_parallel, pipeline, ddp and their mesh: dp replicas of a pipeline of pp stages. A rank's replica is its
// coordinate along dp, its stage that along pp; a stage's ranks are its roles' neighbours along dp.
#include <algorithm>
#include <limits>

#include "sim/error.hpp"
#include "sim/strategy/layout.hpp"

namespace sim {
namespace {

/// Roofline seconds of a generic device (50 GFLOP/s, 10 GB/s): only the proportions among nodes matter.
std::vector<double> node_weights(const Model& model, std::int64_t rows) {
  std::vector<double> weights;
  for (const NodeSummary& node : summarize(model, rows))
    weights.push_back((node.forward_flops + node.backward_flops) / 50e9 +
                      (node.forward_bytes + node.backward_bytes) / 10e9);
  return weights;
}

/// Cuts n weights into `parts` contiguous, non-empty parts so that the heaviest is lightest (dynamic programming, O(n²
/// parts)).
std::vector<std::uint32_t> balanced_stages(const std::vector<double>& weights, std::uint32_t parts) {
  const std::size_t n = weights.size();
  std::vector<double> sum(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + weights[i];
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector best(parts + 1, std::vector<double>(n + 1, kInfinity));
  std::vector cut(parts + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::uint32_t p = 1; p <= parts; ++p)
    for (std::size_t end = p; end <= n; ++end)
      for (std::size_t begin = p - 1; begin < end; ++begin)
        if (const double cost = std::max(best[p - 1][begin], sum[end] - sum[begin]); cost < best[p][end]) {
          best[p][end] = cost;
          cut[p][end] = begin;
        }
  std::vector<std::uint32_t> stages(n);
  for (std::size_t p = parts, end = n; p > 0; end = cut[p][end], --p)
    for (std::size_t i = cut[p][end]; i < end; ++i) stages[i] = static_cast<std::uint32_t>(p - 1);
  return stages;
}

}  // namespace

std::vector<std::uint32_t> stages_of(const Model& model, const Strategy& strategy) {
  const std::size_t nodes = model.nodes.size();
  if (strategy.pp > nodes)
    throw ConfigError("strategy '{}': pp={} stages, but model '{}' has {} nodes", strategy.text(), strategy.pp,
                      model.name, nodes);
  if (strategy.pp > 1 && strategy.cut.empty())
    return balanced_stages(node_weights(model, model.global_batch / strategy.dp / strategy.microbatches), strategy.pp);
  std::vector<std::uint32_t> stages(nodes, strategy.pp - 1);
  std::size_t begin = 0;
  for (std::uint32_t stage = 0; stage < strategy.cut.size(); ++stage) {
    const std::string& name = strategy.cut[stage];
    std::size_t end = 0;  // one past the last node of the stage
    for (std::size_t n = 0; n < nodes; ++n)
      if (model.nodes[n].name == name || model.nodes[n].name.starts_with(name + ".")) end = n + 1;
    if (end == 0) {
      std::string presets;
      for (const auto& [preset, cuts] : model.cuts) presets += preset + ", ";
      throw ConfigError(
          "strategy '{}': cut '{}' is no node of model '{}'; allowed: balanced, {}or node names such as '{}' joined by "
          "'+' (see `paragauge describe`)",
          strategy.text(), name, model.name, presets, model.nodes[nodes / 2].name);
    }
    if (end <= begin || end >= nodes)
      throw ConfigError("strategy '{}': cut '{}' leaves a stage of model '{}' empty; cuts go in the model's order",
                        strategy.text(), name, model.name);
    for (; begin < end; ++begin) stages[begin] = stage;
  }
  return stages;
}

Layout replicas_of_stages(const Model& model, const Strategy& strategy) {
  const std::vector<Placement> of_replica{strategy.dp > 1 ? shard(0) : replicate(), replicate()};
  Layout layout{.mesh = {{{"dp", strategy.dp}, {"pp", strategy.pp}}},
                .input = of_replica,
                .target = of_replica,
                .rows = of_replica,
                .parameters = {.first_bucket_MiB = strategy.first_bucket_MiB,
                               .bucket_MiB = strategy.bucket_MiB,
                               .overlap = strategy.overlap,
                               .is_mean = true,
                               .broadcast_buffers = strategy.broadcast_buffers && strategy.dp > 1},
                .schedule = strategy.schedule,
                .microbatches = strategy.microbatches};
  for (const std::uint32_t stage : stages_of(model, strategy))
    layout.play.push_back({{.rule = strategy.dp > 1 ? "batch" : ""}, {.at = stage}});
  return layout;
}

}  // namespace sim
