#include "sim/strategy/layout.hpp"

#include <algorithm>

#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/recompute.hpp"

namespace sim {

void Layout::add_axis(const Axis& axis, const Placement& rows_along, const std::function<Play(std::size_t)>& play_of) {
  mesh.axes.push_back(axis);
  for (std::size_t n = 0; n < play.size(); ++n) play[n].push_back(play_of(n));
  for (std::vector<Placement>* of_batch : {&input, &target, &rows}) of_batch->push_back(rows_along);
}

Layout layout_of(const Model& model, const Strategy& strategy) {
  const StrategyKind& kind = strategy.kind();
  Layout layout{.parameters = kind.parameters(model, strategy),
                .schedule = strategy.schedule,
                .microbatches = strategy.microbatches,
                .chunks = strategy.chunks,
                .recompute = strategy.recompute,
                .segment_of = segments_of(model, strategy)};
  layout.play.resize(model.nodes.size());
  std::vector<const AxisKind*> axes = kind.axes;
  if (!strategy.order.empty())
    std::ranges::sort(axes, {}, [&](const AxisKind* axis) { return std::ranges::find(strategy.order, axis->name); });
  for (const AxisKind* axis : axes) axis->add(layout, model, strategy);
  if ((model.loss_scale > 0 || model.max_grad_norm > 0) && (layout.parameters.delayed || layout.parameters.averages))
    throw ConfigError(
        "strategy '{}': {} needs all gradients before the first update, but {}", strategy.text(),
        model.max_grad_norm > 0 ? "max_grad_norm" : "precision=fp16 with its loss scale",
        layout.parameters.averages ? "DASO's ranks skip sums" : "heat updates layer by layer; heat_blocking doesn't");
  const bool is_data_parallel = std::ranges::find(axes, &kChunks) != axes.end();
  const auto synced = std::ranges::find_if(model.nodes, is_synced, &Node::attributes);
  if (synced != model.nodes.end() && (is_data_parallel || layout.parameters.averages))
    throw ConfigError("strategy '{}': batch norm '{}' has sync=1, but {}", strategy.text(), synced->name,
                      is_data_parallel ? "nn.DataParallel has no process group; ddp has"
                                       : "DASO's nodes have parameters of their own");
  return layout;
}

}  // namespace sim
