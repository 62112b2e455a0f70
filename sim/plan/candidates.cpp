#include "sim/plan/candidates.hpp"

#include <algorithm>
#include <set>
#include <string>

#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/plan/method.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

/// A text's endings: ",microbatches=4,schedule=gpipe", …
using Endings = std::vector<std::string>;

Endings microbatches_of(std::uint32_t pp, std::int64_t rows) {
  Endings endings;
  const auto add = [&](std::int64_t microbatches, const std::string& schedule) {
    if (rows % microbatches == 0) endings.push_back(fmt::format(",microbatches={}{}", microbatches, schedule));
  };
  if (pp == 1) endings.emplace_back();
  if (pp == 1)
    for (const std::int64_t microbatches : {2, 4, 8, 16}) add(microbatches, "");
  else
    for (const std::int64_t per_stage : {1, 2, 4})
      for (const ScheduleKind& schedule : schedule_table())
        add(per_stage * pp, fmt::format(",schedule={}", schedule.name));
  return endings;
}

/// What the row makes of these degrees; nothing where it isn't for them.
void add_texts(const StrategyKind& kind, std::uint32_t dp, std::uint32_t pp, const Model& model, Endings& texts) {
  if (kind.takes("levels")) {
    for (const std::string_view choice : {"dp", "in", "out"})
      if (dp > 1 && pp == 1) texts.push_back(fmt::format("{},levels={},layers={}", kind.name, dp, choice));
    return;
  }
  const bool is_general = kind.takes("dp") && kind.takes("pp");
  const bool fits =
      dp >= kind.least_dp && pp >= kind.least_pp && (dp == 1 || kind.takes("dp")) && (pp == 1 || kind.takes("pp"));
  if (!fits || (is_general && (dp == 1 || pp == 1))) return;  // other rows say it more simply
  std::string text(kind.name);
  if (dp > 1) text += fmt::format(",dp={}", dp);
  if (pp > 1) text += fmt::format(",pp={}", pp);
  Endings endings{""};
  if (kind.takes("microbatches")) endings = microbatches_of(pp, model.global_batch / dp);
  for (const std::string& ending : endings) texts.push_back(text + ending);
}

}  // namespace

std::string obstacle(const Model& model, const Strategy& strategy) {
  try {
    const Layout layout = layout_of(model, strategy);
    const std::vector<OpInstance> ops = model.instances(model.global_batch / layout.microbatches);
    for (std::size_t n = 0; n < ops.size(); ++n)
      for (const bool last : {false, true}) {
        OpInstance op = ops[n];
        try {
          for (std::size_t axis = 0; axis < layout.mesh.axes.size(); ++axis)
            if (const std::string& rule = layout.play[n][axis].rule; !rule.empty())
              op = part_of(op, rule_of(op, rule), layout.mesh.axes[axis], last ? layout.mesh.axes[axis].size - 1 : 0);
          static_cast<void>(op.signature());
        } catch (const ConfigError& error) {
          return fmt::format("node '{}': {}", model.nodes[n].name, error.what());
        }
      }
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::vector<Strategy> candidate_strategies(const Model& model, std::uint32_t devices) {
  Endings texts;
  for (std::uint32_t ranks = devices; ranks > 0; ranks /= 2)
    for (std::uint32_t pp = 1; pp <= ranks; ++pp) {
      const std::uint32_t dp = ranks / pp;
      if (ranks % pp != 0 || pp > model.nodes.size() || model.global_batch % dp != 0) continue;
      for (const StrategyKind& kind : strategy_table()) add_texts(kind, dp, pp, model, texts);
    }
  std::vector<Strategy> strategies;
  std::set<std::string> seen;
  for (const std::string& text : texts)
    if (Strategy strategy = parse_strategy(text, model);
        seen.insert(strategy.text()).second && obstacle(model, strategy).empty())
      strategies.push_back(std::move(strategy));
  return strategies;
}

Proposal propose_candidates(const PlanQuestion& question) {
  return {.strategies = candidate_strategies(question.model, question.devices)};
}

}  // namespace sim
