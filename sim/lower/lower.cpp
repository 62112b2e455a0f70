#include "sim/lower/lower.hpp"

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
void check_size(const Plan& plan, const Strategy& strategy) {
  const double steps = strategy.bodies * (strategy.daso ? static_cast<double>(steps_of_body(*strategy.daso)) : 1.0);
  double ops = 0;  // a forward and a backward of each node and microbatch
  for (const RolePlan& role : plan.roles)
    for (std::size_t n = 0; n < role.plays.size(); ++n)
      if (role.plays[n] && plan.stage[n] == role.stage) ops += 2.0 * plan.microbatches * steps;
  if (ops > kMostOps)
    throw ConfigError(
        "strategy '{}': {} microbatches in {} roles make a Program of {:.0f} ops, at most {:.0f} are allowed",
        strategy.text(), plan.microbatches, plan.roles.size(), ops, kMostOps);
}

}  // namespace

Program lower_periodic(const Model& model, const Strategy& strategy) {
  const Plan plan(model, layout_of(model, strategy));
  check_size(plan, strategy);
  const Layout& layout = plan.layout;
  const bool has_samples = layout.input == layout.rows && layout.target == layout.rows;
  if (model.timing == Timing::tutorial && (!has_samples || layout.parameters.averages))
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
  program.broadcast_buffers = layout.parameters.broadcast_buffers;
  if (const auto& averages = layout.parameters.averages) {
    program.daso = averages->daso;
    program.steps = steps_of_body(averages->daso);
  }
  Tables tables(program);
  const bool mean = !model.nodes.back().kind->is_sum;
  const GroupOf group_of = [&](std::uint32_t axes) { return tables.group(axes); };
  for (const RolePlan& role : plan.roles) {
    Draft draft = RoleBuilder(plan, role, tables).build();
    if (layout.parameters.averages) {
      add_averaged_steps(draft, model, layout, mean, group_of);
      program.roles.push_back(std::move(draft).finish());
      continue;
    }
    if (layout.parameters.broadcast_buffers) add_buffer_broadcast(draft, tables.group(plan.axes_of_rows()));
    if (const auto& cut = layout.parameters.cut) {
      add_unit_gathers(draft, *cut);
      add_unit_sums(draft, layout, mean, group_of);
    } else if (layout.parameters.single) {
      add_single_sums(draft, layout, mean, group_of);
    } else {
      add_gradient_sums(draft, layout, mean, group_of);
    }
    if (layout.parameters.delayed) {
      add_delayed_updates(draft, model);
    } else {
      add_updates(draft, model);
      add_waits(draft);
      draft.list.insert(draft.list.end(), draft.last.begin(), draft.last.end());
      add_frees(draft);
    }
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
