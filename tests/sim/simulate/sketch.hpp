// Small programs with costs set by hand, and the grid of strategies, models and clusters, for the tests of sim/simulate.
//
//   Sketch sketch(2);
//   sketch.compute(0, 1.5);                              // rank 0, seconds
//   sketch.move(0, 1, {.latency_s = 0.5, .wire_s = 1});  // both wait at once
//   EXPECT_DOUBLE_EQ(sketch.run().step_s, 3);
#pragma once

#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "sim/lower/lower.hpp"
#include "sim/program/transfers.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim::testing {

inline constexpr double kRounding = 1e-9;

inline Cluster receiver_cluster(std::uint32_t ranks) {
  Cluster cluster = plain_cluster(ranks);
  cluster.levels[0].link.engine = TransferEngine::receiver;
  return cluster;
}

/// A program written call by call, a role per rank, with costs set by hand. Instructions issue in no time.
struct Sketch {
  Program program;
  Costs costs;

  explicit Sketch(std::uint32_t ranks, std::uint32_t busy_levels = 1) {
    costs.busy_levels = busy_levels;
    cost_of_.resize(ranks);
    program.mesh.axes = {{"rank", ranks}};
    for (std::uint32_t r = 0; r < ranks; ++r) {
      program.roles.emplace_back().name = fmt::format("rank{}", r);
      program.roles[r].ranks = {r};
    }
  }
  /// Seconds with 1, 2, … busy ranks.
  void compute(std::uint32_t rank, std::vector<double> seconds, const char* op = "relu") {
    seconds.resize(costs.busy_levels, seconds.back());
    const std::uint32_t x = tensor(rank);
    Instruction i;
    i.work = static_cast<std::uint32_t>(program.works.size());
    i.reads = i.writes = {x};
    const OpKind& kind = op_table().at(op);
    program.works.push_back({{&kind, complete_attributes(kind, {}, ""), {{Dtype::f32, {1}}}}, Pass::forward, 0});
    costs.work_s.insert(costs.work_s.end(), seconds.begin(), seconds.end());
    add(rank, i, kNone);
  }
  void compute(std::uint32_t rank, double seconds) { compute(rank, std::vector{seconds}); }
  void compute_on_host(std::uint32_t rank, double seconds) { compute(rank, std::vector{seconds}, "make_input"); }
  std::uint32_t send(std::uint32_t rank, std::uint32_t to, const TransferCost& cost,
                     std::optional<std::uint32_t> tag = {}) {
    Instruction i;
    i.kind = InstructionKind::send;
    i.peer = 0;
    i.by = static_cast<std::int32_t>(to) - static_cast<std::int32_t>(rank);
    i.tag = tag.value_or(tags_[{rank, to, true}]++);
    i.reads = {tensor(rank)};
    return add(rank, i, costs_of(cost));
  }
  std::uint32_t recv(std::uint32_t rank, std::uint32_t from, const TransferCost& cost,
                     std::optional<std::uint32_t> tag = {}) {
    Instruction i;
    i.kind = InstructionKind::recv;
    i.peer = 0;
    i.by = static_cast<std::int32_t>(from) - static_cast<std::int32_t>(rank);
    i.tag = tag.value_or(tags_[{from, rank, false}]++);
    i.writes = {tensor(rank)};
    return add(rank, i, costs_of(cost));
  }
  std::uint32_t all_reduce(std::uint32_t rank, const TransferCost& cost) {
    if (program.groups.empty()) {
      program.groups.emplace_back("data", 1, program.mesh);
    }
    Instruction i;
    i.kind = InstructionKind::collective;
    i.peer = 0;
    i.reads = i.writes = {tensor(rank)};
    return add(rank, i, costs_of(cost));
  }
  std::uint32_t broadcast(std::uint32_t rank, std::uint32_t root, const TransferCost& cost) {
    const std::uint32_t posted = all_reduce(rank, cost);
    program.roles[rank].collective[posted] = CollectiveKind::broadcast;
    program.roles[rank].root[posted] = root;
    return posted;
  }
  void wait(std::uint32_t rank, std::uint32_t posted) {
    Instruction i;
    i.kind = InstructionKind::wait;
    i.ticket = program.roles[rank].ticket[posted];
    add(rank, i, kNone);
  }
  /// From rank to rank, both waiting at once.
  void move(std::uint32_t from, std::uint32_t to, const TransferCost& cost) {
    const std::uint32_t sent = send(from, to, cost), received = recv(to, from, cost);
    wait(from, sent);
    wait(to, received);
  }

  [[nodiscard]] Timeline run(const Cluster& cluster) const {
    validate(program);
    return simulate(program, costs, cluster);
  }
  [[nodiscard]] Timeline run() const { return run(plain_cluster(program.ranks())); }
  /// After an edit of the instructions.
  void match_costs() {
    const TransferMatching matching(program);
    costs.transfer_of.assign(matching.participants.size(), kNone);
    for (std::uint32_t rank = 0; rank < cost_of_.size(); ++rank)
      for (std::uint32_t i = 0; i < cost_of_[rank].size(); ++i)
        if (cost_of_[rank][i] != kNone)
          costs.transfer_of[matching.transfer({rank, 0}, rank, program.roles[rank], i)] = cost_of_[rank][i];
  }

 private:
  std::uint32_t tensor(std::uint32_t rank) {
    Role& role = program.roles[rank];
    return role.add_tensor(fmt::format("t{}", role.tensors.size()), {Dtype::f32, {1}}, TensorClass::input, true);
  }
  std::uint32_t costs_of(const TransferCost& cost) {
    costs.transfers.push_back(cost);
    return static_cast<std::uint32_t>(costs.transfers.size() - 1);
  }
  std::uint32_t add(std::uint32_t rank, const Instruction& instruction, std::uint32_t transfer) {
    cost_of_[rank].push_back(transfer);
    const std::uint32_t index = program.roles[rank].add(instruction);
    if (transfer != kNone) match_costs();
    return index;
  }
  std::vector<std::vector<std::uint32_t>> cost_of_;  // [rank][instruction]
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::uint32_t> tags_;
};

/// The same costs with a second busy level of equal times: nothing changes but the engine's path through time.
inline Costs as_fluid(Costs costs) {
  if (costs.busy_levels > 1) return costs;
  std::vector<double> twice;
  for (double work : costs.work_s) twice.insert(twice.end(), 2, work);
  costs.work_s = twice;
  costs.busy_levels = 2;
  return costs;
}

inline double end_of(const Timeline& timeline, std::uint32_t rank) { return timeline.ranks.at(rank).end_of_step_s; }

/// Rank 0 sends to rank 1 at once; both compute, then wait for it.
inline Sketch compute_beside_message(const TransferCost& cost, double sender_s, double receiver_s) {
  Sketch sketch(2);
  const std::uint32_t sent = sketch.send(0, 1, cost), received = sketch.recv(1, 0, cost);
  sketch.compute(0, sender_s);
  sketch.compute(1, receiver_s);
  sketch.wait(0, sent);
  sketch.wait(1, received);
  return sketch;
}

/// The other end of a message, where that is another rank's, and its tag.
struct OtherEnd {
  std::uint32_t rank = 0, tag = 0;
};
/// What a rank does of a pipeline: each action's seconds, and what it waits for before and sends after.
struct SketchedAction {
  double seconds = 0;
  std::optional<OtherEnd> source = {}, target = {};
};
using SketchedActions = std::vector<std::vector<SketchedAction>>;  // by rank

/// Equal or unequal stages: forward, backward and, where the schedule splits these, the parameters' gradients' seconds of
/// each, `microbatches` by the schedule.
inline SketchedActions sketched_actions(const std::vector<double>& forward, const std::vector<double>& backward,
                                        std::int32_t microbatches, const ScheduleKind& schedule,
                                        const std::vector<double>& weights = {}) {
  const auto parts = static_cast<std::uint32_t>(forward.size());
  const std::uint32_t stages = parts / static_cast<std::uint32_t>(schedule.chunks);
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> part_of;
  for (std::uint32_t part = 0; part < parts; ++part) {
    const PartOfRank rank = rank_of_part(part, stages, schedule.order);
    part_of[{rank.stage, rank.chunk}] = part;
  }
  SketchedActions actions(stages);
  for (std::uint32_t s = 0; s < stages; ++s)
    for (const Action& action : schedule.stage(s, stages, microbatches, schedule.chunks)) {
      const std::uint32_t part = part_of.at({s, action.chunk});
      if (action.kind == Action::Kind::weights) {
        actions[s].push_back({weights.at(part)});
        continue;
      }
      const bool is_forward = action.kind == Action::Kind::forward;
      const auto other = [&](bool before) -> std::optional<OtherEnd> {
        const bool down = is_forward == before;  // to or from a part of a lower number
        if (down ? part == 0 : part + 1 == parts) return std::nullopt;
        const std::uint32_t rank = rank_of_part(down ? part - 1 : part + 1, stages, schedule.order).stage;
        const std::uint32_t edge = (down ? part - 1 : part) + (is_forward ? 0 : parts);
        if (rank == s) return std::nullopt;
        return OtherEnd{
            rank, edge * static_cast<std::uint32_t>(microbatches) + static_cast<std::uint32_t>(action.microbatch)};
      };
      actions[s].push_back({is_forward ? forward[part] : backward[part], other(true), other(false)});
    }
  return actions;
}

/// Moving costs nothing. `waits_before`: [rank][action], the action before which its message is waited for; empty: itself.
inline Sketch pipeline_of(const SketchedActions& actions,
                          const std::vector<std::vector<std::size_t>>& waits_before = {}) {
  Sketch sketch(static_cast<std::uint32_t>(actions.size()));
  for (std::uint32_t s = 0; s < actions.size(); ++s) {
    std::vector<std::uint32_t> sent;
    for (std::size_t a = 0; a < actions[s].size(); ++a) {
      for (std::size_t later = a; later < actions[s].size(); ++later)
        if (const auto& source = actions[s][later].source;
            source && (waits_before.empty() ? later : waits_before[s][later]) == a)
          sketch.wait(s, sketch.recv(s, source->rank, {}, source->tag));
      sketch.compute(s, actions[s][a].seconds);
      if (const auto& target = actions[s][a].target) sent.push_back(sketch.send(s, target->rank, {}, target->tag));
    }
    for (const std::uint32_t send : sent) sketch.wait(s, send);
  }
  return sketch;
}

inline Sketch pipeline(const std::vector<double>& forward, const std::vector<double>& backward,
                       std::int32_t microbatches, const ScheduleKind& schedule,
                       const std::vector<double>& weights = {}) {
  return pipeline_of(sketched_actions(forward, backward, microbatches, schedule, weights));
}

/// Costs of the analytic model without launch times.
inline Costs analytic_costs(const Program& program, const Cluster& cluster) {
  Costs costs = costs_of(program, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
  costs.launch_s = 0;
  return costs;
}

/// Calls `check(program, costs, cluster)` for the grid's Programs by kinds of device and link.
template <class Check>
void for_each_case(bool with_sharing, const Check& check) {
  for_each_program([&](const Model&, const Strategy&, const Program& program) {
    const std::uint32_t ranks = program.ranks();
    std::vector<Cluster> clusters{plain_cluster(ranks), receiver_cluster(ranks), plain_cluster(ranks)};
    clusters[2].device.asynchronous = true;
    if (with_sharing) {
      clusters.push_back(plain_cluster(ranks));
      clusters[3].levels[0].link.shared = true;
      clusters[3].levels[0].link.core_share = 0.5;
      clusters.push_back(receiver_cluster(ranks));
      for (RankPlace& place : clusters[4].place) place.device /= 2;  // pairs of ranks on a core
    }
    for (std::size_t c = 0; c < clusters.size(); ++c) {
      SCOPED_TRACE(fmt::format("on cluster {}", c));
      check(program, costs_of(program, *cost_model_table().at("analytic").make(clusters[c], nullptr), clusters[c]),
            clusters[c]);
    }
  });
}

inline void expect_equal(const Timeline& a, const Timeline& b) {
  const double rounding = kRounding * b.step_s;
  EXPECT_NEAR(a.step_s, b.step_s, rounding);
  ASSERT_EQ(a.ranks.size(), b.ranks.size());
  for (std::size_t r = 0; r < a.ranks.size(); ++r) {
    ASSERT_EQ(a.ranks[r].start_s.size(), b.ranks[r].start_s.size());
    for (std::size_t i = 0; i < a.ranks[r].start_s.size(); ++i) {
      // Plain comparisons: this runs millions of times.
      const bool same = std::abs(a.ranks[r].start_s[i] - b.ranks[r].start_s[i]) <= rounding &&
                        std::abs(a.ranks[r].end_s[i] - b.ranks[r].end_s[i]) <= rounding &&
                        std::abs(a.ranks[r].posted_s[i] - b.ranks[r].posted_s[i]) <= rounding;
      ASSERT_TRUE(same) << fmt::format("rank {} instruction {}: {}…{} s and {}…{} s", r, i, a.ranks[r].start_s[i],
                                       a.ranks[r].end_s[i], b.ranks[r].start_s[i], b.ranks[r].end_s[i]);
    }
  }
}

}  // namespace sim::testing
