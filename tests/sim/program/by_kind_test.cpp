#include "sim/program/by_kind.hpp"

#include <numeric>

#include "sim/lower/lower.hpp"
#include "sim/program/fold.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/simulate/what_if.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

/// Cores, of which every second is of a kind that is three times as slow.
Cluster two_kinds(std::uint32_t ranks) {
  Cluster cluster = testing::plain_cluster(ranks);
  Device& slow = cluster.other_kinds.emplace_back(cluster.device);
  slow.name = "slow";
  slow.peak(Arithmetic::f32) = slow.peak(Arithmetic::f32) / 3;
  slow.memory_bandwidth = slow.memory_bandwidth / 3;
  slow.launch = slow.launch * 3;
  for (std::uint32_t device = 0; device < ranks; ++device) cluster.kinds.push_back(device % 2);
  return cluster;
}

Cluster all_of(const Cluster& cluster, std::uint32_t kind) {
  Cluster alike = cluster;
  alike.device = cluster.kind(kind);
  alike.other_kinds.clear();
  alike.kinds.clear();
  return alike;
}

Program lowered(const std::string& model_text, const std::string& strategy) {
  const Model model = load_model(model_text);
  return lower(model, parse_strategy(strategy, model));
}

double step_of(const Program& program, const Cluster& cluster) {
  return simulate(program, costs_of(program, *make_cost_model("analytic", cluster), cluster), cluster).step_s;
}

TEST(ByKind, CutsRolesByTheDevicesOfTheirRanks) {
  const Program program = lowered("convnet,global_batch=8", "ddp,dp=4"), cut = by_kind(program, two_kinds(4));
  ASSERT_EQ(program.roles.size(), 1U);
  ASSERT_EQ(cut.roles.size(), 2U);
  EXPECT_EQ(cut.roles[0].ranks, (std::vector<std::uint32_t>{0, 2}));
  EXPECT_EQ(cut.roles[1].ranks, (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(cut.roles[0].name, program.roles[0].name);
  EXPECT_EQ(cut.roles[1].name, program.roles[0].name + " on slow");
  EXPECT_EQ(cut.works.size(), 2 * program.works.size());
  for (std::uint32_t kind = 0; kind < 2; ++kind)
    for (std::uint32_t i = 0; i < cut.roles[kind].size(); ++i) {
      const std::uint32_t before = program.roles[0].work[i], after = cut.roles[kind].work[i];
      ASSERT_EQ(before == kNone, after == kNone);
      if (after == kNone) continue;
      EXPECT_EQ(cut.works[after].kind, kind);
      EXPECT_EQ(work_key(cut.works[after]), work_key(program.works[before]));
    }
  validate(cut);
  EXPECT_TRUE(to_text(by_kind(cut, two_kinds(4))) == to_text(cut));  // once is enough
}

TEST(ByKind, OfOneKindStaysAsItIs) {
  const Program program = lowered("convnet,global_batch=8", "ddp,dp=4");
  EXPECT_TRUE(to_text(by_kind(program, testing::plain_cluster(4))) == to_text(program));
}

TEST(ByKind, AWorkOfAnotherKindIsNoticed) {
  const Program program = lowered("convnet,global_batch=8", "ddp,dp=4");
  const Cluster cluster = two_kinds(4);
  EXPECT_THROW((void)costs_of(program, *make_cost_model("analytic", cluster), cluster), InternalError);
  EXPECT_EQ(message_of([&] { (void)by_kind(program, two_kinds(2)); }),
            "program of 4 ranks on cluster 'plain', which was made for 2");
}

// Everybody waits for the slowest: the step is what it would be if all were slow.
TEST(ByKind, TheSlowerDecidesOfReplicas) {
  const Cluster cluster = two_kinds(4);
  const Program program = by_kind(lowered("convnet,global_batch=8", "ddp_blocking,dp=4"), cluster);
  const double mixed_s = step_of(program, cluster);
  const Program uncut = lowered("convnet,global_batch=8", "ddp_blocking,dp=4");
  EXPECT_NEAR(mixed_s, step_of(uncut, all_of(cluster, 1)), 1e-12);
  const double fast_s = step_of(uncut, all_of(cluster, 0));
  EXPECT_LT(fast_s, 0.7 * mixed_s);
  const std::vector<KindLimit> limits = kind_limits(program, cluster, "analytic");
  ASSERT_EQ(limits.size(), 1U);
  EXPECT_EQ(limits[0].slower, "slow");
  EXPECT_EQ(limits[0].faster, "core");
  EXPECT_EQ(limits[0].ranks, 2U);
  EXPECT_NEAR(limits[0].change, fast_s / mixed_s - 1, 1e-9);
}

// Stages that take turns: the slow stage's ops and launches take three times as long, and nothing else changes.
TEST(ByKind, StagesTakeTheirOwnDevicesTime) {
  const Cluster cluster = two_kinds(2);
  const Program uncut = lowered("convnet,global_batch=8", "model_parallel,pp=2"), program = by_kind(uncut, cluster);
  const Costs costs = costs_of(program, *make_cost_model("analytic", cluster), cluster);
  double of_slow_s = 0, posts = 0;
  for (const Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size() && role.ranks == std::vector<std::uint32_t>{1}; ++i)
      role.work[i] == kNone ? ++posts : of_slow_s += costs.work_s.at(role.work[i] * costs.busy_levels);
  const double fast_s = step_of(uncut, all_of(cluster, 0)), mixed_s = step_of(program, cluster);
  EXPECT_GT(of_slow_s, 0);
  const double launches = costs.launch_of(1) * 2.0 / 3;  // longer than on the other, at most for every instruction
  EXPECT_GE(mixed_s, fast_s + of_slow_s * 2 / 3 - 1e-12);
  EXPECT_LE(mixed_s, fast_s + of_slow_s * 2 / 3 + launches * program.roles.back().size());
  EXPECT_DOUBLE_EQ(costs.launch_of(1), 3 * costs.launch_of(0));
  EXPECT_LT(kind_limits(program, cluster, "analytic").at(0).change, -0.2);
}

TEST(ByKind, FoldedTakesAsLong) {
  const Cluster cluster = testing::on_nodes(two_kinds(32), 8);
  const Program program = lowered("convnet,global_batch=64", "ddp,dp=32");
  const Program folded = fold(program, cluster);
  EXPECT_EQ(folded.players(), 2U);
  const double alone_s = step_of(by_kind(program, cluster), cluster);
  EXPECT_NEAR(step_of(folded, cluster), alone_s, 1e-9 * alone_s);
}

// A core that others have three quarters of is four times as slow, launches included; a GPU's host launches as ever.
TEST(ByKind, AShareIsOfItsTime) {
  for (const bool asynchronous : {false, true}) {
    Cluster cluster = testing::plain_cluster(2);
    cluster.device.asynchronous = asynchronous;
    cluster.other_kinds = {cluster.device};
    cluster.other_kinds[0].share = 0.25;
    cluster.kinds = {0, 1};
    const Program program = by_kind(lowered("convnet,global_batch=8", "ddp,dp=2"), cluster);
    const Costs costs = costs_of(program, *make_cost_model("analytic", cluster), cluster);
    for (std::uint32_t i = 0; i < program.roles[0].size(); ++i) {
      if (program.roles[0].work[i] == kNone) continue;
      const double whole_s = costs.work_s.at(program.roles[0].work[i]);
      EXPECT_NEAR(costs.work_s.at(program.roles[1].work[i]), 4 * whole_s, 1e-12 * whole_s);
    }
    EXPECT_DOUBLE_EQ(costs.launch_of(1), costs.launch_of(0) * (asynchronous ? 1 : 4));
  }
}

}  // namespace
}  // namespace sim
