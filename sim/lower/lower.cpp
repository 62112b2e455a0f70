#include "sim/lower/lower.hpp"

#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"
#include "sim/lower/role_builder.hpp"

namespace sim {

Program lower(const Model& model, const Strategy& strategy) {
  const Plan plan(model, layout_of(model, strategy));
  const Layout& layout = plan.layout;
  if (model.timing == Timing::tutorial && (layout.input != layout.rows || layout.target != layout.rows))
    throw ConfigError("strategy '{}': timing=tutorial makes each rank's samples where they are used; allowed: {}",
                      strategy.text(), "timing=step, timing=epoch");
  Program program;
  program.model = model.text();
  program.strategy = strategy.text();
  program.global_batch = model.global_batch;
  program.mesh = layout.mesh;
  program.rows = layout.rows;
  program.microbatches = layout.microbatches;
  program.one_loss = plan.one_loss;
  program.broadcast_buffers = layout.parameters.broadcast_buffers;
  Tables tables(program);
  const GroupOf group_of = [&](std::uint32_t axes) { return tables.group(axes); };
  for (const RolePlan& role : plan.roles) {
    Draft draft = RoleBuilder(plan, role, tables).build();
    if (layout.parameters.broadcast_buffers) add_buffer_broadcast(draft, tables.group(plan.axes_of_rows()));
    add_gradient_sums(draft, layout, /*mean=*/!model.nodes.back().kind->is_sum, group_of);
    add_updates(draft, model);
    draft.list.insert(draft.list.end(), draft.last.begin(), draft.last.end());
    add_frees(draft);
    program.roles.push_back(std::move(draft).finish());
  }
  validate(program);
  return program;
}

Job make_job(const Model& model, std::string_view strategy, const Cluster& cluster) {
  const Strategy parsed = parse_strategy(strategy, model);
  return {model, parsed, cluster.world, lower(model, parsed), cluster};
}

}  // namespace sim
