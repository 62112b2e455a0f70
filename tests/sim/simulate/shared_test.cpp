#include "sim/simulate/step.hpp"

#include "tests/sim/simulate/sketch.hpp"

namespace sim {
namespace {

using namespace testing;

// A short message is all latency, and that is its ends' work as much as moving bytes is.
TEST(Shared, ATransferTakesCoreTimeFromItsFirstMomentOn) {
  const Timeline timeline = compute_beside_message({.latency_s = 1, .wire_s = 1, .core_share = 0.5}, 2, 2).run();
  for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_DOUBLE_EQ(end_of(timeline, rank), 3) << rank;
}

// ---- Sharing. ----

TEST(Shared, RanksOnOneCoreTakeTurns) {
  Cluster cluster = plain_cluster(3);
  cluster.place[1] = cluster.place[0];  // rank 2 has a core of its own
  Sketch sketch(3);
  sketch.compute(0, 1);
  sketch.compute(1, 3);
  sketch.compute(2, 3);
  const Timeline timeline = sketch.run(cluster);
  EXPECT_NEAR(end_of(timeline, 0), 2, kRounding);      // half of the core
  EXPECT_NEAR(end_of(timeline, 1), 1 + 3, kRounding);  // half until 2 s, then all of it
  EXPECT_NEAR(end_of(timeline, 2), 3, kRounding);
  // A rank that waits for a message leaves the core to the other.
  Sketch waits(3);
  waits.move(2, 1, {.wire_s = 5});
  waits.compute(0, 4);
  EXPECT_NEAR(end_of(waits.run(cluster), 0), 4, kRounding);
  // Issuing takes core time too.
  sketch.costs.launch_s = 0.5;
  EXPECT_NEAR(end_of(sketch.run(cluster), 0), 2 * (0.5 + 1), kRounding);
}

TEST(Shared, EqualRanksOnOneCoreTakeTwiceAsLong) {
  for (const char* name : {"toy_mlp", "convnet", "resnet18"}) {
    const Model model = small_model(name);
    const Program program = lower(model, parse_strategy("ddp_blocking,dp=2,broadcast_buffers=0", model));
    Cluster cluster = plain_cluster(2);
    Costs costs = analytic_costs(program, cluster);
    for (TransferCost& cost : costs.transfers) cost = {};
    const double apart = simulate(program, costs, cluster).step_s;
    cluster.place[1] = cluster.place[0];
    EXPECT_NEAR(simulate(program, costs, cluster).step_s, 2 * apart, 1e-6 * apart) << name;
  }
}

TEST(Shared, FlowsShareALink) {
  const auto run = [](std::vector<double> wires, bool shared) {
    Sketch sketch(static_cast<std::uint32_t>(2 * wires.size()));
    for (std::uint32_t k = 0; k < wires.size(); ++k)
      sketch.move(2 * k, 2 * k + 1, {.latency_s = 0.5, .wire_s = wires[k]});
    Cluster cluster = plain_cluster(sketch.program.ranks());
    cluster.levels[0].link.shared = shared;
    const Timeline timeline = sketch.run(cluster);
    std::vector<double> ends;
    for (std::uint32_t k = 0; k < wires.size(); ++k) ends.push_back(end_of(timeline, 2 * k));
    return ends;
  };
  // The latency isn't shared, the wire is.
  EXPECT_NEAR(run({2, 2}, true)[0], 0.5 + 2 * 2, kRounding);
  EXPECT_NEAR(run({2, 2}, true)[1], 0.5 + 2 * 2, kRounding);
  EXPECT_NEAR(run({1, 3}, true)[0], 0.5 + 2 * 1, kRounding);
  EXPECT_NEAR(run({1, 3}, true)[1], 0.5 + 2 * 1 + 2, kRounding);  // alone after the first
  EXPECT_NEAR(run({1, 1, 1}, true)[2], 0.5 + 3, kRounding);
  EXPECT_NEAR(run({2, 2}, false)[0], 2.5, kRounding);  // each pair has a link of its own
  EXPECT_NEAR(run({1, 3}, false)[1], 3.5, kRounding);
}

// A bus carries both directions, also when there are only two ranks.
TEST(Shared, TwoRanksShareALinkInBothDirections) {
  Sketch sketch(2);
  const TransferCost cost{.wire_s = 1};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const std::uint32_t sent = sketch.send(rank, 1 - rank, cost), received = sketch.recv(rank, 1 - rank, cost);
    sketch.wait(rank, sent);
    sketch.wait(rank, received);
  }
  Cluster cluster = plain_cluster(2);
  EXPECT_NEAR(sketch.run(cluster).step_s, 1, kRounding);
  cluster.levels[0].link.shared = true;
  EXPECT_NEAR(sketch.run(cluster).step_s, 2, kRounding);
}

TEST(Shared, ATransferTakesItsShareOfTheCore) {
  const auto run = [](double compute, double wire, double share) {
    Sketch sketch(2);
    const TransferCost cost{.latency_s = 0, .wire_s = wire, .core_share = share};
    const std::uint32_t sent = sketch.send(0, 1, cost), received = sketch.recv(1, 0, cost);
    sketch.compute(0, compute);
    sketch.wait(0, sent);
    sketch.wait(1, received);
    const Timeline timeline = sketch.run();
    return timeline.ranks[0].end_s[1];  // of the compute
  };
  for (const double share : {0.0, 0.25, 0.5, 0.8}) {
    EXPECT_NEAR(run(1, 100, share), 1 / (1 - share), kRounding) << share;
    EXPECT_NEAR(run(3, 1, share), 3 + share, kRounding) << share;  // slowed for a second only
  }
  EXPECT_NEAR(run(1, 100, 1), 1 / 0.02, kRounding);  // a core is never taken whole
}

TEST(Shared, ATransferIsSlowerWhileACoreAtOneOfItsEndsComputes) {
  const auto run = [](const TransferCost& cost, double first, double second) {
    Sketch sketch(2);
    const std::uint32_t posted[] = {sketch.all_reduce(0, cost), sketch.all_reduce(1, cost)};
    sketch.compute(0, first);
    sketch.compute(1, second);
    for (const std::uint32_t rank : {0, 1}) sketch.wait(rank, posted[rank]);
    return sketch.run();
  };
  constexpr double kHardlyAny = 1e-12;  // of a core
  // Half as fast until the longer compute's end at 3 s; latency and bytes alike.
  EXPECT_NEAR(run({.latency_s = 1, .wire_s = 3, .core_share = kHardlyAny, .beside_compute = 2}, 1, 3).step_s, 5.5,
              1e-9);
  EXPECT_NEAR(run({.wire_s = 1, .core_share = kHardlyAny, .beside_compute = 2}, 3, 0.5).ranks[1].end_s[0], 2, 1e-9);
  // So much longer it takes its share of the cores.
  EXPECT_NEAR(end_of(run({.wire_s = 1, .core_share = 0.5, .beside_compute = 2}, 10, 10), 0), 11, kRounding);
  EXPECT_NEAR(end_of(run({.wire_s = 1, .core_share = 0.5}, 10, 10), 0), 10.5, kRounding);
  // Half is done when compute begins.
  Sketch later(2);
  const TransferCost cost{.wire_s = 2, .core_share = kHardlyAny, .beside_compute = 4};
  const std::uint32_t posted[] = {later.all_reduce(0, cost), later.all_reduce(1, cost)};
  later.move(0, 1, {.latency_s = 1});
  later.compute(1, 10);
  for (const std::uint32_t rank : {0, 1}) later.wait(rank, posted[rank]);
  EXPECT_NEAR(later.run().ranks[0].end_s[0], 1 + 4, 1e-9);
}

// Two transfers in flight take no more of a core than there is: each other's time, latencies too. One whose members share a
// core was measured so.
TEST(Shared, TransfersInFlightShareTheCores) {
  const auto run = [](std::uint32_t count, std::uint32_t cores) {
    Sketch sketch(2);
    std::vector<std::uint32_t> posted[2];
    for (std::uint32_t k = 0; k < count; ++k)
      for (const std::uint32_t rank : {0, 1})
        posted[rank].push_back(sketch.all_reduce(rank, {.latency_s = 1, .wire_s = 1, .core_share = 0.8}));
    for (const std::uint32_t rank : {0, 1})
      for (const std::uint32_t i : posted[rank]) sketch.wait(rank, i);
    Cluster cluster = plain_cluster(2);
    for (RankPlace& place : cluster.place) place.device %= cores;
    return sketch.run(cluster).step_s;
  };
  EXPECT_NEAR(run(1, 2), 2, kRounding);
  EXPECT_NEAR(run(1, 1), 2, kRounding);
  // Both latencies of 1 s at 1/1.6, then the bytes of one after the other.
  EXPECT_NEAR(run(2, 2), 1.6 + 2, kRounding);
  EXPECT_NEAR(run(2, 1), 2 + 2, kRounding);
}

TEST(Shared, ContentionSlowsCompute) {
  // 1 s alone, 1.5 s beside another rank of the node.
  Cluster cluster = plain_cluster(3);
  Sketch sketch(3, 2);
  sketch.compute(0, {1, 1.5});
  sketch.compute(1, {2, 3});
  const Timeline timeline = sketch.run(cluster);
  EXPECT_NEAR(end_of(timeline, 0), 1.5, kRounding);
  EXPECT_NEAR(end_of(timeline, 1), 1.5 + 1, kRounding);  // half done, then alone
  // No contention with another node.
  EXPECT_NEAR(end_of(sketch.run(on_nodes(cluster, 1)), 0), 1, kRounding);
  // More ranks than levels: the last level holds.
  sketch.compute(2, {2, 3});
  cluster = plain_cluster(3);
  EXPECT_NEAR(end_of(sketch.run(cluster), 0), 1.5, kRounding);
  EXPECT_NEAR(end_of(sketch.run(cluster), 2), 3, kRounding);
}

// A transfer that is still in its latency has no bytes on the link.
TEST(Shared, LatenciesShareNothing) {
  Sketch sketch(4);
  sketch.move(0, 1, {.wire_s = 2});
  sketch.move(2, 3, {.latency_s = 3, .wire_s = 1});
  Cluster cluster = plain_cluster(4);
  cluster.levels[0].link.shared = true;
  const Timeline timeline = sketch.run(cluster);
  EXPECT_NEAR(end_of(timeline, 1), 2, kRounding);
  EXPECT_NEAR(end_of(timeline, 3), 4, kRounding);
}

// ---- Ports: transfers of different pairs and groups meet there. ----

/// Rank 0 sends to rank 1 at once and to rank 2 after `pause_s`; when each of them has it.
std::pair<double, double> two_messages_of_one_sender(double pause_s) {
  Sketch sketch(3);
  const std::uint32_t first = sketch.send(0, 1, {.wire_s = 2});
  if (pause_s > 0) sketch.compute(0, pause_s);
  const std::uint32_t second = sketch.send(0, 2, {.wire_s = 2});
  for (const std::uint32_t sent : {first, second}) sketch.wait(0, sent);
  for (const std::uint32_t rank : {1U, 2U}) sketch.wait(rank, sketch.recv(rank, 0, {.wire_s = 2}));
  const Timeline timeline = sketch.run();
  return {end_of(timeline, 1), end_of(timeline, 2)};
}

TEST(Shared, TwoMessagesShareTheirSendersPort) {
  EXPECT_EQ(two_messages_of_one_sender(0), (std::pair(4.0, 4.0)));
  EXPECT_EQ(two_messages_of_one_sender(1), (std::pair(3.0, 4.0)));  // a second each alone
  EXPECT_EQ(two_messages_of_one_sender(2), (std::pair(2.0, 4.0)));  // never at the same time
  EXPECT_EQ(two_messages_of_one_sender(5), (std::pair(2.0, 7.0)));
}

TEST(Shared, APortIsFullDuplex) {
  Sketch sketch(3);
  const TransferCost cost{.wire_s = 2};
  const std::uint32_t in = sketch.recv(0, 2, cost), out = sketch.send(0, 1, cost);
  sketch.wait(0, in);
  sketch.wait(0, out);
  sketch.wait(1, sketch.recv(1, 0, cost));
  sketch.wait(2, sketch.send(2, 0, cost));
  EXPECT_DOUBLE_EQ(sketch.run().step_s, 2);
}

TEST(Shared, AMessageMeetsACollective) {
  Sketch sketch(3);
  const TransferCost cost{.wire_s = 2};
  std::vector<std::uint32_t> posted;
  for (std::uint32_t rank = 0; rank < 3; ++rank) posted.push_back(sketch.all_reduce(rank, cost));
  sketch.move(0, 1, cost);
  for (std::uint32_t rank = 0; rank < 3; ++rank) sketch.wait(rank, posted[rank]);
  EXPECT_DOUBLE_EQ(sketch.run().step_s, 4);
}

// The bytes of a channel go in the order in which its messages could begin, whichever end was looked at first.
TEST(Shared, AMessagePostedEarlierGoesFirst) {
  Sketch sketch(2);
  const TransferCost cost{.wire_s = 2};
  const std::uint32_t a = sketch.send(1, 0, cost);
  sketch.compute(1, 1);
  const std::uint32_t b = sketch.send(1, 0, cost);
  std::vector<std::uint32_t> received{sketch.recv(0, 1, cost), sketch.recv(0, 1, cost)};
  std::swap(sketch.program.roles[0].tag[received[0]], sketch.program.roles[0].tag[received[1]]);
  sketch.match_costs();
  for (const std::uint32_t r : {received[1], received[0]}) sketch.wait(0, r);
  for (const std::uint32_t sent : {a, b}) sketch.wait(1, sent);
  for (const Costs& costs : {sketch.costs, as_fluid(sketch.costs)}) {
    const Timeline timeline = simulate(sketch.program, costs, plain_cluster(2));
    EXPECT_DOUBLE_EQ(timeline.ranks[1].end_s[a], 2);
    EXPECT_DOUBLE_EQ(timeline.ranks[1].end_s[b], 4);
  }
}

// ---- Two nodes, with links of different kinds. ----

TEST(Shared, EveryTransferGoesAsItsLinkDoes) {
  const Sketch sketch = compute_beside_message({.latency_s = 1, .wire_s = 2}, 1.5, 5);
  for (const Costs& costs : {sketch.costs, as_fluid(sketch.costs)})
    for (const std::uint32_t node : {0U, 1U}) {
      Cluster cluster = node == 0 ? receiver_cluster(2) : on_nodes(receiver_cluster(2), 1);
      if (node == 1) cluster.levels[1].link.engine = TransferEngine::background;
      const Timeline timeline = simulate(sketch.program, costs, cluster);
      EXPECT_DOUBLE_EQ(end_of(timeline, 1), node == 0 ? 5 + 3 : 5) << "rank 1 on node " << node;
      const Timeline again = replay(sketch.program, durations_of(sketch.program, timeline, cluster), cluster);
      EXPECT_DOUBLE_EQ(end_of(again, 1), end_of(timeline, 1));
    }
}

TEST(Shared, EveryNodeHasABusOfItsOwn) {
  Sketch sketch(4);
  sketch.move(0, 1, {.wire_s = 2});
  sketch.move(2, 3, {.wire_s = 2});
  Cluster cluster = plain_cluster(4);
  cluster.levels[0].link.shared = true;
  EXPECT_DOUBLE_EQ(sketch.run(cluster).step_s, 4);
  EXPECT_DOUBLE_EQ(sketch.run(on_nodes(cluster, 2)).step_s, 2);
}

// ---- The ranks' own threads copy: while a rank waits, it copies whatever it can. ----

TEST(Shared, RanksMayWaitForTheirSendsFirst) {
  Sketch sketch(2);
  const TransferCost cost{.latency_s = 1, .wire_s = 2};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const std::uint32_t sent = sketch.send(rank, 1 - rank, cost), received = sketch.recv(rank, 1 - rank, cost);
    sketch.wait(rank, sent);
    sketch.wait(rank, received);
  }
  const Timeline timeline = sketch.run(receiver_cluster(2));
  EXPECT_DOUBLE_EQ(timeline.step_s, 3);
  EXPECT_DOUBLE_EQ(
      replay(sketch.program, durations_of(sketch.program, timeline, receiver_cluster(2)), receiver_cluster(2)).step_s,
      3);
}

/// Rank 1 waits for rank 0's message, which comes at `ready_s`, then for rank 2's, which is there from the start.
double end_of_the_receiver_of_two(double ready_s) {
  Sketch sketch(3);
  const TransferCost cost{.wire_s = 1};
  sketch.compute(0, ready_s);
  sketch.wait(0, sketch.send(0, 1, cost));
  sketch.wait(2, sketch.send(2, 1, cost));
  const std::uint32_t late = sketch.recv(1, 0, cost), early = sketch.recv(1, 2, cost);
  sketch.wait(1, late);
  sketch.wait(1, early);
  const Cluster cluster = receiver_cluster(3);
  const Timeline timeline = sketch.run(cluster);
  EXPECT_DOUBLE_EQ(end_of(replay(sketch.program, durations_of(sketch.program, timeline, cluster), cluster), 1),
                   end_of(timeline, 1));
  return end_of(timeline, 1);
}

TEST(Shared, AWaitingRankCopiesWhatIsThere) {
  EXPECT_DOUBLE_EQ(end_of_the_receiver_of_two(5), 6);    // the second message meanwhile
  EXPECT_DOUBLE_EQ(end_of_the_receiver_of_two(0.5), 2);  // one after the other: the thread is busy with the second
}

TEST(Shared, TheRootOfABroadcastNeedntWait) {
  Sketch sketch(3);
  const TransferCost cost{.wire_s = 1};
  for (std::uint32_t rank = 0; rank < 3; ++rank) {
    const std::uint32_t posted = sketch.broadcast(rank, 0, cost);
    if (rank != 1) sketch.compute(rank, rank == 0 ? 5 : 2);
    sketch.wait(rank, posted);
  }
  for (const Costs& costs : {sketch.costs, as_fluid(sketch.costs)}) {
    const Timeline timeline = simulate(sketch.program, costs, receiver_cluster(3));
    EXPECT_DOUBLE_EQ(end_of(timeline, 1), 1);  // each copies for itself
    EXPECT_DOUBLE_EQ(end_of(timeline, 2), 3);
    EXPECT_DOUBLE_EQ(end_of(timeline, 0), 5);
  }
}

// ---- Real-time threads of one priority: one runs until it waits. ----

/// All ranks on `cores` cores, rank r on core r modulo their number.
Cluster real_time_cluster(std::uint32_t ranks, std::uint32_t cores, TransferEngine engine) {
  Cluster cluster = plain_cluster(ranks);
  cluster.levels[0].link.engine = engine;
  cluster.scheduling = Scheduling::run_until_wait;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) cluster.place[rank].device = rank % cores;
  return cluster;
}

TEST(RunUntilWait, ARankKeepsTheCore) {
  Sketch sketch(2);
  for (const double s : {1.0, 2.0}) sketch.compute(0, s);
  sketch.compute(1, 4);
  const Timeline timeline = sketch.run(real_time_cluster(2, 1, TransferEngine::background));
  EXPECT_DOUBLE_EQ(end_of(timeline, 0), 3);
  EXPECT_DOUBLE_EQ(timeline.ranks[1].start_s[0], 3);
  EXPECT_DOUBLE_EQ(end_of(timeline, 1), 7);
  sketch.costs.launch_s = 0.25;  // is the core's time, too
  EXPECT_DOUBLE_EQ(end_of(sketch.run(real_time_cluster(2, 1, TransferEngine::background)), 1), 7.75);
}

TEST(RunUntilWait, AWaitThatIsOverKeepsTheCore) {
  Sketch sketch(3);
  const std::uint32_t received = sketch.recv(0, 2, {});
  sketch.compute(0, 1);
  sketch.wait(0, received);  // rank 2 has sent long ago
  sketch.compute(0, 1);
  sketch.compute(1, 1);
  sketch.wait(2, sketch.send(2, 0, {}));
  const Timeline timeline = sketch.run(real_time_cluster(3, 2, TransferEngine::background));
  // Ranks 0 and 2 share core 0: rank 2 sends only when rank 0 waits for it.
  EXPECT_DOUBLE_EQ(timeline.ranks[2].posted_s[0], 1);
  EXPECT_DOUBLE_EQ(end_of(timeline, 0), 2);
  Sketch apart(2);
  const std::uint32_t there = apart.recv(0, 1, {});
  apart.wait(1, apart.send(1, 0, {}));
  apart.compute(0, 1);
  apart.wait(0, there);
  apart.compute(0, 1);
  EXPECT_DOUBLE_EQ(end_of(apart.run(real_time_cluster(2, 2, TransferEngine::background)), 0), 2);
}

/// Every rank computes for c, all-reduces (t), and updates (u).
Sketch ddp(std::uint32_t ranks, double c, double t, double u) {
  Sketch sketch(ranks);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    sketch.compute(rank, c);
    sketch.wait(rank, sketch.all_reduce(rank, {.wire_s = t}));
    sketch.compute(rank, u);
  }
  return sketch;
}

TEST(RunUntilWait, DdpOnSharedCores) {
  constexpr double c = 4, t = 1, u = 0.5;
  for (const auto& [ranks, cores] : {std::pair(2U, 1U), {4U, 2U}, {4U, 1U}}) {
    const double each = ranks / cores;
    // A transfer in the background takes no core time here; one that the ranks copy takes each rank's.
    const Timeline background = ddp(ranks, c, t, u).run(real_time_cluster(ranks, cores, TransferEngine::background));
    EXPECT_DOUBLE_EQ(background.step_s, each * c + t + each * u) << ranks << " on " << cores;
    const Timeline copied = ddp(ranks, c, t, u).run(real_time_cluster(ranks, cores, TransferEngine::receiver));
    EXPECT_DOUBLE_EQ(copied.step_s, each * (c + t + u)) << ranks << " on " << cores;
    // No rank's compute is stretched: it waits for its turn.
    for (const RankTimeline& rank : background.ranks) EXPECT_DOUBLE_EQ(rank.compute_s, c + u);
    EXPECT_DOUBLE_EQ(background.ranks[0].end_s[0], c);
    EXPECT_DOUBLE_EQ(background.ranks[cores].start_s[0], c);
  }
}

TEST(RunUntilWait, TheRankThatIsReadyForLongestIsNext) {
  // On core 0, rank 0 waits for rank 1 and rank 2 for rank 3, whose message comes first; rank 4 has the core until both
  // are there.
  Sketch sketch(5);
  sketch.compute(1, 3);
  sketch.move(1, 0, {});
  sketch.compute(0, 1);
  sketch.compute(3, 2);
  sketch.move(3, 2, {});
  sketch.compute(2, 1);
  sketch.compute(4, 10);
  Cluster cluster = real_time_cluster(5, 5, TransferEngine::background);
  cluster.place[2].device = cluster.place[4].device = 0;
  const Timeline timeline = sketch.run(cluster);
  EXPECT_DOUBLE_EQ(end_of(timeline, 2), 11);
  EXPECT_DOUBLE_EQ(end_of(timeline, 0), 12);
}

// Ranks 0 and 1 sum, ranks 2 and 3 share their cores. Who posts first sleeps, and the other rank of its core gets it; who
// posts last goes on when the transport's threads are done, which have its core meanwhile.
TEST(RunUntilWait, WhoPostsACollectiveLastKeepsTheCore) {
  const auto run = [](double core_share, std::uint32_t device_of_first) {
    Sketch sketch(4);
    sketch.program.mesh.axes = {{"outer", 2}, {"inner", 2}};
    sketch.program.groups.emplace_back("pair", 0b10, sketch.program.mesh);
    for (const std::uint32_t rank : {0, 1}) {
      sketch.compute(rank, rank == 0 ? 2 : 1);
      sketch.wait(rank, sketch.all_reduce(rank, {.wire_s = 1, .core_share = core_share}));
      sketch.compute(rank, 1);
    }
    for (const std::uint32_t rank : {2, 3}) sketch.compute(rank, 5);
    Cluster cluster = real_time_cluster(4, 2, TransferEngine::background);
    cluster.place[1].device = device_of_first;
    return sketch.run(cluster);
  };
  const Timeline timeline = run(1, 1);
  EXPECT_NEAR(timeline.ranks[3].start_s[0], 1, kRounding);
  EXPECT_NEAR(end_of(timeline, 0), 2 + 1 + 1, kRounding);
  EXPECT_NEAR(timeline.ranks[2].start_s[0], 4, kRounding);
  // A transfer that takes nothing of the core lets the other rank have it.
  EXPECT_NEAR(run(0, 1).ranks[2].start_s[0], 2, kRounding);
  EXPECT_NEAR(end_of(run(0, 1), 0), 2 + 5 + 1, kRounding);
  // Of two members on one core the other's part comes between: rank 1 posts last, at 3.
  EXPECT_NEAR(run(1, 0).ranks[2].start_s[0], 3, kRounding);
}

TEST(RunUntilWait, GpipeOnSharedCores) {
  constexpr std::int32_t m = 4;
  constexpr double f = 1, b = 2;
  const ScheduleKind& gpipe = schedule_table().at("gpipe");
  // Two stages on one core: the second begins when the first has sent all and waits for the gradients; then the first
  // stands ready until the second is done.
  const Timeline two = pipeline({f, f}, {b, b}, m, gpipe).run(real_time_cluster(2, 1, TransferEngine::background));
  EXPECT_DOUBLE_EQ(two.step_s, 2 * m * (f + b));
  const std::uint32_t first_backward = 2 * m + 2;  // after m computes and sends, a recv and its wait
  EXPECT_DOUBLE_EQ(two.ranks[0].start_s[first_backward], m * f + m * (f + b));
}

TEST(RunUntilWait, FourStagesOnTwoCores) {
  constexpr std::uint32_t kStages = 4, kMicrobatches = 4;
  Sketch sketch(kStages);
  for (std::uint32_t s = 0; s < kStages; ++s) {
    std::vector<std::uint32_t> sent;
    for (std::uint32_t k = 0; k < kMicrobatches; ++k) {
      if (s > 0) sketch.wait(s, sketch.recv(s, s - 1, {}));
      sketch.compute(s, 1);
      if (s + 1 < kStages) sent.push_back(sketch.send(s, s + 1, {}));
    }
    for (const std::uint32_t send : sent) sketch.wait(s, send);
  }
  const Timeline timeline = sketch.run(real_time_cluster(kStages, 2, TransferEngine::background));
  // Stage 2 gets the core of stage 0 when that has sent its last, stage 3 follows on the other core.
  EXPECT_DOUBLE_EQ(timeline.ranks[2].start_s[2], kMicrobatches);
  EXPECT_DOUBLE_EQ(timeline.step_s, 2 * kMicrobatches + 1);
}

// gloo's threads preempt whoever has the core.
TEST(RunUntilWait, TransportsTakeTheirShareOfTheCore) {
  Sketch sketch(3);
  const TransferCost cost{.wire_s = 2, .core_share = 0.5};
  const std::uint32_t sent = sketch.send(0, 1, cost), received = sketch.recv(1, 0, cost);
  sketch.wait(0, sent);
  sketch.wait(1, received);
  sketch.compute(2, 4);  // shares core 0 with rank 0, which waits
  Cluster cluster = real_time_cluster(3, 2, TransferEngine::background);
  EXPECT_DOUBLE_EQ(end_of(sketch.run(cluster), 2), 5);
}

// Who posts before the others has the transport begin on its core; whoever is next there waits. Not who posts last.
TEST(RunUntilWait, BeginningACollectiveTakesTheCore) {
  constexpr double c = 4, e = 1, t = 2;
  Sketch sketch(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    sketch.compute(rank, c);
    sketch.wait(rank, sketch.all_reduce(rank, {.wire_s = t, .engaged_s = e}));
  }
  // Ranks 0 and 1 post at c, ranks 2 and 3 begin when the transport has begun. The last of these begins the transfer.
  const double later = 2 * c + e;
  const Timeline timeline = sketch.run(real_time_cluster(4, 2, TransferEngine::background));
  EXPECT_DOUBLE_EQ(timeline.ranks[2].start_s[0], c + e);
  for (const std::uint32_t rank : {2U, 3U}) EXPECT_NEAR(timeline.ranks[rank].posted_s[1], later, kRounding);
  for (std::uint32_t rank = 0; rank < 4; ++rank) EXPECT_NEAR(end_of(timeline, rank), later + t, kRounding);
}

}  // namespace
}  // namespace sim
