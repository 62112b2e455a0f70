#include "sim/plan/communication.hpp"

#include <algorithm>
#include <array>
#include <limits>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr std::array kCuts{Cut::dp, Cut::in};
constexpr double kInfinite = std::numeric_limits<double>::infinity();

double power_of_2(std::size_t exponent) { return static_cast<double>(std::uint64_t{1} << exponent); }

/// What the levels so far have left of every layer.
class Remaining {
 public:
  Remaining(const std::vector<ChainLayer>& chain, const BetweenLayers& between) : left_(chain), between_(between) {}

  /// What a half reads of the other's: Table 1.
  [[nodiscard]] double within(std::size_t layer, Cut cut) const {
    return cut == Cut::dp ? left_[layer].weight_bytes : left_[layer].output_bytes;
  }
  /// The bytes in front of the layer: Table 2.
  [[nodiscard]] double before(std::size_t layer, Cut one_before, Cut cut) const {
    const double share = one_before == Cut::dp ? (cut == Cut::dp ? 0 : between_.dp_in)
                                               : (cut == Cut::dp ? between_.in_dp : between_.in_in);
    return share * left_[layer].input_bytes;
  }
  void halve(const std::vector<Cut>& cuts) {
    for (std::size_t layer = 0; layer < left_.size(); ++layer) {
      ChainLayer& of = left_[layer];
      of.input_bytes /= 2;
      (cuts[layer] == Cut::dp ? of.output_bytes : of.weight_bytes) /= 2;
    }
  }

 private:
  std::vector<ChainLayer> left_;
  BetweenLayers between_;
};

/// The path through a state per layer that costs least; of equals the one with the first states. `step(layer, from,
/// to)` is what `to` costs behind the state `from` of the layer before (0 for the first layer).
template <class StepCost>
std::vector<std::size_t> cheapest_path(std::size_t layers, std::size_t states, const StepCost& step) {
  std::vector<std::vector<std::size_t>> came_from;
  std::vector<double> cost(states, 0);
  for (std::size_t layer = 0; layer < layers; ++layer) {
    std::vector<double> next(states, kInfinite);
    std::vector<std::size_t> from_of(states, 0);
    for (std::size_t to = 0; to < states; ++to)
      for (std::size_t from = 0; from < (layer == 0 ? 1 : states); ++from)
        if (const double total = cost[from] + step(layer, from, to); total < next[to]) {
          next[to] = total;
          from_of[to] = from;
        }
    cost = std::move(next);
    came_from.push_back(std::move(from_of));
  }
  std::vector<std::size_t> path(layers);
  auto state = static_cast<std::size_t>(std::ranges::min_element(cost) - cost.begin());
  for (std::size_t layer = layers; layer-- > 0; state = came_from[layer][state]) path[layer] = state;
  return path;
}

}  // namespace

std::vector<ChainLayer> chain_of(const Model& model) {
  std::vector<ChainLayer> chain;
  const std::vector<OpInstance> ops = model.instances(model.global_batch);
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const Node& node = model.nodes[n];
    for (const int input : node.inputs)
      if (input != kModelTarget && input != static_cast<int>(n) - 1)
        throw ConfigError(
            "model '{}' is no chain: node '{}' reads '{}', which isn't the node before it; HyPar's method is "
            "for chains",
            model.name, node.name, input < 0 ? "input" : model.nodes[static_cast<std::size_t>(input)].name);
    if (node.kind->role == OpRole::layer && !node.kind->matrix) continue;
    // What a layer with weights, or the loss, reads is what the layer before it gives.
    const auto input_bytes = static_cast<double>(ops[n].leading().bytes());
    if (!chain.empty()) chain.back().output_bytes = input_bytes;
    if (node.kind->matrix)
      chain.push_back({.name = node.name,
                       .weight_bytes = static_cast<double>(ops[n].signature().parameters[0].spec.bytes()),
                       .input_bytes = input_bytes});
  }
  if (chain.empty()) throw ConfigError("model '{}' has no layer with weights to choose for", model.name);
  return chain;
}

LevelCuts all_cut(const std::vector<ChainLayer>& chain, std::size_t levels, Cut cut) {
  return LevelCuts(levels, std::vector<Cut>(chain.size(), cut));
}

double communicated_bytes(const std::vector<ChainLayer>& chain, const LevelCuts& cuts, const BetweenLayers& between) {
  Remaining rest(chain, between);
  double bytes = 0;
  for (std::size_t level = 0; level < cuts.size(); ++level) {
    const std::vector<Cut>& cut = cuts[level];
    double read = 0;
    for (std::size_t layer = 0; layer < chain.size(); ++layer)
      read += rest.within(layer, cut[layer]) + (layer > 0 ? rest.before(layer, cut[layer - 1], cut[layer]) : 0);
    bytes += power_of_2(level) * 2 * read;  // by both halves of every pair
    rest.halve(cut);
  }
  return bytes;
}

LevelCuts least_by_level(const std::vector<ChainLayer>& chain, std::size_t levels, const BetweenLayers& between) {
  Remaining rest(chain, between);
  LevelCuts cuts;
  for (std::size_t level = 0; level < levels; ++level) {
    const std::vector<std::size_t> path =
        cheapest_path(chain.size(), kCuts.size(), [&](std::size_t layer, std::size_t from, std::size_t to) {
          return rest.within(layer, kCuts[to]) + (layer > 0 ? rest.before(layer, kCuts[from], kCuts[to]) : 0);
        });
    std::vector<Cut>& cut = cuts.emplace_back();
    for (const std::size_t state : path) cut.push_back(kCuts[state]);
    rest.halve(cut);
  }
  return cuts;
}

/// By the closed form in the header a layer's bytes depend on M only, and T is at least M less the M of the layer
/// before, no more if the levels of one contain the other's. So M is all there is to choose.
LevelCuts least_together(const std::vector<ChainLayer>& chain, std::size_t levels) {
  const std::vector<std::size_t> in_levels =
      cheapest_path(chain.size(), levels + 1, [&](std::size_t layer, std::size_t from, std::size_t to) {
        const ChainLayer& of = chain[layer];
        const std::size_t turns = layer > 0 && to > from ? to - from : 0;
        return 2 * (power_of_2(levels - to) - 1) * of.weight_bytes + 2 * (power_of_2(to) - 1) * of.output_bytes +
               static_cast<double>(turns) * of.input_bytes;
      });
  LevelCuts cuts = all_cut(chain, levels, Cut::dp);
  for (std::size_t layer = 0; layer < chain.size(); ++layer)
    for (std::size_t level = levels - in_levels[layer]; level < levels; ++level) cuts[level][layer] = Cut::in;
  return cuts;
}

}  // namespace sim
