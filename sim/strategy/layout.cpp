#include "sim/strategy/layout.hpp"

#include <algorithm>

#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/recompute.hpp"

namespace sim {

void Layout::add_axis(const Axis& axis, const Placement& rows_along, const std::function<Play(std::size_t)>& play_of) {
  mesh.axes.push_back(axis);
  for (std::size_t n = 0; n < play.size(); ++n) play[n].push_back(play_of(n));
  for (std::vector<Placement>* of_batch : {&input, &target, &rows}) of_batch->push_back(rows_along);
}

namespace {

bool sees_samples_together(const Model& model) {
  return std::ranges::any_of(model.instances(model.global_batch),
                             [](const OpInstance& op) { return std::ranges::any_of(rules_of(op), &Rule::by_part); });
}

/// A rank's samples are cut into microbatches one after the other. So that a microbatch's input and target are of the
/// same samples everywhere, both are cut alike, into parts of one size.
void check_microbatches(const Layout& layout, const Model& model, const Strategy& strategy) {
  if (layout.microbatches == 1) return;
  std::int64_t parts = 1;
  for (std::size_t axis = 0; axis < layout.mesh.axes.size(); ++axis) {
    const bool is_cut = layout.input[axis] == shard(0), rows_are_cut = layout.rows[axis] == shard(0);
    if ((layout.target[axis] == shard(0)) != is_cut || (rows_are_cut != is_cut && sees_samples_together(model)))
      throw ConfigError(
          "strategy '{}': with microbatches the first layer, the loss and batch norms must have the same samples, but "
          "{} cuts them for some of these only; choose dp for the first and the last layer, or for neither",
          strategy.text(), layout.mesh.axes[axis].name);
    if (is_cut) parts *= layout.mesh.axes[axis].size;
  }
  const std::int64_t samples = model.global_batch / layout.microbatches;
  if (samples % parts != 0)
    throw ConfigError("strategy '{}': its {} parts of the batch must divide the {} samples of a microbatch of '{}'",
                      strategy.text(), parts, samples, model.name);
}

}  // namespace

std::optional<Model> halved_model(const Model& model, const Strategy& strategy) {
  if (!strategy.half_parameters || !model.is_imported()) return std::nullopt;
  return model.with_half_parameters();
}

Layout layout_of(const Model& model, const Strategy& strategy) {
  const StrategyKind& kind = strategy.kind();
  Layout layout{.parameters = kind.parameters(model, strategy),
                .schedule = strategy.schedule,
                .microbatches = strategy.microbatches,
                .chunks = strategy.chunks,
                .recompute = strategy.recompute};
  layout.play.resize(model.nodes.size());
  std::vector<const AxisKind*> axes = kind.axes;
  if (!strategy.order.empty())
    std::ranges::sort(axes, {}, [&](const AxisKind* axis) { return std::ranges::find(strategy.order, axis->name); });
  for (const AxisKind* axis : axes) axis->add(layout, model, strategy);
  check_microbatches(layout, model, strategy);
  std::vector<std::uint32_t> part_of;
  if (layout.recompute == Recompute::block && layout.stage_axis != Layout::kNoStages)
    for (const std::vector<Layout::Play>& of_node : layout.play) part_of.push_back(of_node[layout.stage_axis].at);
  layout.segment_of = segments_of(model, strategy, part_of);
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
