// HyPar's hybrid layers (R3): on every level of a hierarchy of devices each layer with weights is data parallel (dp: a
// part of the samples, all weights) or model parallel (in: a part of the input channels; out: of the output channels).
// What has no weights follows its input, and after `in`, whose output is a sum, what comes
// next. The last part takes the rest.
//
//   hypar,levels=2x2,layers=dp+in/out+in     2 × 2 devices; a choice for each layer, levels apart
//   hypar,layers=16*dp+3*in                  VGG-19 on two devices: convolutions by samples, the rest by channels
//   hypar,levels=3,layers=in,form=rooted     all layers alike; sums go to the first device, then to all (the reference)
#include <algorithm>

#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"

namespace sim {
namespace {

std::string rule_named(std::string_view choice, const Strategy& strategy) {
  if (choice == "dp") return "batch";
  if (choice == "in") return "input";
  if (choice == "out") return "output";
  throw ConfigError("strategy '{}': layer '{}' is not one of dp, in, out", strategy.text(), choice);
}

/// The choices of one level by node, "" where a node has no weights of its own to choose for.
std::vector<std::string> chosen_rules(const Model& model, const Strategy& strategy,
                                      const std::vector<std::string>& choices) {
  const auto layers =
      static_cast<std::size_t>(std::ranges::count_if(model.nodes, [](const Node& node) { return node.kind->matrix; }));
  if (layers == 0)
    throw ConfigError("strategy '{}': model '{}' has no layer to choose for: conv2d or linear, not imported ops",
                      strategy.text(), model.name);
  if (choices.size() != 1 && choices.size() != layers)
    throw ConfigError("strategy '{}': {} layers, but model '{}' has {}; give one choice for all or one for each",
                      strategy.text(), choices.size(), model.name, layers);
  std::vector<std::string> rules;
  std::size_t next = 0;
  for (const Node& node : model.nodes) {
    if (node.kind->matrix) {
      rules.push_back(rule_named(choices[choices.size() == 1 ? 0 : next], strategy));
      ++next;
    } else {
      rules.emplace_back();
    }
  }
  return rules;
}

void add_levels(Layout& layout, const Model& model, const Strategy& strategy) {
  layout.rooted = strategy.rooted;
  for (std::size_t level = 0; level < strategy.levels.size(); ++level)
    add_axis_of_rules(layout, model, {fmt::format("level{}", level), strategy.levels[level], Rest::to_last},
                      chosen_rules(model, strategy, strategy.layers[level]));
}

}  // namespace

const AxisKind kLevels{"levels", add_levels};

}  // namespace sim
