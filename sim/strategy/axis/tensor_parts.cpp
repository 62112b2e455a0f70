// tp: tensor-parallel layers (R6, Megatron's): the first layer with weights is cut by output channels (its "column parallel"),
// the next, which takes its input so, by input channels ("row parallel"), and so on. What has no weights follows its input.
// After two layers the output is a sum over the ranks, and so is the gradient of the first one's input.
#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"

namespace sim {

bool is_chain(const Model& model) {
  for (std::size_t n = 0; n < model.nodes.size(); ++n)
    for (const int source : model.nodes[n].inputs)
      if (source != kModelTarget && source != (n == 0 ? kModelInput : static_cast<int>(n) - 1)) return false;
  return true;
}

namespace {

void add_tensor_parts(Layout& layout, const Model& model, const Strategy& strategy) {
  if (strategy.tp == 1) return;
  if (!is_chain(model))
    throw ConfigError(
        "strategy '{}': tp cuts layers by output and input channels in turn, but model '{}' is no chain of layers",
        strategy.text(), model.name);
  std::vector<std::string> chosen;
  bool is_first = true;  // of two
  for (const Node& node : model.nodes) {
    chosen.emplace_back(!node.kind->matrix ? "" : is_first ? "output" : "input");
    if (node.kind->matrix) is_first = !is_first;
  }
  add_axis_of_rules(layout, model, {"tp", strategy.tp}, chosen);
  layout.sums_early = true;
}

}  // namespace

const AxisKind kTensorParts{"tp", add_tensor_parts};

}  // namespace sim
