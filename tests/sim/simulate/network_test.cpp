// Forecasts over a network of several levels against what was published, and against bytes through a port.
#include "sim/cost/cost_model.hpp"
#include "sim/lower/lower.hpp"
#include "sim/simulate/placed_program.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/simulate/sketch.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using namespace testing;

constexpr double kGiB = 1073741824;

double all_reduce_s(const Cluster& cluster, std::uint32_t members, double bytes) {
  std::vector<std::uint32_t> ranks(members);
  for (std::uint32_t rank = 0; rank < members; ++rank) ranks[rank] = rank;
  const TransferCost cost = cost_model_table()
                                .at("analytic")
                                .make(cluster, nullptr)
                                ->transfer({.kind = InstructionKind::collective,
                                            .collective = CollectiveKind::all_reduce,
                                            .bytes = static_cast<std::int64_t>(bytes),
                                            .members = members,
                                            .spread = cluster.spread(ranks)});
  return cost.latency_s + cost.wire_s;
}

// 192 GB/s bus bandwidth through 8 HDR ports a node: github.com/NVIDIA/nccl/issues/1576.
TEST(Network, AnAllReduceOverTwoDgxA100TakesWhatNcclTakes) {
  Cluster cluster = load_cluster("dgx_a100_pair", 16);
  const double bus_bytes = 2 * 15.0 / 16 * kGiB;
  const double with_8 = all_reduce_s(cluster, 16, kGiB);
  EXPECT_NEAR(bus_bytes / with_8 / 1e9, 192, 0.05 * 192);
  for (const std::uint32_t ports : {1U, 2U, 4U}) {
    cluster.levels[0].ports = ports;
    EXPECT_NEAR(all_reduce_s(cluster, 16, kGiB) / with_8, 8.0 / ports, 0.02 * 8 / ports) << ports << " NICs";
  }
}

// nccl-tests, 1 GiB among 2 to 8 V100 of a DGX-1 and 8 A100, microseconds: github.com/VIA-Research/vTrain, trace.
TEST(Network, AnAllReduceInsideANodeTakesWhatNcclTakes) {
  const std::pair<std::uint32_t, double> v100[] = {{2, 47610}, {3, 31714}, {4, 18869}, {6, 39121}, {8, 13969}};
  for (const auto& [members, published_us] : v100)
    EXPECT_NEAR(1e6 * all_reduce_s(load_cluster("dgx1", members), members, kGiB), published_us, 0.05 * published_us);
  EXPECT_NEAR(1e6 * all_reduce_s(load_cluster("dgx_a100", 8), 8, kGiB), 8193, 0.05 * 8193);
}

// One member on each node reaches the ports that are its own, not those of the node's other devices.
TEST(Network, ARingGetsThePortsOfItsMembersOnly) {
  const Cluster cluster = load_cluster("dgx_a100_pair", 16);
  const auto model = cost_model_table().at("analytic").make(cluster, nullptr);
  const auto wire_s = [&](std::uint32_t members, const std::vector<std::uint32_t>& spread) {
    return model
        ->transfer({.kind = InstructionKind::collective,
                    .collective = CollectiveKind::all_reduce,
                    .bytes = 24'000'000'000,
                    .members = members,
                    .spread = spread})
        .wire_s;
  };
  EXPECT_NEAR(wire_s(2, {1, 2}), 1, 1e-9);        // 2 (n-1)/n s = 24 GB through one port of 24 GB/s
  EXPECT_NEAR(wire_s(4, {2, 2}), 1.5 / 2, 1e-9);  // two ports
  EXPECT_NEAR(model->transfer({.bytes = 24'000'000'000, .spread = {1, 2}}).wire_s, 1, 1e-9);  // a message: one
}

// However the ranks lie, what is summed over both nodes has to go through the node's only port: W bytes in each direction.
TEST(Network, GroupsThatCrossATOnceShareTheNodesPort) {
  const Model model = load_model("vgg11,image=32,global_batch=16");
  const double parameter_bytes = 4 * static_cast<double>(parameter_count(model));
  Cluster cluster = load_cluster("dgx_a100_pair", 16);
  cluster.levels[0].ports = 1;
  const double least_s = parameter_bytes / cluster.levels[1].link.bandwidth.base();
  for (const char* text : {"dp=2,pp=8,microbatches=2", "dp=2,pp=4,microbatches=2", "ddp,dp=16"}) {
    const Strategy strategy = parse_strategy(text, model);
    for (RankPlace& place : cluster.place) {  // half of each stage's replicas on each node
      const auto rank = static_cast<std::uint32_t>(&place - cluster.place.data());
      place.device = (rank % strategy.dp * strategy.pp + rank / strategy.dp) * 16 / strategy.ranks() % 16;
    }
    const Program program = lower(model, strategy);
    const Timeline timeline = simulate(
        program, costs_of(program, *cost_model_table().at("analytic").make(cluster, nullptr), cluster), cluster);
    EXPECT_GT(timeline.step_s, least_s) << text;
    EXPECT_LT(timeline.step_s, 2.5 * least_s) << text;
  }
}

// 2 (n-1) s bytes go over a bus: n members, each sends 2 (n-1)/n s to the next.
TEST(Network, ACollectiveFeelsThatItsBusIsShared) {
  Cluster cluster = plain_cluster(8);
  cluster.world = "nccl";
  cluster.levels[0].link = {.latency = Seconds(), .bandwidth = gigabytes_per_second(12), .shared = true};
  for (const std::uint32_t n : {2U, 4U, 8U}) EXPECT_DOUBLE_EQ(all_reduce_s(cluster, n, 12e9), 2.0 * (n - 1)) << n;
}

// ---- What is simulated ----

Cluster two_nodes(std::uint32_t ports) {
  Cluster cluster = on_nodes(plain_cluster(8), 4);
  cluster.levels[0].ports = ports;
  return cluster;
}

// Ranks 1, 2 and 3 do the same; who is with rank 0 is in another list than the others.
TEST(Network, EveryListOfARoleHasItsPorts) {
  Sketch sketch(4);
  sketch.program.mesh.axes = {{"a", 2}, {"b", 2}};
  sketch.program.groups.emplace_back("b", 0b10, sketch.program.mesh);
  sketch.program.roles.resize(2);
  sketch.program.roles[1].ranks = {1, 2, 3};
  for (const std::uint32_t role : {0U, 1U}) sketch.wait(role, sketch.all_reduce(role, {}));
  validate(sketch.program);
  const Cluster cluster = plain_cluster(4);
  const PlacedProgram placed(sketch.program, cluster);
  for (const std::uint32_t rank : {0U, 1U, 2U, 3U}) {
    std::vector<std::uint32_t> ports;
    for (const PlacedProgram::PortUse& use : placed.ports_of(rank, 0)) ports.push_back(use.port);
    const std::uint32_t first = rank / 2 * 4;  // out and in of each of two
    EXPECT_EQ(ports, (std::vector{first, first + 1, first + 2, first + 3})) << rank;
  }
}

TEST(Network, MessagesShareThePortsOfANode) {
  // Each takes 2 s through a port of its own.
  const auto ends = [](std::uint32_t ports, std::uint32_t messages) {
    Sketch sketch(8);
    for (std::uint32_t m = 0; m < messages; ++m) sketch.move(m, 4 + m, {.wire_s = 2, .use = {0.1, 1.0 / ports}});
    return sketch.run(two_nodes(ports)).step_s;
  };
  EXPECT_NEAR(ends(1, 1), 2, kRounding);
  EXPECT_NEAR(ends(1, 4), 8, kRounding);
  EXPECT_NEAR(ends(2, 2), 2, kRounding);
  EXPECT_NEAR(ends(2, 4), 4, kRounding);
  EXPECT_NEAR(ends(4, 4), 2, kRounding);
}

TEST(Network, OppositeDirectionsDontShareAPortButABus) {
  for (const bool shared : {false, true}) {
    Sketch sketch(8);
    sketch.move(0, 4, {.wire_s = 2});
    sketch.move(5, 1, {.wire_s = 2});
    Cluster cluster = two_nodes(1);
    cluster.levels[1].link.shared = shared;
    EXPECT_NEAR(sketch.run(cluster).step_s, shared ? 4 : 2, kRounding);
  }
}

TEST(Network, WhatStaysInsideDoesntFeelTheNodesPort) {
  Sketch sketch(8);
  sketch.move(0, 4, {.wire_s = 2});
  sketch.move(1, 2, {.wire_s = 2});
  EXPECT_NEAR(sketch.run(two_nodes(1)).step_s, 2, kRounding);
}

}  // namespace
}  // namespace sim
