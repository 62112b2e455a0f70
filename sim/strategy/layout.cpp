#include "sim/strategy/layout.hpp"

#include <algorithm>

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
  return layout;
}

}  // namespace sim
