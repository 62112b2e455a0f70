#include "sim/strategy/strategy.hpp"

#include <algorithm>
#include <limits>
#include <tuple>

#include "sim/error.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

std::vector<std::string> cut_names(const SpecText& text, const Model& model) {
  const std::string given = text.text("cut").value_or("balanced");
  if (given == "balanced") return {};
  if (const auto preset = model.cuts.find(given); preset != model.cuts.end()) return preset->second;
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= given.size();) {
    const std::size_t end = std::min(given.find('+', begin), given.size());
    names.push_back(given.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

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

std::string Strategy::text() const {
  const Strategy otherwise;
  std::string text = preset;
  if (dp != otherwise.dp) text += fmt::format(",dp={}", dp);
  if (pp != otherwise.pp) text += fmt::format(",pp={}", pp);
  if (microbatches > 1 || preset == "pipeline")
    text += fmt::format(",schedule={},microbatches={}", schedule, microbatches);
  else if (schedule != otherwise.schedule)
    text += fmt::format(",schedule={}", schedule);
  if (!cut.empty()) text += fmt::format(",cut={}", fmt::join(cut, "+"));
  if (first_bucket_MiB != otherwise.first_bucket_MiB) text += fmt::format(",first_bucket_MiB={}", first_bucket_MiB);
  if (bucket_MiB != otherwise.bucket_MiB) text += fmt::format(",bucket_MiB={}", bucket_MiB);
  if (overlap) text += ",overlap=1";
  if (!broadcast_buffers) text += ",broadcast_buffers=0";
  return text;
}

Strategy parse_strategy(std::string_view given, const Model& model) {
  const SpecText text(given, "strategy");
  const StrategyKind& kind = strategy_table().at(text.head().empty() ? "mesh" : text.head());
  text.finish(kind.keys);
  Strategy s;
  s.preset = kind.name;
  s.dp = static_cast<std::uint32_t>(text.integer("dp", kind.least_dp, 1, 1 << 20));
  s.pp = static_cast<std::uint32_t>(text.integer("pp", kind.least_pp, 1, 1 << 20));
  if (std::uint64_t{s.dp} * s.pp > 1 << 20)
    throw ConfigError("strategy '{}': dp={} times pp={} must be at most {} ranks", given, s.dp, s.pp, 1 << 20);
  s.schedule = text.text("schedule").value_or(s.schedule);
  static_cast<void>(schedule_table().at(s.schedule));
  s.first_bucket_MiB = text.number("first_bucket_MiB", s.first_bucket_MiB, 0, 1 << 20);
  s.bucket_MiB = text.number("bucket_MiB", s.bucket_MiB, 0, 1 << 20);
  s.overlap = text.integer("overlap", s.overlap, 0, 1) == 1;
  s.broadcast_buffers = text.integer("broadcast_buffers", s.broadcast_buffers, 0, 1) == 1;
  for (const auto& [key, degree, least] :
       {std::tuple("dp", s.dp, kind.least_dp), std::tuple("pp", s.pp, kind.least_pp)})
    if (degree < least) throw ConfigError("strategy '{}': {}={} must be at least {}", s.preset, key, degree, least);

  if (model.global_batch % s.dp != 0)
    throw ConfigError("strategy '{}': dp={} must divide global_batch={} of model '{}'", given, s.dp, model.global_batch,
                      model.name);
  const std::int64_t rows = model.global_batch / s.dp;
  const std::string_view key = text.has("split_size") ? "split_size" : "microbatches";
  if (text.has("split_size") && text.has("microbatches"))
    throw ConfigError("strategy '{}': give split_size or microbatches, not both", given);
  const std::int64_t part = text.integer(key, kind.microbatches, 1, 10'000'000);
  if (rows % part != 0)
    throw ConfigError("strategy '{}': {}={} must divide the {} samples per replica of model '{}'", given, key, part,
                      rows, model.name);
  s.microbatches = key == "split_size" ? rows / part : part;
  s.cut = cut_names(text, model);
  if (!s.cut.empty() && s.cut.size() + 1 != s.pp)
    throw ConfigError("strategy '{}': cut names {} nodes, so pp must be {}, found pp={}", given, s.cut.size(),
                      s.cut.size() + 1, s.pp);
  return s;
}

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

}  // namespace sim
