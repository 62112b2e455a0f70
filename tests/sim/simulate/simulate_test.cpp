#include "sim/simulate/simulate.hpp"

#include "tests/sim/simulate/sketch.hpp"

namespace sim {
namespace {

using namespace testing;

// ---- One thing at a time. ----

TEST(Simulate, ComputeAddsUp) {
  Sketch sketch(1);
  for (double s : {1.0, 2.0, 0.5}) sketch.compute(0, s);
  EXPECT_DOUBLE_EQ(sketch.run().step_s, 3.5);
  sketch.costs.launch_s = 0.25;  // a CPU's thread issues, then computes
  EXPECT_DOUBLE_EQ(sketch.run().step_s, 3.5 + 3 * 0.25);
  EXPECT_DOUBLE_EQ(sketch.run().ranks[0].host_s, 3 * 0.25);
  EXPECT_DOUBLE_EQ(sketch.run().ranks[0].start_s[1], 1 + 2 * 0.25);
}

TEST(Simulate, AnEmptyProgramTakesNoTime) { EXPECT_EQ(Sketch(3).run().step_s, 0); }

TEST(Simulate, AMessageIsAlphaPlusBeta) {
  Sketch sketch(2);
  sketch.compute(0, 1);
  sketch.move(0, 1, {.latency_s = 0.5, .wire_s = 2});
  for (const Costs& costs : {sketch.costs, as_fluid(sketch.costs)})
    for (const Cluster& cluster : {plain_cluster(2), receiver_cluster(2)}) {
      const Timeline timeline = simulate(sketch.program, costs, cluster);
      EXPECT_DOUBLE_EQ(timeline.step_s, 1 + 0.5 + 2);
      EXPECT_DOUBLE_EQ(timeline.ranks[1].posted_s[0], 0);
      EXPECT_DOUBLE_EQ(timeline.ranks[1].start_s[0], 1);  // ready when the sender is
      EXPECT_DOUBLE_EQ(timeline.ranks[1].end_s[0], 3.5);
      EXPECT_DOUBLE_EQ(timeline.ranks[0].posted_s[1], 1);
      // The receiver stood idle for a second, then for the message.
      EXPECT_DOUBLE_EQ(timeline.ranks[1].bubble_s, 1);
      EXPECT_DOUBLE_EQ(timeline.ranks[1].exposed_communication_s, 2.5);
      EXPECT_DOUBLE_EQ(timeline.ranks[0].exposed_communication_s, 2.5);
      EXPECT_DOUBLE_EQ(timeline.ranks[0].compute_s, 1);
    }
}

// A transfer goes on beside compute, except where the receiver's own thread copies.
TEST(Simulate, EnginesDifferInOverlap) {
  const Sketch sketch = compute_beside_message({.latency_s = 1, .wire_s = 2}, 1.5, 5);
  for (const Costs& costs : {sketch.costs, as_fluid(sketch.costs)}) {
    const Timeline background = simulate(sketch.program, costs, plain_cluster(2));
    EXPECT_DOUBLE_EQ(end_of(background, 0), 3);
    EXPECT_DOUBLE_EQ(end_of(background, 1), 5);
    const Timeline receiver = simulate(sketch.program, costs, receiver_cluster(2));
    EXPECT_DOUBLE_EQ(end_of(receiver, 1), 5 + 3);  // begins when the receiver waits
    EXPECT_DOUBLE_EQ(end_of(receiver, 0), 5 + 3);
    EXPECT_DOUBLE_EQ(receiver.ranks[0].start_s[0], 0);  // though both had posted at once
  }
}

// Who posts goes on when the call is back; that is host time, and a launch more is none.
TEST(Simulate, PostingKeepsTheThread) {
  Sketch sketch =
      compute_beside_message({.latency_s = 1, .wire_s = 2, .send_overhead_s = 0.5, .recv_overhead_s = 0.25}, 4, 1);
  for (const Costs& costs : {sketch.costs, as_fluid(sketch.costs)}) {
    const Timeline timeline = simulate(sketch.program, costs, plain_cluster(2));
    EXPECT_DOUBLE_EQ(timeline.ranks[0].start_s[1], 0.5);
    EXPECT_DOUBLE_EQ(timeline.ranks[1].start_s[1], 0.25);
    EXPECT_DOUBLE_EQ(end_of(timeline, 0), 4.5);
    EXPECT_DOUBLE_EQ(end_of(timeline, 1), 3);  // the transfer began with the posts
    EXPECT_DOUBLE_EQ(timeline.ranks[0].host_s, 0.5);
  }
  sketch.costs.launch_s = 0.125;
  const Timeline timeline = sketch.run();
  EXPECT_DOUBLE_EQ(timeline.ranks[0].start_s[1], 0.125 + 0.5);
  EXPECT_DOUBLE_EQ(timeline.ranks[1].start_s[1], 0.125 + 0.25);
}

// Who gives what is written again pays for telling the others' caches, beside the post.
TEST(Simulate, WhatOthersHaveReadTakesLongerToWrite) {
  Sketch sketch(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const std::uint32_t posted = sketch.all_reduce(rank, {.wire_s = 2, .send_overhead_s = 0.5, .rewriting_s = 0.25});
    sketch.compute(rank, 1);
    sketch.wait(rank, posted);
  }
  const auto start_s = [&](const std::vector<bool>& rewritten) {
    sketch.costs.rewritten = rewritten;
    const double seconds = sketch.run().ranks[1].start_s[1];
    EXPECT_DOUBLE_EQ(simulate(sketch.program, as_fluid(sketch.costs), plain_cluster(2)).ranks[1].start_s[1], seconds);
    return seconds;
  };
  EXPECT_DOUBLE_EQ(start_s({true}), 0.75);
  EXPECT_DOUBLE_EQ(start_s({false}), 0.5);
  EXPECT_DOUBLE_EQ(start_s({}), 0.5);
}

TEST(Simulate, ACollectiveWaitsForTheLast) {
  Sketch sketch(3);
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    sketch.compute(rank, rank + 1.0);
    sketch.wait(rank, sketch.all_reduce(rank, {.latency_s = 0.25, .wire_s = 0.5}));
  }
  for (const Cluster& cluster : {plain_cluster(3), receiver_cluster(3)}) {
    const Timeline timeline = sketch.run(cluster);
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      EXPECT_DOUBLE_EQ(end_of(timeline, rank), 3.75);
      EXPECT_DOUBLE_EQ(timeline.ranks[rank].bubble_s, 2.0 - rank);
      EXPECT_DOUBLE_EQ(timeline.ranks[rank].exposed_communication_s, 0.75);
    }
  }
}

// Messages in flight overlap their latencies; their bytes go one after the other. A receiver's thread copies one by
// one.
TEST(Simulate, APairsBytesGoOneAfterTheOther) {
  for (const double pause : {0.0, 0.25, 5.0}) {  // between the posts
    Sketch sketch(2);
    const TransferCost cost{.latency_s = 0.5, .wire_s = 1};
    std::vector<std::uint32_t> sent, received;
    for (int k = 0; k < 3; ++k) {
      received.push_back(sketch.recv(1, 0, cost));
      sent.push_back(sketch.send(0, 1, cost));
      sketch.compute(0, pause);
    }
    for (std::size_t k = 0; k < 3; ++k) {
      sketch.wait(0, sent[k]);
      sketch.wait(1, received[k]);
    }
    double wire = 0, thread = 0;
    for (int k = 0; k < 3; ++k) {
      wire = std::max(k * pause + 0.5, wire) + 1;
      thread = std::max(k * pause, thread) + 0.5 + 1;
    }
    for (const Costs& costs : {sketch.costs, as_fluid(sketch.costs)}) {
      EXPECT_NEAR(end_of(simulate(sketch.program, costs, plain_cluster(2)), 1), wire, kRounding) << pause;
      EXPECT_NEAR(end_of(simulate(sketch.program, costs, receiver_cluster(2)), 1), thread, kRounding) << pause;
    }
  }
}

// ---- Strategies against their closed forms. ----

// (f + b)(m + p − 1): Huang et al. 2018, section 2; the other schedules only order the same work differently.
class Makespan : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Simulate, Makespan, ::testing::Values("gpipe", "1f1b", "forward_only"));
TEST_P(Makespan, IsTheClosedForm) {
  const double f = 2, b = 3;
  for (std::size_t p = 1; p <= 4; ++p)
    for (std::int32_t m = 1; m <= 8; ++m) {
      const Sketch sketch = pipeline(std::vector(p, f), std::vector(p, b), m, schedule_table().at(GetParam()));
      const double expected = (f + b) * (m + static_cast<double>(p) - 1);
      EXPECT_NEAR(sketch.run().step_s, expected, kRounding) << p << " stages, " << m << " microbatches";
      EXPECT_NEAR(simulate(sketch.program, as_fluid(sketch.costs), plain_cluster(static_cast<std::uint32_t>(p))).step_s,
                  expected, kRounding);
      // Every stage works m(f+b) and stands (p−1)(f+b).
      for (const RankTimeline& rank : sketch.run().ranks) {
        EXPECT_NEAR(rank.compute_s, m * (f + b), kRounding);
        EXPECT_NEAR(rank.bubble_s, (static_cast<double>(p) - 1) * (f + b), kRounding);
      }
    }
}

/// Of p equal ranks whose forward takes f, their backward b, or where it is split b and w.
double makespan(std::string_view name, std::size_t p, std::int32_t m, double f, double b, double w) {
  const ScheduleKind& schedule = schedule_table().at(name);
  const auto parts = [&](double of_rank) {
    return std::vector(p * static_cast<std::size_t>(schedule.chunks), of_rank / schedule.chunks);
  };
  return pipeline(parts(f), parts(schedule.splits ? b : b + w), m, schedule, parts(w)).run().step_s;
}

// What several stages for each rank, and parameters' gradients that wait, take off the bubble. Sources: Narayanan et al.
// 2021 (section 2.2), Qi et al. 2023 (table 2) and 2024 (ZB-V).
TEST(Simulate, SchedulesShortenTheBubble) {
  for (const std::size_t p : {2U, 4U})
    for (const std::int32_t m : {4, 8, 12}) {
      SCOPED_TRACE(fmt::format("{} ranks, {} microbatches", p, m));
      const double ramp = static_cast<double>(p) - 1;
      EXPECT_NEAR(makespan("interleaved", p, m, 1, 1, 1), 3 * m + 3 * ramp / 2, kRounding);
      EXPECT_NEAR(makespan("interleaved", p, m, 2, 3, 1), 6 * m + 6 * ramp / 2, kRounding);
      EXPECT_NEAR(makespan("1f1b_split", p, m, 1, 1.5, 0.5), 3 * m + ramp * (1 + 1.5), kRounding);
      EXPECT_NEAR(makespan("zb_h1", p, m, 1, 1, 1), 3 * m + ramp, kRounding);
      EXPECT_NEAR(makespan("zb_h1", p, m, 1, 1.2, 0.8), 3 * m + ramp * (1 + 1.2 - 0.8), kRounding);
      EXPECT_NEAR(makespan("interleaved_zb", p, m, 1, 1, 1), 3 * m + ramp / 2, kRounding);
      if (m < 2 * static_cast<std::int32_t>(p) - 1) continue;  // made for so many
      EXPECT_NEAR(makespan("zbv", p, m, 1, 1, 1), 3 * m + ramp / 2, kRounding);
    }
}

/// torch.distributed.pipelining writes a receive where its sender stands when all actions take as long (pytorch#188833):
/// [rank][action], before which it then waits.
std::vector<std::vector<std::size_t>> where_senders_stand(const SketchedActions& actions) {
  std::vector<std::vector<double>> ends(actions.size());
  std::map<std::uint32_t, double> sent;  // by tag
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (std::size_t s = 0; s < actions.size(); ++s) {
      const std::size_t next = ends[s].size();
      if (next == actions[s].size()) continue;
      const auto& [seconds, source, target] = actions[s][next];
      if (source && !sent.contains(source->tag)) continue;
      ends[s].push_back(std::max(next > 0 ? ends[s].back() : 0, source ? sent.at(source->tag) : 0) + 1);
      if (target) sent[target->tag] = ends[s].back();
      goes_on = true;
    }
  }
  std::vector<std::vector<std::size_t>> before(actions.size());
  for (std::size_t s = 0; s < actions.size(); ++s)
    for (std::size_t a = 0; a < actions[s].size(); ++a) {
      const double moment = actions[s][a].source ? sent.at(actions[s][a].source->tag) : 0;
      const auto begun = std::ranges::find_if(ends[s], [&](double end) { return end - 1 >= moment; });
      before[s].push_back(std::min(a, static_cast<std::size_t>(begun - ends[s].begin())));
    }
  return before;
}

// Whose receives stand where senders do waits in them, as soon as actions take differently long, though it has something to
// do. Ours stand where they're used, and nothing blocks what comes behind them.
TEST(Simulate, AReceiveThatComesTooSoonIsABubble) {
  constexpr std::int32_t kMicrobatches = 8;
  for (const char* name : {"1f1b", "interleaved", "zb_h1", "interleaved_zb"}) {
    SCOPED_TRACE(name);
    const ScheduleKind& schedule = schedule_table().at(name);
    const auto steps = [&](double f, double b, double w) {
      const auto parts = [&](double seconds) {
        return std::vector(4 * static_cast<std::size_t>(schedule.chunks), seconds);
      };
      const SketchedActions actions =
          sketched_actions(parts(f), parts(schedule.splits ? b : b + w), kMicrobatches, schedule, parts(w));
      return std::pair(pipeline_of(actions).run().step_s,
                       pipeline_of(actions, where_senders_stand(actions)).run().step_s);
    };
    const auto [ours, theirs] = steps(1, schedule.splits ? 1 : 0.5, schedule.splits ? 1 : 0.5);
    EXPECT_NEAR(ours, theirs, kRounding) << "all take as long";
    const auto [ours_apart, theirs_apart] = steps(1, 1.6, 0.4);
    EXPECT_GE(theirs_apart, ours_apart - kRounding);
    if (name != std::string_view("1f1b")) {
      EXPECT_GT(theirs_apart, 1.07 * ours_apart);
    }
  }
}

// For whatever schedule is in the table: no rank computes less than all microbatches, and none waits for ever.
TEST(Simulate, EveryScheduleIsBounded) {
  for (const ScheduleKind& schedule : schedule_table())
    for (std::size_t p = 1; p <= 4; ++p)
      for (std::int32_t m = 1; m <= 8; ++m) {
        const double step = makespan(schedule.name, p, m, 1, 1, 1),
                     ramp = schedule.chunks > 1 || schedule.splits ? 0 : 3 * (static_cast<double>(p) - 1);
        EXPECT_GE(step, 3 * m + ramp - kRounding) << schedule.name;
        EXPECT_LE(step, 3 * m * static_cast<double>(p) + kRounding) << schedule.name;
      }
}

TEST(Simulate, NaiveModelParallelIsTheSumOfItsStages) {
  const std::vector<double> forward{1, 4, 2}, backward{3, 5, 1};
  EXPECT_NEAR(pipeline(forward, backward, 1, schedule_table().at("gpipe")).run().step_s, 1 + 4 + 2 + 3 + 5 + 1,
              kRounding);
}

TEST(Simulate, ModelParallelIsComputePlusMessages) {
  for (const char* name : {"toy_mlp", "convnet", "vgg11"}) {  // chains: one tensor crosses each cut
    const Model model = small_model(name);
    const Program program = lower(model, parse_strategy("model_parallel,pp=3", model));
    const Costs costs = analytic_costs(program, plain_cluster(3));
    double expected = 0, updates = 0;
    for (std::uint32_t r = 0; r < 3; ++r)
      for (std::uint32_t i = 0; i < program.roles[r].size(); ++i) {
        const Role& role = program.roles[r];
        if (role.kind[i] == InstructionKind::compute) expected += costs.work_s[role.work[i]];
        if (r == 0 && role.kind[i] == InstructionKind::update) updates += costs.work_s[role.work[i]];
        if (role.kind[i] == InstructionKind::send) {
          const std::uint32_t id = TransferMatching(program).transfer({r, 0}, r, role, i);
          const TransferCost& cost = costs.transfers[costs.transfer_of[id]];
          expected += cost.latency_s + cost.wire_s;
        }
      }
    const Timeline timeline = simulate(program, costs, plain_cluster(3));
    EXPECT_NEAR(end_of(timeline, 0), expected + updates, kRounding * expected) << name;
  }
}

TEST(Simulate, DdpIsComputePlusAllReduces) {
  for (const std::string& name : testing::written_models())
    for (const std::uint32_t dp : {2U, 4U}) {
      const Model model = small_model(name);
      const Program program = lower(model, parse_strategy(fmt::format("ddp_blocking,dp={},bucket_MiB=1", dp), model));
      const Costs costs = analytic_costs(program, plain_cluster(dp));
      const Role& role = program.roles[0];
      double compute = 0, transfers = 0;
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.work[i] != kNone) compute += costs.work_s[role.work[i]];
        if (role.kind[i] != InstructionKind::collective) continue;
        // The cluster's world is gloo: a ring for all_reduce, a tree for broadcast.
        const double s = static_cast<double>(program.transfer_bytes(role, i)), hops = dp - 1.0, depth = dp / 2.0;
        transfers += role.collective[i] == CollectiveKind::all_reduce ? 2 * hops * 20e-6 + 2 * hops / dp * s / 2e9
                                                                      : depth * (20e-6 + s / 2e9);
      }
      ASSERT_GT(transfers, 0);
      const Timeline timeline = simulate(program, costs, plain_cluster(dp));
      EXPECT_NEAR(timeline.step_s, compute + transfers, kRounding * timeline.step_s) << name << " dp=" << dp;
      for (const RankTimeline& rank : timeline.ranks) {
        EXPECT_NEAR(rank.compute_s, compute, kRounding);
        EXPECT_NEAR(rank.exposed_communication_s, transfers, kRounding);
        EXPECT_NEAR(rank.bubble_s, 0, kRounding);
      }
    }
}

// ---- Both paths through time agree; a executed step replays. ----

TEST(SimulateGrid, FluidTimeIsClosedFormWhereNothingIsShared) {
  for_each_case(false, [](const Program& program, const Costs& costs, const Cluster& cluster) {
    ASSERT_EQ(costs.busy_levels, 1U);
    expect_equal(simulate(program, as_fluid(costs), cluster), simulate(program, costs, cluster));
  });
}

TEST(SimulateGrid, BreakdownSumsToTheStep) {
  for_each_case(true, [](const Program& program, const Costs& costs, const Cluster& cluster) {
    const Timeline timeline = simulate(program, costs, cluster);
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const RankTimeline& rank = timeline.ranks[r];
      EXPECT_NEAR(rank.compute_s + rank.exposed_communication_s + rank.bubble_s + rank.host_s, timeline.step_s,
                  kRounding * timeline.step_s);
      // Sharing and launches only ever add to what the instructions ask for.
      const Role& role = program.roles[program.places()[r].role];
      double alone = 0;
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (role.work[i] != kNone) alone += costs.work_s[role.work[i]];
      EXPECT_GE(rank.compute_s, alone * (1 - kRounding));
      EXPECT_GE(std::min({rank.bubble_s, rank.exposed_communication_s, rank.host_s}), -kRounding * timeline.step_s);
    }
  });
}

TEST(SimulateGrid, EveryClusterOfTheCatalogPlays) {
  for (const std::string& name : catalog_names("clusters"))
    for (const StrategyKind& kind : strategy_table()) {
      const Model model = small_model(kind.otherwise("tp", 1) > 1 ? "convnet" : "resnet18");  // a chain
      const Program program = lower(model, parse_strategy(kind.example, model));
      const Cluster cluster = load_cluster(name, program.ranks(), name.starts_with("two_pcs") ? 0 : 2);
      const Costs costs = costs_of(program, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
      EXPECT_GT(simulate(program, costs, cluster).step_s, 0) << name << " " << kind.name;
    }
}

TEST(Simulate, SaysThatTheClusterIsTooSmall) {
  EXPECT_EQ(message_of([] { (void)Sketch(3).run(plain_cluster(2)); }),
            "program of 3 ranks on cluster 'plain', which was made for 2");
}

TEST(Simulate, AProgramThatWasntValidatedIsOurError) {
  Sketch sketch(2);
  sketch.wait(0, sketch.send(0, 1, {}));  // nobody receives
  EXPECT_THROW((void)simulate(sketch.program, sketch.costs, plain_cluster(2)), InternalError);
}

}  // namespace
}  // namespace sim
