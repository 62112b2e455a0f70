// tp: tensor-parallel layers (R6, Megatron's): the first layer with weights is cut by output channels (its "column parallel"),
// the next, which takes its input so, by input channels ("row parallel"), and so on. What has no weights follows its input.
// After two layers the output is a sum over the ranks, and so is the gradient of the first one's input. An imported model's
// bodies say what is cut, from a column to a row, by attention heads or features (bench/import/tensor_parallel.py); all
// ranks play the others.
#include <algorithm>

#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"

namespace sim {

namespace {

bool is_chain(const Model& model) {
  for (std::size_t n = 0; n < model.nodes.size(); ++n)
    for (const int source : model.nodes[n].inputs)
      if (source != kModelTarget && source != (n == 0 ? kModelInput : static_cast<int>(n) - 1)) return false;
  return true;
}

bool has_units(const Node& node) { return node.body != nullptr && node.body->units > 1; }

}  // namespace

std::string why_no_tensor_parts(const Model& model) {
  if (std::ranges::any_of(model.nodes, has_units) || is_chain(model)) return "";
  if (model.is_imported()) return "no layers of the model could be cut when it was imported";
  return "the model is no chain of layers";
}

namespace {

void add_tensor_parts(Layout& layout, const Model& model, const Strategy& strategy) {
  if (strategy.tp == 1) return;
  layout.sums_early = true;
  if (std::ranges::any_of(model.nodes, has_units)) {
    layout.add_axis({"tp", strategy.tp}, replicate(),
                    [&](std::size_t n) { return Layout::Play{.rule = has_units(model.nodes[n]) ? "units" : ""}; });
    return;
  }
  if (!is_chain(model))
    throw ConfigError(
        "strategy '{}': tp cuts layers by output and input channels in turn, but model '{}' is no chain of layers{}",
        strategy.text(), model.name,
        model.is_imported() ? ", and its import found no pair of layers to cut (their units are in the file)" : "");
  std::vector<std::string> chosen;
  bool is_first = true;  // of two
  for (const Node& node : model.nodes) {
    chosen.emplace_back(!node.kind->matrix ? "" : is_first ? "output" : "input");
    if (node.kind->matrix) is_first = !is_first;
  }
  add_axis_of_rules(layout, model, {"tp", strategy.tp}, chosen);
}

}  // namespace

const AxisKind kTensorParts{"tp", add_tensor_parts};

}  // namespace sim
