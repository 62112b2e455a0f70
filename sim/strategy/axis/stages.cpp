// pp: each node is played at one coordinate, its stage.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"

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

/// Weights in a row: sums of neighbours, and the least possible heaviest of so many contiguous parts.
class Row {
 public:
  explicit Row(const std::vector<double>& weights) : sum_{0}, heaviest_{0} {
    for (const double weight : weights) {
      sum_.push_back(sum_.back() + weight);
      heaviest_.push_back(std::max(heaviest_.back(), sum_.back() - sum_[sum_.size() - 2]));
    }
  }
  [[nodiscard]] double weight(std::size_t begin, std::size_t end) const { return sum_[end] - sum_[begin]; }

  /// The weight of the heaviest part of the first `end` in at most `parts`, where some cut's heaviest weighs `most`. By
  /// bisection: `most` is always some cut's heaviest, and nothing that weighs at most `below` is. The mean part, or one
  /// weight alone, often is the answer.
  [[nodiscard]] double least_heaviest(std::size_t end, std::uint32_t parts, double most) const {
    const double least = std::max(heaviest_[end], weight(0, end) / parts);
    double below = least / 2, guess = std::min(least, std::nextafter(most, 0.0));
    for (bool is_first = true; std::nextafter(below, most) < most; is_first = false) {
      const std::optional<double> found = heaviest_within(end, parts, guess);
      (found ? most : below) = found.value_or(guess);
      guess = is_first && found ? std::nextafter(most, 0.0) : below + (most - below) / 2;
    }
    return most;
  }
  /// The first weight of the longest last part of the first `end` that weighs at most `most`.
  [[nodiscard]] std::size_t last_part(std::size_t end, double most) const {
    const auto is_heavy = [&](const double& before) { return sum_[end] - before > most; };
    return static_cast<std::size_t>(
        std::partition_point(sum_.begin(), sum_.begin() + static_cast<std::ptrdiff_t>(end), is_heavy) - sum_.begin());
  }

 private:
  /// The heaviest part where every part but the last takes all it may; nullopt where that needs more parts.
  [[nodiscard]] std::optional<double> heaviest_within(std::size_t end, std::uint32_t parts, double most) const {
    double heaviest = 0;
    for (; end > 0; --parts) {
      const std::size_t begin = last_part(end, most);
      if (parts == 0 || begin == end) return std::nullopt;
      heaviest = std::max(heaviest, weight(begin, end));
      end = begin;
    }
    return heaviest;
  }

  std::vector<double> sum_, heaviest_;  // of the first 0, 1, …
};

/// Cuts n weights into `parts` contiguous, non-empty parts so that the heaviest is lightest; among those, the last part
/// is as long as possible, then what is before it is cut alike.
std::vector<std::uint32_t> balanced_parts(const std::vector<double>& weights, std::uint32_t parts) {
  const Row row(weights);
  std::vector<std::uint32_t> stages(weights.size());
  std::size_t end = weights.size();
  double most = row.weight(0, end);
  for (std::uint32_t part = parts; part > 0; --part) {
    most = row.least_heaviest(end, part, most);
    const std::size_t begin = part == 1 ? 0 : std::max<std::size_t>(row.last_part(end, most), part - 1);
    std::fill(stages.begin() + static_cast<std::ptrdiff_t>(begin), stages.begin() + static_cast<std::ptrdiff_t>(end),
              part - 1);
    end = begin;
  }
  return stages;
}

/// The stages of all nodes. What is made of constants is made where it is read, and weighs nothing. The loss is where its
/// prediction is made, as with torch.distributed.pipelining, where there are nodes enough: nobody sends the logits of 50,257
/// tokens.
std::vector<std::uint32_t> balanced_stages(const std::vector<double>& weights, const std::vector<bool>& is_constant,
                                           std::uint32_t parts) {
  std::vector<double> cut;
  for (std::size_t n = 0; n < weights.size(); ++n)
    if (!is_constant[n]) cut.push_back(weights[n]);
  if (parts < cut.size()) {
    cut[cut.size() - 2] += cut.back();
    cut.pop_back();
  }
  const std::vector<std::uint32_t> of_cut = balanced_parts(cut, parts);
  std::vector<std::uint32_t> stages;
  for (std::size_t next = 0; const bool has_none : is_constant) {
    stages.push_back(next < of_cut.size() ? of_cut[next] : parts - 1);
    if (!has_none) ++next;
  }
  return stages;
}

}  // namespace

std::vector<std::uint32_t> stages_of(const Model& model, const Strategy& strategy) {
  const std::size_t nodes = model.nodes.size();
  const std::vector<bool> is_constant = model.made_of_constants();
  const auto own = static_cast<std::size_t>(std::ranges::count(is_constant, false));
  const std::uint64_t all = std::uint64_t{strategy.pp} * static_cast<std::uint32_t>(strategy.chunks);
  if (all > own)
    throw ConfigError("strategy '{}': pp={}{} stages, but model '{}' has {} nodes", strategy.text(), strategy.pp,
                      strategy.chunks > 1 ? fmt::format(" times chunks={} are {}", strategy.chunks, all) : "",
                      model.name, own);
  const auto parts = static_cast<std::uint32_t>(all);
  if (parts > 1 && strategy.cut.empty())
    return balanced_stages(node_weights(model, model.global_batch / strategy.dp / strategy.microbatches), is_constant,
                           parts);
  std::vector<std::uint32_t> stages(nodes, parts - 1);
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
    const auto has_none = [&](std::size_t from, std::size_t to) {  // but what others make for themselves
      return from >= to || std::all_of(is_constant.begin() + static_cast<std::ptrdiff_t>(from),
                                       is_constant.begin() + static_cast<std::ptrdiff_t>(to), std::identity());
    };
    if (has_none(begin, end) || end >= nodes)
      throw ConfigError("strategy '{}': cut '{}' leaves a stage of model '{}' empty; cuts go in the model's order",
                        strategy.text(), name, model.name);
    for (; begin < end; ++begin) stages[begin] = stage;
  }
  return stages;
}

namespace {

void add_stages(Layout& layout, const Model& model, const Strategy& strategy) {
  layout.stage_axis = static_cast<std::uint32_t>(layout.mesh.axes.size());
  const std::vector<std::uint32_t> stages = stages_of(model, strategy);
  layout.add_axis({"pp", strategy.pp}, replicate(), [&](std::size_t n) { return Layout::Play{.at = stages[n]}; });
}

}  // namespace

const AxisKind kStages{"pp", add_stages};

}  // namespace sim
