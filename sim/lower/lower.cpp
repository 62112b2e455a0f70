#include "sim/lower/lower.hpp"

#include <algorithm>
#include <iterator>
#include <optional>

#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"
#include "sim/lower/role_builder.hpp"
#include "sim/program/unroll.hpp"

namespace sim {
namespace {

/// A Program of so many takes some ten gigabytes, and a minute to make.
constexpr double kMostOps = 1e7;

/// Said before it is made: ConfigError.
void check_size(const Plan& plan, const Strategy& strategy, std::int64_t steps_in_body) {
  const double steps = strategy.bodies * static_cast<double>(steps_in_body);
  double ops = 0;  // a forward and a backward of each node and microbatch
  for (const RolePlan& role : plan.roles)
    for (std::size_t n = 0; n < role.plays.size(); ++n)
      if (role.plays[n])
        for (const std::uint32_t part : plan.played_in[n])
          if (plan.rank_of(part).stage == role.stage) ops += 2.0 * plan.microbatches * steps;
  if (ops > kMostOps)
    throw ConfigError(
        "strategy '{}': {} microbatches in {} roles make a Program of {:.0f} ops, at most {:.0f} are allowed",
        strategy.text(), plan.microbatches, plan.roles.size(), ops, kMostOps);
}

/// What follows the backward in a step.
void finish_step(Draft& draft, const Plan& plan, bool mean, const GroupOf& group_of) {
  const ParameterCycle& cycle = plan.layout.parameters;
  if (cycle.averages) return add_averaged_steps(draft, plan.model, plan.layout, mean, group_of);
  if (cycle.broadcast_buffers) add_buffer_broadcast(draft, group_of(plan.axes_of_rows()));
  if (cycle.cut) {
    add_unit_gathers(draft, *cycle.cut);
    add_unit_sums(draft, plan.layout, mean, group_of);
  } else if (cycle.single) {
    add_single_sums(draft, plan.layout, mean, group_of);
  } else {
    add_gradient_sums(draft, plan.layout, mean, group_of);
  }
  if (cycle.delayed) return add_delayed_updates(draft, plan.model);
  add_gradient_checks(draft, plan, group_of);
  add_updates(draft, plan.model);
  add_waits(draft);
  std::ranges::move(draft.last, std::back_inserter(draft.list));
  add_frees(draft);
}

}  // namespace

Program lower_periodic(const Model& given, const Strategy& strategy) {
  const std::optional<Model> halved = halved_model(given, strategy);
  const Model& model = halved ? *halved : given;
  const Plan plan(model, layout_of(model, strategy));
  const Layout& layout = plan.layout;
  const std::optional<NodeAverages>& averages = layout.parameters.averages;
  const std::int64_t steps = averages ? steps_of_body(averages->daso) : 1;
  check_size(plan, strategy, steps);
  const bool has_samples = layout.input == layout.rows && layout.target == layout.rows;
  if (model.timing == Timing::tutorial && (!has_samples || averages))
    throw ConfigError("strategy '{}': timing=tutorial makes {}; allowed: timing=step, timing=epoch", strategy.text(),
                      has_samples ? "new samples in every step, and those of a body are the same"
                                  : "each rank's samples where they are used");
  Program program;
  program.model = model.text();
  program.strategy = strategy.text();
  program.global_batch = model.global_batch;
  program.mesh = layout.mesh;
  program.rows = layout.rows;
  program.microbatches = layout.microbatches;
  program.one_loss = plan.one_loss;
  program.draw_axes = layout.draw_axes;
  program.broadcast_buffers = layout.parameters.broadcast_buffers;
  program.steps = steps;
  if (averages) program.daso = averages->daso;
  Tables tables(program);
  const bool mean = !model.nodes.back().kind->is_sum;
  const GroupOf group_of = [&](std::uint32_t axes) { return tables.group(axes); };
  for (const RolePlan& role : plan.roles) {
    Draft draft = RoleBuilder(plan, role, tables).build();
    finish_step(draft, plan, mean, group_of);
    program.roles.push_back(std::move(draft).finish());
  }
  program.set_threads(strategy.threads);
  validate(program);
  return program;
}

Program lower(const Model& model, const Strategy& strategy) {
  Program program = lower_periodic(model, strategy);
  return strategy.bodies > 1 ? unroll(program, strategy.bodies) : std::move(program);
}

Job make_job(const Model& model, std::string_view strategy, const Cluster& cluster) {
  const Model whole = with_global_batch(model, strategy);
  const Strategy parsed = parse_strategy(strategy, whole);
  return {whole, parsed, cluster.world, lower(whole, parsed), with_threads(cluster, parsed.threads, parsed.text())};
}

}  // namespace sim
