#include "sim/plan/bound.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "sim/program/memory.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

/// How many microbatches a rank of a stage has begun in all its chunks, and hasn't brought back, where that is most.
std::int64_t most_under_way(const Strategy& strategy, std::uint32_t stage) {
  std::vector<std::int64_t> under_way(static_cast<std::size_t>(strategy.chunks), 0);  // by chunk
  std::int64_t most = 0;
  for (const Action& action :
       schedule_table()
           .at(strategy.schedule)
           .stage(stage, strategy.pp, static_cast<std::int32_t>(strategy.microbatches), strategy.chunks)) {
    if (action.kind == Action::Kind::weights) continue;
    under_way[static_cast<std::size_t>(action.chunk)] += action.kind == Action::Kind::forward ? 1 : -1;
    most = std::max(most, std::ranges::min(under_way));
  }
  return most;
}

/// Along which microbatches are sent on; nothing where they aren't.
std::optional<std::uint32_t> axis_of_stages(const Program& program) {
  for (const Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_message(role.kind[i])) return role.peer[i];
  return std::nullopt;
}

/// Of a role: the first instruction after the forward.
std::uint32_t end_of_forward(const Program& program, const Role& role) {
  std::uint32_t end = 0;
  std::vector<bool> is_known(program.names.size(), false);  // nodes: a second forward is one that the backward asks for
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (role.kind[i] != InstructionKind::compute || role.microbatch[i] < 0 || role.node[i] == kNone) continue;
    if (program.works[role.work[i]].pass != Pass::forward || is_known[role.node[i]]) continue;
    is_known[role.node[i]] = true;
    end = i + 1;
  }
  return end;
}

/// What the forward writes and the backward's ops read.
std::int64_t kept_bytes(const Program& program, const Role& role) {
  const std::uint32_t end = end_of_forward(program, role);
  std::vector<bool> is_written(role.storages.size(), false), is_kept = is_written;
  for (std::uint32_t i = 0; i < end; ++i)
    for (const std::uint32_t tensor : role.writes(i)) is_written[role.tensors[tensor].storage] = true;
  for (std::uint32_t i = end; i < role.size(); ++i)
    if (role.kind[i] == InstructionKind::compute)
      for (const std::uint32_t tensor : role.reads(i)) is_kept[role.tensors[tensor].storage] = true;
  std::int64_t bytes = 0;
  for (std::size_t s = 0; s < role.storages.size(); ++s)
    if (const Storage& storage = role.storages[s];
        is_written[s] && is_kept[s] && !storage.persistent &&
        (storage.tensor_class == TensorClass::activation || storage.tensor_class == TensorClass::copy))
      bytes += storage.bytes;
  return bytes;
}

}  // namespace

std::optional<OneMicrobatch> one_microbatch(const Model& model, const Strategy& strategy) {
  const std::int64_t count = strategy.microbatches;
  if (count <= 1) return std::nullopt;
  OneMicrobatch one{.strategy = strategy, .global_batch = model.global_batch / count, .key = ""};
  one.strategy.microbatches = 1;
  const ScheduleKind& schedule = schedule_table().at(strategy.schedule);
  const auto does_same = [&](const ScheduleKind& other) {
    return other.splits == schedule.splits && other.chunks == schedule.chunks && other.order == schedule.order;
  };
  one.strategy.schedule = std::ranges::find_if(schedule_table(), does_same)->name;
  one.key = fmt::format("{} schedule={} chunks={} of {}", one.strategy.text(), one.strategy.schedule, strategy.chunks,
                        one.global_batch);
  return one;
}

MicrobatchUse::MicrobatchUse(const Program& one, const Costs& costs, const Cluster& cluster) {
  const Timeline timeline = simulate(one, costs, cluster);
  step_s_ = timeline.step_s;
  const MemoryFit fit = fit_memory(one, cluster, costs.workspace_bytes);
  needed_bytes_ = fit.needed_bytes();
  capacity_bytes_ = fit.capacity_bytes;
  const std::optional<std::uint32_t> axis = axis_of_stages(one);
  std::vector<std::int64_t> kept, persistent;  // by role
  for (const Role& role : one.roles) {
    kept.push_back(kept_bytes(one, role));
    persistent.push_back(peak_memory(role).persistent_bytes);
  }
  const std::vector<Program::Place> places = one.places();
  for (std::uint32_t player = 0; player < one.players(); ++player) {
    const Role& role = one.roles[places[player].role];
    const RankTimeline& times = timeline.ranks[player];
    Rank& rank = ranks_.emplace_back();
    if (axis) rank.stage = one.mesh.coordinate(one.rank_of(player), *axis);
    if (cluster.kinds_in_use().size() == 1) {  // else which memory lacks most may depend on the microbatches
      rank.persistent_bytes = persistent[places[player].role];
      rank.kept_bytes = kept[places[player].role];
    }
    rank.begin_s = step_s_;
    double end_s = 0;
    const double launch_s = costs.launch_of(cluster.kind_of(one.rank_of(player)));
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.microbatch[i] < 0) continue;
      if (role.kind[i] == InstructionKind::send || role.kind[i] == InstructionKind::collective) rank.host_s += launch_s;
      if (!is_computed(role.kind[i])) continue;
      rank.begin_s = std::min(rank.begin_s, times.start_s[i]);
      end_s = std::max(end_s, times.end_s[i]);
      const Work& work = one.works[role.work[i]];
      const double gap_s = i > 0 && is_computed(role.kind[i - 1]) && !cluster.one_launch ? costs.gap_s : 0;
      const double work_s = gap_s + costs.work_s[role.work[i] * costs.busy_levels];
      const bool is_loss = work.op.kind->role == OpRole::loss;
      (is_loss ? rank.loss_s : rank.microbatch_s) += work_s;
      if (!is_loss && !work.op.kind->on_host)
        rank.host_s += costs.issue_s.empty() ? launch_s : costs.issue_s[role.work[i]];
    }
    if (!cluster.device.asynchronous || cluster.one_launch) rank.host_s = 0;
    rank.tail_s = step_s_ - end_s;
  }
}

StepBound MicrobatchUse::bound(const Strategy& strategy) const {
  StepBound bound{.step_s = step_s_, .needed_bytes = needed_bytes_, .capacity_bytes = capacity_bytes_};
  const ScheduleKind& schedule = schedule_table().at(strategy.schedule);
  const auto count = static_cast<double>(strategy.microbatches);
  std::vector<std::int64_t> under_way(strategy.pp, 0);
  for (std::uint32_t stage = 0; stage < strategy.pp; ++stage) under_way[stage] = most_under_way(strategy, stage);
  for (const Rank& rank : ranks_) {
    const double all_s = rank.microbatch_s * count + rank.loss_s * (schedule.one_loss ? 1 : count);
    const double busy_s = std::max(rank.begin_s + all_s, rank.host_s * count);
    bound.step_s = std::max(bound.step_s, busy_s + (schedule.splits ? 0 : rank.tail_s));
    bound.needed_bytes = std::max(bound.needed_bytes, rank.persistent_bytes + under_way[rank.stage] * rank.kept_bytes);
  }
  return bound;
}

}  // namespace sim
