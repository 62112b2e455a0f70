// Links between hosts: measured apart from those within, and priced apart.
#include <set>

#include "sim/calibrate/tasks.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/cost/profile.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

constexpr std::int64_t kBytes = 1 << 20;

/// So many hosts of `each` ranks, a core for each, with the slow link between them.
Cluster on_hosts(std::uint32_t hosts, std::uint32_t each) {
  Link between = load_cluster("cpu_gloo", 1, 1).link();
  between.shared = false;
  between.bandwidth = gigabytes_per_second(0.1);
  return with_hosts(load_cluster("cpu_gloo", each, each), hosts, hosts * each, between);
}

TransferQuestion all_reduce(std::uint32_t members, std::vector<std::uint32_t> spread) {
  return {InstructionKind::collective, CollectiveKind::all_reduce, kBytes, members, std::move(spread)};
}

/// Of two hosts of two ranks: within a host 1 ms, between the hosts 20 ms.
Profile of_two_hosts() {
  Profile profile("cpu");
  profile.environment = {{"environment", {{"cpu", {{"model", this_host().cpu}}}}}};
  profile.add_op("gloo@2hosts", "relu.forward f32[1000] inplace=0", 1, std::vector{1e-5, 1e-5});
  profile.add_launch(std::vector{1e-6});
  for (const auto& [spread, ms] : {std::pair(std::vector<std::uint32_t>{}, 1.0), {{1, 2}, 20}})
    for (const std::int64_t bytes : {std::int64_t{4096}, kBytes})
      profile.add_link(link_key("gloo@2hosts", all_reduce(2, spread)), bytes,
                       std::vector(3, 1e-3 * ms * static_cast<double>(bytes) / kBytes));
  return profile;
}

TEST(LinksBetweenHosts, AreKeptApart) {
  const testing::TemporaryFolder folder;
  of_two_hosts().save(folder / "p.json");
  const Profile profile = load_profile(folder / "p.json");
  EXPECT_EQ(profile.links().size(), 2U);
  EXPECT_NEAR(profile.link(link_key("gloo@2hosts", all_reduce(2, {})), kBytes)->mean_s, 1e-3, 1e-12);
  EXPECT_NEAR(profile.link(link_key("gloo@2hosts", all_reduce(2, {1, 2})), kBytes)->mean_s, 20e-3, 1e-12);
  EXPECT_FALSE(profile.link(link_key("gloo@2hosts", all_reduce(4, {2, 2})), kBytes).has_value());
  const std::string text = profile.to_json();
  const auto refused = [&](const std::string& to) {
    const std::string edited = testing::replaced(text, R"("spread":[1,2])", R"("spread":)" + to);
    const std::string message = message_of([&] { (void)load_profile(folder.file("q.json", edited)); });
    return message.substr(message.find(": ") + 2);
  };
  EXPECT_EQ(refused("[2]").substr(refused("[2]").find("spread")), "spread must have two levels or more");
  EXPECT_EQ(refused("[0,2]").substr(refused("[0,2]").find("spread")), "spread=0 must be from 1 to 1048576");
}

TEST(LinksBetweenHosts, ArePricedAsTheyWereMeasured) {
  const Profile profile = of_two_hosts();
  for (const char* name : {"profiled", "fitted"}) {
    const auto model = make_cost_model(name, on_hosts(2, 2), &profile);
    const auto seconds = [&](const TransferQuestion& question) {
      const TransferCost cost = model->transfer(question);
      EXPECT_EQ(cost.source, Source::profile);
      return cost.latency_s + cost.wire_s;
    };
    EXPECT_NEAR(seconds(all_reduce(2, {})), 1e-3, 1e-9) << name;
    EXPECT_NEAR(seconds(all_reduce(2, {1, 2})), 20e-3, 1e-9) << name;
  }
}

// Calibrated on two hosts, forecast for four: the time between hosts grows as the data sheet's algorithm does.
TEST(LinksBetweenHosts, OfMoreHostsFollow) {
  const Profile profile = of_two_hosts();
  const Cluster four = on_hosts(4, 2);
  const auto sheet = make_cost_model("analytic", four);
  const TransferCost of_two = sheet->transfer(all_reduce(2, {1, 2})), of_four = sheet->transfer(all_reduce(4, {1, 4}));
  ASSERT_GT(of_four.wire_s, of_two.wire_s);
  for (const char* name : {"profiled", "fitted"}) {
    const auto model = make_cost_model(name, four, &profile);
    const TransferCost cost = model->transfer(all_reduce(4, {1, 4})), measured = model->transfer(all_reduce(2, {1, 2}));
    EXPECT_NEAR(measured.latency_s + measured.wire_s, 20e-3, 1e-9) << name;
    EXPECT_NEAR(cost.wire_s, measured.wire_s * of_four.wire_s / of_two.wire_s, 1e-9) << name;
    EXPECT_NEAR(cost.latency_s, measured.latency_s * of_four.latency_s / of_two.latency_s, 1e-9) << name;
    EXPECT_EQ(cost.novelty, 1);
    // Within a host it is as it was.
    const TransferCost within = model->transfer(all_reduce(2, {}));
    EXPECT_NEAR(within.latency_s + within.wire_s, 1e-3, 1e-9) << name;
  }
}

// What is measured lies as what is asked: of each host as many ranks.
TEST(LinksBetweenHosts, ProbesLieAsTheQuestions) {
  class Asked final : public CostModel {
   public:
    [[nodiscard]] ComputeCost compute(const Work& /*work*/) const override { return {{0.0}}; }
    [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
      spreads.insert(question.spread);
      return {};
    }
    [[nodiscard]] double launch_s(std::uint32_t /*kind*/) const override { return 0; }
    mutable std::set<std::vector<std::uint32_t>> spreads;
  };
  const Model model = load_model("toy_mlp,global_batch=16");
  std::set<std::vector<std::uint32_t>> seen;
  for (const char* strategy : {"ddp,dp=4", "mesh,dp=2,tp=2", "pipeline,pp=4,microbatches=4"})
    for (const CalibrationTask& task : calibration_tasks({make_job(model, strategy, on_hosts(2, 2))})) {
      if (task.kind != CalibrationTask::Kind::transfers) continue;
      const Asked asked;
      costs_of(task.program, asked, task.cluster);
      EXPECT_EQ(asked.spreads, std::set{task.question.spread}) << strategy << ": " << task.label;
      EXPECT_EQ(task.label.find(" over network") != std::string::npos, !task.question.spread.empty()) << task.label;
      seen.insert(task.question.spread);
    }
  EXPECT_EQ(seen, (std::set<std::vector<std::uint32_t>>{{}, {1, 2}, {2, 2}}));
}

TEST(LinksBetweenHosts, WorldsAreTheSameButForTheHosts) {
  EXPECT_TRUE(is_same_world("gloo@2hosts", "gloo@4hosts"));
  EXPECT_TRUE(is_same_world("gloo", "gloo@4hosts"));
  EXPECT_FALSE(is_same_world("gloo@1gbit", "gloo@4hosts"));
  EXPECT_TRUE(is_same_world("gloo@2hosts@1gbit", "gloo@4hosts@1gbit"));
  EXPECT_TRUE(is_same_world("gloo@1gbit", "gloo@4hosts@1gbit"));
  EXPECT_FALSE(is_same_world("gloo@2hosts@1gbit", "gloo@2hosts"));
  EXPECT_FALSE(is_same_world("nccl@2hosts", "gloo@2hosts"));
}

}  // namespace
}  // namespace sim
