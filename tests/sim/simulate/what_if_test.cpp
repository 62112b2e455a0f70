#include "sim/simulate/what_if.hpp"

#include "sim/lower/lower.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::plain_cluster;

struct Case {
  Model model;
  Program program;
  Cluster cluster;
  Costs costs;

  Case(const std::string& model_text, const std::string& strategy, double link_GBps = 2)
      : model(load_model(model_text)),
        program(lower(model, parse_strategy(strategy, model))),
        cluster(with_link(plain_cluster(program.ranks()), link_GBps)),
        costs(costs_of(program, *cost_model_table().at("analytic").make(cluster, nullptr), cluster)) {}
  static Cluster with_link(Cluster cluster, double link_GBps) {
    cluster.levels[0].link.bandwidth = gigabytes_per_second(link_GBps);
    return cluster;
  }
  [[nodiscard]] double step_s(const Scale& scale = {}) const {
    return simulate(program, scaled(costs, program, cluster, scale), cluster).step_s;
  }
};

TEST(WhatIf, ReadsItsText) {
  EXPECT_TRUE(parse_scale("").is_identity());
  const Scale scale = parse_scale("bandwidth=2,latency=0.5,flops=4");
  EXPECT_EQ(scale, (Scale{.flops = 4, .bandwidth = 2, .latency = 0.5}));
  EXPECT_EQ(message_of([] { parse_scale("speed=2"); }),
            "scale 'speed=2': unknown key 'speed'; known: flops, memory_bandwidth, bandwidth, latency, launch");
  EXPECT_EQ(message_of([] { parse_scale("fast"); }),
            "scale 'fast': 'fast' is no key=factor; known: flops, memory_bandwidth, bandwidth, latency, launch");
  EXPECT_EQ(message_of([] { parse_scale("flops=0"); }),
            "scale 'flops=0': flops=0 must be a number from 1e-06 to 1000000");
}

// With the data sheet's numbers, scaling the answers is scaling the sheet.
TEST(WhatIf, ScalingCostsIsScalingTheMachine) {
  const Scale scale{.flops = 3, .memory_bandwidth = 0.5, .bandwidth = 4, .latency = 0.25, .launch = 2};
  for (const char* strategy : {"single", "model_parallel", "pipeline", "ddp"}) {
    const Case given("convnet,global_batch=64", strategy);
    Cluster other = given.cluster;
    other.device.peak(Arithmetic::f32) = other.device.peak(Arithmetic::f32) * scale.flops;
    other.device.memory_bandwidth = other.device.memory_bandwidth * scale.memory_bandwidth;
    other.device.launch = other.device.launch * scale.launch;
    other.levels[0].link.bandwidth = other.levels[0].link.bandwidth * scale.bandwidth;
    other.levels[0].link.latency = other.levels[0].link.latency * scale.latency;
    const Costs costs = costs_of(given.program, *cost_model_table().at("analytic").make(other, nullptr), other);
    EXPECT_NEAR(given.step_s(scale), simulate(given.program, costs, other).step_s, 1e-9) << strategy;
  }
}

// The data sheet knows no posts.
TEST(WhatIf, LaunchScalesPostsToo) {
  const Case given("convnet,global_batch=64", "model_parallel");
  Costs costs = given.costs;
  costs.transfers.at(0).send_overhead_s = 4e-5, costs.transfers[0].recv_overhead_s = 2e-5;
  costs.transfers[0].rewriting_s = 2e-5;
  costs.transfers[0].rendezvous = {.notification_s = 6e-5, .latency_s = 3e-5, .send_overhead_s = 8e-5};
  const Costs result = scaled(costs, given.program, given.cluster, {.latency = 7, .launch = 0.5});
  EXPECT_DOUBLE_EQ(result.transfers[0].send_overhead_s, 2e-5);
  EXPECT_DOUBLE_EQ(result.transfers[0].recv_overhead_s, 1e-5);
  EXPECT_DOUBLE_EQ(result.transfers[0].rendezvous.notification_s, 3e-5);
  EXPECT_DOUBLE_EQ(result.transfers[0].rendezvous.send_overhead_s, 4e-5);
  EXPECT_DOUBLE_EQ(result.transfers[0].rendezvous.latency_s, 21e-5);
  EXPECT_DOUBLE_EQ(result.transfers[0].rewriting_s, 14e-5) << "round trips between caches";
}

TEST(WhatIf, TwiceEverythingIsHalfTheTime) {
  const Case given("resnet18,image=64,global_batch=8", "ddp_blocking");
  EXPECT_NEAR(given.step_s({2, 2, 2, 0.5, 0.5}), given.step_s() / 2, 1e-9);
}

TEST(WhatIf, SensitivityNamesTheBottleneck) {
  const Case given("vgg11,image=32,global_batch=2", "ddp_blocking", 0.2);  // 531 MB of gradients
  const std::vector<Sensitivity> found = sensitivities(given.program, given.costs, given.cluster);
  ASSERT_EQ(found.size(), 5U);
  EXPECT_EQ(found[0].resource, "bandwidth");
  EXPECT_LT(found[0].change_when_doubled, -0.3);
  for (const Sensitivity& s : found) EXPECT_LE(s.change_when_doubled, 1e-9) << s.resource;
  const Case alone("vgg11,image=32,global_batch=2", "single");
  for (const Sensitivity& s : sensitivities(alone.program, alone.costs, alone.cluster)) {
    if (s.resource != "bandwidth" && s.resource != "latency") continue;
    EXPECT_EQ(s.change_when_doubled, 0) << s.resource;
  }
}

// What was bound by arithmetic no longer is on a device with a thousand times as much of it.
TEST(WhatIf, SensitivitiesAreOfTheScaledMachine) {
  const Case given("vgg11,image=32,global_batch=2", "single");
  const Scale scale{.flops = 1000};
  for (const Sensitivity& s :
       sensitivities(given.program, scaled(given.costs, given.program, given.cluster, scale), given.cluster, scale)) {
    if (s.resource == "flops") EXPECT_GT(s.change_when_doubled, -0.01);
    if (s.resource == "memory_bandwidth") EXPECT_LT(s.change_when_doubled, -0.4);
  }
}

TEST(WithNetwork, LimitsTheLinksAndNamesTheWorld) {
  const Cluster bare = load_cluster("cpu_gloo", 2, 2), slow = with_network(bare, "100mbit");
  EXPECT_EQ(slow.world, "gloo@100mbit");
  EXPECT_DOUBLE_EQ(slow.levels[0].link.bandwidth.base(), 12.5e6);
  EXPECT_FALSE(slow.levels[0].link.shared);
  for (const char* rate : {"unlimited", "100gbit"}) {
    const Cluster fast = with_network(bare, rate);
    EXPECT_EQ(fast.world, std::string("gloo@") + rate);
    EXPECT_DOUBLE_EQ(fast.levels[0].link.bandwidth.base(), bare.levels[0].link.bandwidth.base());
    EXPECT_EQ(fast.levels[0].link.shared, bare.levels[0].link.shared);
  }
}

}  // namespace
}  // namespace sim
