#include "sim/simulate/simulate.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::plain_cluster;
using testing::small_model;
using testing::strategy_texts;

constexpr double kRounding = 1e-9;

Cluster receiver_cluster(std::uint32_t ranks) {
  Cluster cluster = plain_cluster(ranks);
  cluster.link.engine = TransferEngine::receiver;
  return cluster;
}

/// A program written call by call, a role per rank, with prices set by hand. Instructions issue in no time.
struct Sketch {
  Program program;
  Prices prices;

  explicit Sketch(std::uint32_t ranks, std::uint32_t busy_levels = 1) {
    prices.busy_levels = busy_levels;
    prices.transfer_of.resize(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) {
      program.roles.emplace_back().name = fmt::format("rank{}", r);
      program.roles[r].ranks = {r};
    }
  }
  /// Seconds with 1, 2, … busy ranks.
  void compute(std::uint32_t rank, std::vector<double> seconds) {
    seconds.resize(prices.busy_levels, seconds.back());
    const std::uint32_t x = tensor(rank);
    Instruction i;
    i.work = static_cast<std::uint32_t>(program.works.size());
    i.reads = i.writes = {x};
    const OpKind& relu = op_table().at("relu");
    program.works.push_back({{&relu, complete_attributes(relu, {}, ""), {{Dtype::f32, {1}}}}, Pass::forward, 0});
    prices.work_s.insert(prices.work_s.end(), seconds.begin(), seconds.end());
    add(rank, i, kNone);
  }
  void compute(std::uint32_t rank, double seconds) { compute(rank, std::vector{seconds}); }
  std::uint32_t send(std::uint32_t rank, std::uint32_t to, const TransferCost& cost) {
    Instruction i;
    i.kind = InstructionKind::send;
    i.peer = to;
    i.tag = tags_[{rank, to, true}]++;
    i.reads = {tensor(rank)};
    return add(rank, i, price(cost));
  }
  std::uint32_t recv(std::uint32_t rank, std::uint32_t from, const TransferCost& cost) {
    Instruction i;
    i.kind = InstructionKind::recv;
    i.peer = from;
    i.tag = tags_[{from, rank, false}]++;
    i.writes = {tensor(rank)};
    return add(rank, i, price(cost));
  }
  std::uint32_t all_reduce(std::uint32_t rank, const TransferCost& cost) {
    if (program.groups.empty()) {
      program.groups.push_back({"data", {{}}});
      for (std::uint32_t r = 0; r < program.roles.size(); ++r) program.groups[0].members[0].push_back(r);
    }
    Instruction i;
    i.kind = InstructionKind::collective;
    i.peer = 0;
    i.reads = i.writes = {tensor(rank)};
    return add(rank, i, price(cost));
  }
  void wait(std::uint32_t rank, std::uint32_t posted) {
    Instruction i;
    i.kind = InstructionKind::wait;
    i.awaits = posted;
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
    return simulate(program, prices, cluster);
  }
  [[nodiscard]] Timeline run() const { return run(plain_cluster(program.ranks())); }

 private:
  std::uint32_t tensor(std::uint32_t rank) {
    Role& role = program.roles[rank];
    return role.add_tensor(fmt::format("t{}", role.tensors.size()), {Dtype::f32, {1}}, TensorClass::input, true);
  }
  std::uint32_t price(const TransferCost& cost) {
    prices.transfers.push_back(cost);
    return static_cast<std::uint32_t>(prices.transfers.size() - 1);
  }
  std::uint32_t add(std::uint32_t rank, const Instruction& instruction, std::uint32_t transfer) {
    prices.transfer_of[rank].push_back(transfer);
    return program.roles[rank].add(instruction);
  }
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, std::uint32_t> tags_;
};

/// The same prices with a second busy level of equal times: nothing changes but the engine's path through time.
Prices as_fluid(Prices prices) {
  if (prices.busy_levels > 1) return prices;
  std::vector<double> twice;
  for (double work : prices.work_s) twice.insert(twice.end(), 2, work);
  prices.work_s = twice;
  prices.busy_levels = 2;
  return prices;
}

double end_of(const Timeline& timeline, std::uint32_t rank) { return timeline.ranks.at(rank).end_of_step_s; }

// ---- One thing at a time. ----

TEST(Simulate, ComputeAddsUp) {
  Sketch sketch(1);
  for (double s : {1.0, 2.0, 0.5}) sketch.compute(0, s);
  EXPECT_DOUBLE_EQ(sketch.run().step_s, 3.5);
  sketch.prices.launch_s = 0.25;  // a CPU's thread issues, then computes
  EXPECT_DOUBLE_EQ(sketch.run().step_s, 3.5 + 3 * 0.25);
  EXPECT_DOUBLE_EQ(sketch.run().ranks[0].host_s, 3 * 0.25);
  EXPECT_DOUBLE_EQ(sketch.run().ranks[0].start_s[1], 1 + 2 * 0.25);
}

TEST(Simulate, AnEmptyProgramTakesNoTime) { EXPECT_EQ(Sketch(3).run().step_s, 0); }

TEST(Simulate, AMessageIsAlphaPlusBeta) {
  Sketch sketch(2);
  sketch.compute(0, 1);
  sketch.move(0, 1, {.latency_s = 0.5, .wire_s = 2});
  for (const Prices& prices : {sketch.prices, as_fluid(sketch.prices)})
    for (const Cluster& cluster : {plain_cluster(2), receiver_cluster(2)}) {
      const Timeline timeline = simulate(sketch.program, prices, cluster);
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

/// Rank 0 sends to rank 1 at once; both compute, then wait for it.
Sketch compute_beside_message(const TransferCost& cost, double sender_s, double receiver_s) {
  Sketch sketch(2);
  const std::uint32_t sent = sketch.send(0, 1, cost), received = sketch.recv(1, 0, cost);
  sketch.compute(0, sender_s);
  sketch.compute(1, receiver_s);
  sketch.wait(0, sent);
  sketch.wait(1, received);
  return sketch;
}

// A transfer goes on beside compute, except where the receiver's own thread copies.
TEST(Simulate, EnginesDifferInOverlap) {
  const Sketch sketch = compute_beside_message({.latency_s = 1, .wire_s = 2}, 1.5, 5);
  for (const Prices& prices : {sketch.prices, as_fluid(sketch.prices)}) {
    const Timeline background = simulate(sketch.program, prices, plain_cluster(2));
    EXPECT_DOUBLE_EQ(end_of(background, 0), 3);
    EXPECT_DOUBLE_EQ(end_of(background, 1), 5);
    const Timeline receiver = simulate(sketch.program, prices, receiver_cluster(2));
    EXPECT_DOUBLE_EQ(end_of(receiver, 1), 5 + 3);  // begins when the receiver waits
    EXPECT_DOUBLE_EQ(end_of(receiver, 0), 5 + 3);
    EXPECT_DOUBLE_EQ(receiver.ranks[0].start_s[0], 0);  // though both had posted at once
  }
}

// Who posts goes on when the call is back; that is host time, and a launch more is none.
TEST(Simulate, PostingKeepsTheThread) {
  Sketch sketch = compute_beside_message({.latency_s = 1, .wire_s = 2, .post_s = 0.5, .recv_post_s = 0.25}, 4, 1);
  for (const Prices& prices : {sketch.prices, as_fluid(sketch.prices)}) {
    const Timeline timeline = simulate(sketch.program, prices, plain_cluster(2));
    EXPECT_DOUBLE_EQ(timeline.ranks[0].start_s[1], 0.5);
    EXPECT_DOUBLE_EQ(timeline.ranks[1].start_s[1], 0.25);
    EXPECT_DOUBLE_EQ(end_of(timeline, 0), 4.5);
    EXPECT_DOUBLE_EQ(end_of(timeline, 1), 3);  // the transfer began with the posts
    EXPECT_DOUBLE_EQ(timeline.ranks[0].host_s, 0.5);
  }
  sketch.prices.launch_s = 0.125;
  const Timeline timeline = sketch.run();
  EXPECT_DOUBLE_EQ(timeline.ranks[0].start_s[1], 0.125 + 0.5);
  EXPECT_DOUBLE_EQ(timeline.ranks[1].start_s[1], 0.125 + 0.25);
}

// A short message is all latency, and that is its ends' work as much as moving bytes is.
TEST(Simulate, ATransferTakesCoreTimeFromItsFirstMomentOn) {
  const Timeline timeline = compute_beside_message({.latency_s = 1, .wire_s = 1, .core_share = 0.5}, 2, 2).run();
  for (std::uint32_t rank = 0; rank < 2; ++rank) EXPECT_DOUBLE_EQ(end_of(timeline, rank), 3) << rank;
}

/// A core loses all but a fiftieth of this time.
constexpr double kNote = 0.5, kLost = 0.98 * kNote;
constexpr TransferCost kTold{.latency_s = 1,
                             .post_s = 0.75,
                             .recv_post_s = 0.25,
                             .core_share = 0.5,
                             .rendezvous = {.note_s = kNote, .delivery_s = 0.25, .latency_s = 2, .post_s = 0.125}};

// The note of the send falls into the receiver's compute; once the receiver has posted, the transport's thread writes
// on the sender's core.
TEST(Simulate, AnUnexpectedMessageWaitsForItsReceiver) {
  Sketch sketch(2);
  const std::uint32_t sent = sketch.send(0, 1, kTold);
  sketch.compute(0, 4);
  sketch.wait(0, sent);
  sketch.compute(1, 2);
  sketch.wait(1, sketch.recv(1, 0, kTold));
  const Timeline timeline = sketch.run();
  const double ready = 2 + kLost, done = ready + 2;
  EXPECT_NEAR(timeline.ranks[1].posted_s[1], ready, kRounding);
  EXPECT_NEAR(end_of(timeline, 1), done, kRounding);
  EXPECT_NEAR(timeline.ranks[0].start_s[1], 0.125, kRounding);
  EXPECT_NEAR(end_of(timeline, 0), 0.125 + 4 + 0.5 * (done - (ready + 0.25)), kRounding);
}

// The note of the recv falls into the sender's compute; its thread then writes while it posts, and the transport's
// thread what is left: nothing of a small message.
TEST(Simulate, AnExpectedMessageIsWrittenByItsSender) {
  for (const double wire_s : {0.0, 4.0}) {
    TransferCost cost = kTold;
    cost.wire_s = wire_s;
    Sketch sketch(2);
    sketch.compute(0, 1);
    const std::uint32_t sent = sketch.send(0, 1, cost);
    sketch.compute(0, 9);
    sketch.wait(0, sent);
    sketch.wait(1, sketch.recv(1, 0, cost));
    const Timeline timeline = sketch.run();
    EXPECT_NEAR(timeline.ranks[0].posted_s[1], 1 + kLost, kRounding);
    EXPECT_NEAR(end_of(timeline, 1), 1 + kLost + 1 + wire_s, kRounding);
    EXPECT_NEAR(end_of(timeline, 0), 1 + kLost + 0.75 + 9 + 0.5 * wire_s, kRounding);
  }
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
    for (const Prices& prices : {sketch.prices, as_fluid(sketch.prices)}) {
      EXPECT_NEAR(end_of(simulate(sketch.program, prices, plain_cluster(2)), 1), wire, kRounding) << pause;
      EXPECT_NEAR(end_of(simulate(sketch.program, prices, receiver_cluster(2)), 1), thread, kRounding) << pause;
    }
  }
}

// ---- Strategies against their closed forms. ----

/// Equal or unequal stages: forward and backward seconds of each, `microbatches` by the schedule; moving costs nothing.
Sketch pipeline(const std::vector<double>& forward, const std::vector<double>& backward, std::int32_t microbatches,
                const ScheduleKind& schedule) {
  const auto stages = static_cast<std::uint32_t>(forward.size());
  Sketch sketch(stages);
  for (std::uint32_t s = 0; s < stages; ++s) {
    std::vector<std::uint32_t> sent;
    for (const Action& action : schedule.stage(s, stages, microbatches)) {
      const bool is_forward = action.kind == Action::Kind::forward;
      const bool receives = is_forward ? s > 0 : s + 1 < stages, sends = is_forward ? s + 1 < stages : s > 0;
      const std::uint32_t source = is_forward ? s - 1 : s + 1, target = is_forward ? s + 1 : s - 1;
      if (receives) sketch.wait(s, sketch.recv(s, source, {}));
      sketch.compute(s, is_forward ? forward[s] : backward[s]);
      if (sends) sent.push_back(sketch.send(s, target, {}));
    }
    for (std::uint32_t send : sent) sketch.wait(s, send);
  }
  return sketch;
}

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
      EXPECT_NEAR(
          simulate(sketch.program, as_fluid(sketch.prices), plain_cluster(static_cast<std::uint32_t>(p))).step_s,
          expected, kRounding);
      // Every stage works m(f+b) and stands (p−1)(f+b).
      for (const RankTimeline& rank : sketch.run().ranks) {
        EXPECT_NEAR(rank.compute_s, m * (f + b), kRounding);
        EXPECT_NEAR(rank.bubble_s, (static_cast<double>(p) - 1) * (f + b), kRounding);
      }
    }
}

// For whatever schedule is in the table: no stage computes less than all microbatches, and none waits for ever.
TEST(Simulate, EveryScheduleIsBounded) {
  for (const ScheduleKind& schedule : schedule_table())
    for (std::size_t p = 1; p <= 4; ++p)
      for (std::int32_t m = 1; m <= 8; ++m) {
        const double step = pipeline(std::vector(p, 1.0), std::vector(p, 2.0), m, schedule).run().step_s;
        EXPECT_GE(step, 3 * (m + static_cast<double>(p) - 1) - kRounding) << schedule.name;
        EXPECT_LE(step, 3 * m * static_cast<double>(p) + kRounding) << schedule.name;
      }
}

TEST(Simulate, NaiveModelParallelIsTheSumOfItsStages) {
  const std::vector<double> forward{1, 4, 2}, backward{3, 5, 1};
  EXPECT_NEAR(pipeline(forward, backward, 1, schedule_table().at("gpipe")).run().step_s, 1 + 4 + 2 + 3 + 5 + 1,
              kRounding);
}

/// Prices of the analytic model without launch times.
Prices analytic_prices(const Program& program, const Cluster& cluster) {
  Prices prices = price(program, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
  prices.launch_s = 0;
  return prices;
}

TEST(Simulate, ModelParallelIsComputePlusMessages) {
  for (const char* name : {"toy_mlp", "convnet", "vgg11"}) {  // chains: one tensor crosses each cut
    const Model model = small_model(name);
    const Program program = lower(model, parse_strategy("model_parallel,pp=3", model));
    const Prices prices = analytic_prices(program, plain_cluster(3));
    double expected = 0, updates = 0;
    for (std::uint32_t r = 0; r < 3; ++r)
      for (std::uint32_t i = 0; i < program.roles[r].size(); ++i) {
        const Role& role = program.roles[r];
        if (role.kind[i] == InstructionKind::compute) expected += prices.work_s[role.work[i]];
        if (r == 0 && role.kind[i] == InstructionKind::update) updates += prices.work_s[role.work[i]];
        if (role.kind[i] == InstructionKind::send) {
          const TransferCost& cost = prices.transfers[prices.transfer_of[r][i]];
          expected += cost.latency_s + cost.wire_s;
        }
      }
    const Timeline timeline = simulate(program, prices, plain_cluster(3));
    EXPECT_NEAR(end_of(timeline, 0), expected + updates, kRounding * expected) << name;
  }
}

TEST(Simulate, DdpIsComputePlusAllReduces) {
  for (const std::string& name : catalog_names("models"))
    for (const std::uint32_t dp : {2U, 4U}) {
      const Model model = small_model(name);
      const Program program = lower(model, parse_strategy(fmt::format("ddp,dp={},bucket_MiB=1", dp), model));
      const Prices prices = analytic_prices(program, plain_cluster(dp));
      const Role& role = program.roles[0];
      double compute = 0, transfers = 0;
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.work[i] != kNone) compute += prices.work_s[role.work[i]];
        if (role.kind[i] != InstructionKind::collective) continue;
        // The cluster's world is gloo: a ring for all_reduce, a tree for broadcast.
        const double s = static_cast<double>(program.transfer_bytes(role, i)), hops = dp - 1.0, depth = dp / 2.0;
        transfers += role.collective[i] == CollectiveKind::all_reduce ? 2 * hops * 20e-6 + 2 * hops / dp * s / 2e9
                                                                      : depth * (20e-6 + s / 2e9);
      }
      ASSERT_GT(transfers, 0);
      const Timeline timeline = simulate(program, prices, plain_cluster(dp));
      EXPECT_NEAR(timeline.step_s, compute + transfers, kRounding * timeline.step_s) << name << " dp=" << dp;
      for (const RankTimeline& rank : timeline.ranks) {
        EXPECT_NEAR(rank.compute_s, compute, kRounding);
        EXPECT_NEAR(rank.exposed_communication_s, transfers, kRounding);
        EXPECT_NEAR(rank.bubble_s, 0, kRounding);
      }
    }
}

// ---- Sharing. ----

TEST(Simulate, RanksOnOneCoreTakeTurns) {
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
  sketch.prices.launch_s = 0.5;
  EXPECT_NEAR(end_of(sketch.run(cluster), 0), 2 * (0.5 + 1), kRounding);
}

TEST(Simulate, EqualRanksOnOneCoreTakeTwiceAsLong) {
  for (const char* name : {"toy_mlp", "convnet", "resnet18"}) {
    const Model model = small_model(name);
    const Program program = lower(model, parse_strategy("ddp,dp=2,broadcast_buffers=0", model));
    Cluster cluster = plain_cluster(2);
    Prices prices = analytic_prices(program, cluster);
    for (TransferCost& cost : prices.transfers) cost = {};
    const double apart = simulate(program, prices, cluster).step_s;
    cluster.place[1] = cluster.place[0];
    EXPECT_NEAR(simulate(program, prices, cluster).step_s, 2 * apart, 1e-6 * apart) << name;
  }
}

TEST(Simulate, FlowsShareALink) {
  const auto run = [](std::vector<double> wires, bool shared) {
    Sketch sketch(static_cast<std::uint32_t>(2 * wires.size()));
    for (std::uint32_t k = 0; k < wires.size(); ++k)
      sketch.move(2 * k, 2 * k + 1, {.latency_s = 0.5, .wire_s = wires[k]});
    Cluster cluster = plain_cluster(sketch.program.ranks());
    cluster.link.shared = shared;
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
TEST(Simulate, TwoRanksShareALinkInBothDirections) {
  Sketch sketch(2);
  const TransferCost cost{.wire_s = 1};
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const std::uint32_t sent = sketch.send(rank, 1 - rank, cost), received = sketch.recv(rank, 1 - rank, cost);
    sketch.wait(rank, sent);
    sketch.wait(rank, received);
  }
  Cluster cluster = plain_cluster(2);
  EXPECT_NEAR(sketch.run(cluster).step_s, 1, kRounding);
  cluster.link.shared = true;
  EXPECT_NEAR(sketch.run(cluster).step_s, 2, kRounding);
}

TEST(Simulate, ATransferTakesItsShareOfTheCore) {
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

TEST(Simulate, CompanySlowsCompute) {
  // 1 s alone, 1.5 s beside another rank of the node.
  Cluster cluster = plain_cluster(3);
  Sketch sketch(3, 2);
  sketch.compute(0, {1, 1.5});
  sketch.compute(1, {2, 3});
  const Timeline timeline = sketch.run(cluster);
  EXPECT_NEAR(end_of(timeline, 0), 1.5, kRounding);
  EXPECT_NEAR(end_of(timeline, 1), 1.5 + 1, kRounding);  // half done, then alone
  // On another node it's no company.
  cluster.devices_per_node = 1;
  cluster.place[1].node = 1;
  cluster.place[2].node = 2;
  EXPECT_NEAR(end_of(sketch.run(cluster), 0), 1, kRounding);
  // More ranks than levels: the last level holds.
  sketch.compute(2, {2, 3});
  cluster = plain_cluster(3);
  EXPECT_NEAR(end_of(sketch.run(cluster), 0), 1.5, kRounding);
  EXPECT_NEAR(end_of(sketch.run(cluster), 2), 3, kRounding);
  // Devices and nodes are what `place` says, whatever the cluster's shape is called.
  cluster.devices_per_node = 1;
  EXPECT_NEAR(end_of(sketch.run(cluster), 2), 3, kRounding);
}

// ---- A GPU: the host issues ahead. ----

TEST(Simulate, AnAsynchronousDeviceIsBoundByHostOrKernels) {
  Cluster cluster = plain_cluster(1);
  cluster.device.asynchronous = true;
  const int n = 10;
  for (const double launch : {0.0, 0.1, 1.0, 5.0}) {
    Sketch sketch(1);
    for (int k = 0; k < n; ++k) sketch.compute(0, 1);
    sketch.prices.launch_s = launch;
    // Kernels follow each other, or each waits for its launch.
    const double expected = launch <= 1 ? launch + n : n * launch + 1;
    EXPECT_NEAR(sketch.run(cluster).step_s, expected, kRounding) << launch;
    EXPECT_NEAR(simulate(sketch.program, as_fluid(sketch.prices), cluster).step_s, expected, kRounding) << launch;
  }
}

TEST(Simulate, AnAsynchronousHostDoesntWait) {
  // A wait holds the compute lane; the host has issued what follows long before.
  for (const bool asynchronous : {false, true}) {
    Cluster cluster = plain_cluster(2);
    cluster.device.asynchronous = asynchronous;
    Sketch sketch(2);
    sketch.move(0, 1, {.wire_s = 10});
    sketch.compute(1, 1);
    sketch.prices.launch_s = 0.5;
    // Send and receive are posted at 0.5.
    EXPECT_NEAR(end_of(sketch.run(cluster), 1), asynchronous ? 0.5 + 10 + 1 : 0.5 + 10 + 0.5 + 1, kRounding);
  }
}

// ---- Both paths through time agree; a played step replays. ----

/// Calls `check(program, prices, cluster)` for all strategies, models and kinds of device and link.
template <class Check>
void for_each_case(bool with_sharing, const Check& check) {
  for (const std::string& name : catalog_names("models")) {
    const Model model = small_model(name);
    for (const std::string& text : strategy_texts(model)) {
      const Program program = lower(model, parse_strategy(text, model));
      const std::uint32_t ranks = program.ranks();
      std::vector<Cluster> clusters{plain_cluster(ranks), receiver_cluster(ranks), plain_cluster(ranks)};
      clusters[2].device.asynchronous = true;
      if (with_sharing) {
        clusters.push_back(plain_cluster(ranks));
        clusters[3].link.shared = true;
        clusters[3].link.core_share = 0.5;
        clusters.push_back(receiver_cluster(ranks));
        for (RankPlace& place : clusters[4].place) place.device /= 2;  // pairs of ranks on a core
      }
      for (std::size_t c = 0; c < clusters.size(); ++c) {
        SCOPED_TRACE(fmt::format("{} {} on cluster {}", name, text, c));
        check(program, price(program, *cost_model_table().at("analytic").make(clusters[c], nullptr), clusters[c]),
              clusters[c]);
      }
    }
  }
}

void expect_equal(const Timeline& a, const Timeline& b) {
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

TEST(SimulateGrid, FluidTimeIsClosedFormWhereNothingIsShared) {
  for_each_case(false, [](const Program& program, const Prices& prices, const Cluster& cluster) {
    ASSERT_EQ(prices.busy_levels, 1U);
    expect_equal(simulate(program, as_fluid(prices), cluster), simulate(program, prices, cluster));
  });
}

// gloo's sender learns from its wait, much later, that the message is gone.
TEST(Simulate, ASendThatNobodyWaitedForTookUntilItWasReceived) {
  Sketch sketch(2);
  const std::uint32_t sent = sketch.send(0, 1, {.latency_s = 1});
  sketch.compute(0, 5);
  sketch.wait(0, sent);
  sketch.compute(0, 1);
  sketch.wait(1, sketch.recv(1, 0, {.latency_s = 1}));
  const Cluster cluster = plain_cluster(2);
  Timeline timeline = sketch.run(cluster);
  RankTimeline& sender = timeline.ranks[0];
  constexpr double kWait_s = 0.125;  // of a transfer that is done
  sender.end_s[sent] = sender.end_s[2] += kWait_s;
  sender.start_s[3] += kWait_s, sender.end_s[3] += kWait_s;
  const Durations durations = durations_of(sketch.program, timeline, cluster);
  EXPECT_DOUBLE_EQ(durations.seconds[0][sent], 1);
  EXPECT_DOUBLE_EQ(durations.gap_s[0][3], kWait_s);
  EXPECT_DOUBLE_EQ(end_of(replay(sketch.program, durations, cluster), 0), 6 + kWait_s);
}

TEST(SimulateGrid, ReplayReproducesTheTimeline) {
  for_each_case(true, [](const Program& program, const Prices& prices, const Cluster& cluster) {
    const Timeline timeline = simulate(program, prices, cluster);
    expect_equal(replay(program, durations_of(program, timeline, cluster), cluster), timeline);
  });
}

TEST(SimulateGrid, BreakdownSumsToTheStep) {
  for_each_case(true, [](const Program& program, const Prices& prices, const Cluster& cluster) {
    const Timeline timeline = simulate(program, prices, cluster);
    for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
      const RankTimeline& rank = timeline.ranks[r];
      EXPECT_NEAR(rank.compute_s + rank.exposed_communication_s + rank.bubble_s + rank.host_s, timeline.step_s,
                  kRounding * timeline.step_s);
      // Sharing and launches only ever add to what the instructions ask for.
      const Role& role = program.roles[program.places()[r].role];
      double alone = 0;
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (role.work[i] != kNone) alone += prices.work_s[role.work[i]];
      EXPECT_GE(rank.compute_s, alone * (1 - kRounding));
      EXPECT_GE(std::min({rank.bubble_s, rank.exposed_communication_s, rank.host_s}), -kRounding * timeline.step_s);
    }
  });
}

TEST(SimulateGrid, EveryClusterOfTheCatalogPlays) {
  for (const std::string& name : catalog_names("clusters"))
    for (const StrategyKind& kind : strategy_table()) {
      const Model model = small_model("resnet18");
      const Program program = lower(model, parse_strategy(kind.example, model));
      const Cluster cluster = load_cluster(name, program.ranks(), 2);
      const Prices prices = price(program, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
      EXPECT_GT(simulate(program, prices, cluster).step_s, 0) << name << " " << kind.name;
    }
}

TEST(Simulate, SaysThatTheClusterIsTooSmall) {
  EXPECT_EQ(message_of([] { (void)Sketch(3).run(plain_cluster(2)); }),
            "program of 3 ranks on cluster 'plain', which was made for 2");
}

TEST(Simulate, AProgramThatWasntValidatedIsOurError) {
  Sketch sketch(2);
  sketch.wait(0, sketch.send(0, 1, {}));  // nobody receives
  EXPECT_THROW((void)simulate(sketch.program, sketch.prices, plain_cluster(2)), InternalError);
}

// ---- What a timeline must fulfil. ----

/// Rank 0 computes and sends, rank 1 computes, waits and computes.
Sketch small_step() {
  Sketch sketch(2);
  sketch.compute(0, 1);
  const std::uint32_t sent = sketch.send(0, 1, {.wire_s = 1});
  const std::uint32_t received = sketch.recv(1, 0, {.wire_s = 1});
  sketch.compute(1, 0.5);
  sketch.wait(0, sent);
  sketch.wait(1, received);
  sketch.compute(1, 1);
  return sketch;
}

TEST(Timeline, BreakDownByHand) {
  const Timeline timeline = small_step().run();
  EXPECT_DOUBLE_EQ(timeline.step_s, 3);
  const RankTimeline &left = timeline.ranks[0], &right = timeline.ranks[1];
  EXPECT_DOUBLE_EQ(left.compute_s, 1);
  EXPECT_DOUBLE_EQ(left.exposed_communication_s, 1);
  EXPECT_DOUBLE_EQ(left.bubble_s, 1);  // waits for the slowest at the end
  EXPECT_DOUBLE_EQ(right.compute_s, 1.5);
  EXPECT_DOUBLE_EQ(right.exposed_communication_s, 1);
  EXPECT_DOUBLE_EQ(right.bubble_s, 0.5);  // the sender computes for longer
  EXPECT_DOUBLE_EQ(right.host_s, 0);
}

TEST(Timeline, CheckRefusesWhatCantBe) {
  const Sketch sketch = small_step();
  const Timeline good = sketch.run();
  EXPECT_NO_THROW(check(sketch.program, good));
  const auto refuses = [&](const char* what, auto edit) {
    Timeline bad = good;
    edit(bad);
    EXPECT_THROW(check(sketch.program, bad), InternalError) << what;
  };
  // Instructions of rank 1: 0 recv, 1 compute, 2 wait, 3 compute.
  refuses("a rank is missing", [](Timeline& t) { t.ranks.pop_back(); });
  refuses("no number", [](Timeline& t) { t.ranks[1].end_s[1] = NAN; });
  refuses("infinite", [](Timeline& t) { t.ranks[1].end_s[3] = t.step_s = HUGE_VAL; });
  refuses("before the step", [](Timeline& t) { t.ranks[1].start_s[1] = -0.1; });
  refuses("ends before it starts", [](Timeline& t) { t.ranks[1].end_s[1] = -0.1; });
  refuses("ends after the step", [](Timeline& t) { t.ranks[1].end_s[3] = 3.1; });
  refuses("the lane overlaps", [](Timeline& t) { t.ranks[1].start_s[3] = 1.9; });
  refuses("ready before posted", [](Timeline& t) { t.ranks[0].posted_s[1] = 1.1; });
  refuses("posted never", [](Timeline& t) { t.ranks[0].posted_s[1] = NAN; });
  refuses("the wait is over too early", [](Timeline& t) { t.ranks[0].end_s[2] = 1.9; });
  refuses("a rank ends after the step", [](Timeline& t) { t.ranks[0].end_of_step_s = 3.1; });
  refuses("the step is too short", [](Timeline& t) { t.step_s = 2.9; });
  refuses("the breakdown lacks something", [](Timeline& t) { t.ranks[0].compute_s -= 0.1; });
  refuses("negative host time", [](Timeline& t) {
    t.ranks[0].compute_s += 0.1;
    t.ranks[0].host_s -= 0.1;
  });
}

TEST(Timeline, ChromeTraceHasEveryInstruction) {
  const Model model = small_model("convnet");
  for (const char* text : {"single", "ddp,dp=2", "pipeline,pp=3,microbatches=2"}) {
    const Program program = lower(model, parse_strategy(text, model));
    const Cluster cluster = plain_cluster(program.ranks());
    const Timeline timeline = simulate(program, analytic_prices(program, cluster), cluster);
    const auto trace = nlohmann::json::parse(chrome_trace(program, {{"predicted", &timeline}, {"again", &timeline}}));
    std::size_t instructions = 0, complete = 0, processes = 0;
    for (const Role& role : program.roles) instructions += role.size() * role.ranks.size();
    std::map<std::pair<int, int>, double> lane_end;  // by process and thread
    double last = 0;
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("ph") == "M" && event.at("name") == "process_name") ++processes;
      if (event.at("ph") != "X") continue;
      ++complete;
      EXPECT_FALSE(event.at("name").get<std::string>().empty());
      const double begin = event.at("ts"), duration = event.at("dur");
      EXPECT_GE(begin, 0);
      EXPECT_GE(duration, 0);
      last = std::max(last, begin + duration);
      const int lane = event.at("tid");
      if (lane != 2) {  // transfers may overlap
        double& end = lane_end[{event.at("pid"), lane}];
        EXPECT_GE(begin, end - 1e-6);
        end = begin + duration;
      }
    }
    EXPECT_EQ(complete, 2 * instructions) << text;
    EXPECT_EQ(processes, 2 * program.ranks()) << text;
    EXPECT_NEAR(last, timeline.step_s * 1e6, 1e-6 * timeline.step_s * 1e6) << text;
    EXPECT_EQ(trace.at("otherData").at("strategy"), program.strategy);
  }
}

// ---- Jitter ----

TEST(ExpectedStep, WaitsForTheSlowestRank) {
  // Two exponential times of mean 1: the larger has the mean 1 + 1/2.
  constexpr std::uint32_t kRanks = 2;
  Sketch sketch(kRanks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    sketch.compute(rank, 1.0);
    sketch.wait(rank, sketch.all_reduce(rank, {}));
  }
  const Cluster cluster = plain_cluster(kRanks);
  EXPECT_DOUBLE_EQ(expected_step(sketch.program, sketch.prices, cluster).step_s, 1);  // no jitter
  sketch.prices.jitter = {1, 1};
  EXPECT_NEAR(expected_step(sketch.program, sketch.prices, cluster).step_s, 1.5, 0.1);
  // Of many ops in a row the relative spread is smaller: for normal sums the larger has the mean n + sd √(n/π).
  constexpr int kOps = 64;
  Sketch longer(kRanks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < kOps; ++i) longer.compute(rank, 1.0);
    longer.wait(rank, longer.all_reduce(rank, {}));
  }
  longer.prices.jitter.assign(longer.program.works.size(), 0.5);
  EXPECT_NEAR(expected_step(longer.program, longer.prices, cluster).step_s, kOps + 0.5 * std::sqrt(kOps / M_PI), 0.4);
}

TEST(ExpectedStep, ARankIsSlowForAWholeStep) {
  // Hiccups of single ops average out over many; what slows a rank for the whole step doesn't: the larger of two normal
  // sums of mean n and relative deviation σ has the mean n (1 + σ/√π).
  constexpr int kOps = 64;
  constexpr double kSpread = 0.1;
  Sketch sketch(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < kOps; ++i) sketch.compute(rank, 1.0);
    sketch.wait(rank, sketch.all_reduce(rank, {}));
  }
  sketch.prices.rank_jitter = kSpread;
  const Cluster cluster = plain_cluster(2);
  EXPECT_NEAR(expected_step(sketch.program, sketch.prices, cluster).step_s, kOps * (1 + kSpread / std::sqrt(M_PI)), 1);
  // Ranks that take turns wait for nobody who is slower than usual: as without.
  Sketch turns(2);
  turns.compute(0, 1.0);
  turns.move(0, 1, {});
  turns.compute(1, 1.0);
  turns.prices.rank_jitter = kSpread;
  EXPECT_NEAR(expected_step(turns.program, turns.prices, cluster).step_s, 2, 1e-5);
}

TEST(ExpectedStep, WithoutCompanyIsTheStepOfTheMeans) {
  // Nobody to wait for: rank 1 only receives.
  Sketch sketch(2);
  sketch.compute(0, 1.0);
  sketch.move(0, 1, {.latency_s = 0.25, .wire_s = 0.5, .jitter = 0.8});
  sketch.prices.jitter = {0.7};
  EXPECT_NEAR(expected_step(sketch.program, sketch.prices, plain_cluster(2)).step_s, 1.75, 1e-6);
}

// ---- One thread that issues for several asynchronous devices ----

TEST(OneHostThread, LaunchesTakeTurns) {
  constexpr int kOps = 5;
  constexpr double kLaunch = 1e-5;
  Sketch sketch(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank)
    for (int i = 0; i < kOps; ++i) sketch.compute(rank, 0);
  sketch.prices.launch_s = kLaunch;
  Cluster cluster = plain_cluster(2);
  cluster.device.asynchronous = true;
  EXPECT_NEAR(sketch.run(cluster).step_s, kOps * kLaunch, kRounding);
  cluster.one_host_thread = true;
  EXPECT_NEAR(sketch.run(cluster).step_s, 2 * kOps * kLaunch, kRounding);
}

double step_of(const char* model_text, const char* strategy_text, const char* cluster_name) {
  const Model model = load_model(model_text);
  const Strategy strategy = parse_strategy(strategy_text, model);
  const Program program = lower(model, strategy);
  const Cluster cluster = load_cluster(cluster_name, strategy.ranks());
  const Prices prices = price(program, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
  return expected_step(program, prices, cluster).step_s;
}

/// R2 (published: epochs of 14.3, 15.0 and 25.9 s): a small network's step is bound by its launches, so that the
/// pipeline, which launches every op once per split, is slower than one device; the more so with one thread for all.
TEST(OneHostThread, ASmallNetworksPipelineIsSlowerThanOneDevice) {
  const char* model = "convnet,global_batch=64,optimizer=adam:lr=0.001,timing=epoch";
  const char* pipeline = "pipeline,pp=4,cut=r2,schedule=forward_only,split_size=8";
  const double single = step_of(model, "single", "dgx_a100_one_process"),
               model_parallel = step_of(model, "model_parallel,pp=4,cut=r2", "dgx_a100_one_process"),
               one_thread = step_of(model, pipeline, "dgx_a100_one_process"),
               own = step_of(model, pipeline, "dgx_a100");
  EXPECT_LT(single, model_parallel);
  EXPECT_GT(one_thread, 1.8 * model_parallel);
  EXPECT_GT(one_thread, 2 * own);
}

/// R1 (published: 3.75, 4.02 and 2.51 s): a large network's step isn't.
TEST(OneHostThread, ALargeNetworksPipelineIsFasterThanOneDevice) {
  const char* model = "resnet50,image=128,global_batch=120,loss=mse_loss,optimizer=sgd:lr=0.001,timing=tutorial";
  const double single = step_of(model, "single", "dgx_a100_one_process"),
               model_parallel = step_of(model, "model_parallel,pp=2,cut=r1", "dgx_a100_one_process"),
               pipeline =
                   step_of(model, "pipeline,pp=2,cut=r1,schedule=forward_only,split_size=20", "dgx_a100_one_process");
  EXPECT_GT(model_parallel, single);
  EXPECT_LT(pipeline, 0.9 * single);
}

}  // namespace
}  // namespace sim
