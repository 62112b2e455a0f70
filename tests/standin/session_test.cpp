// Everything that a world of accelerators executes, on the stand-in: every strategy, schedule and timing, verified in
// float64, without a race. A strategy that is added is executed here by its table row.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <set>
#include <string_view>
#include <thread>

#include "backend/session.hpp"
#include "backend/supervise.hpp"
#include "sim/lower/lower.hpp"
#include "tests/backend/world/ranks.hpp"
#include "tests/sim/testing.hpp"
#include "tests/standin/device.hpp"

namespace backend {
namespace {

constexpr const char* kDevice = "privateuseone";

/// Every strategy with every schedule and key on the toy, the ConvNet with every timing, and ResNet-18 (batch norm, residuals)
/// with a few: its kernels take seconds here.
std::vector<sim::Program> programs(std::uint32_t ranks) {
  const std::vector<std::string> few =
      ranks == 4 ? std::vector<std::string>{"ddp,dp=4", "ddp,dp=4,overlap=1", "dp=2,pp=2,microbatches=2",
                                            "pipeline,pp=4,microbatches=4,schedule=1f1b"}
                 : std::vector<std::string>{"single", "model_parallel", "ddp,overlap=1", "pipeline,microbatches=2"};
  std::vector<sim::Program> programs;
  const auto add = [&](const std::string& model_text, const auto& strategies_of) {
    const sim::Model model = sim::load_model(model_text);
    std::set<std::string> seen;
    for (const std::string& text : strategies_of(model)) {
      const sim::Strategy strategy = sim::parse_strategy(text, model);
      if (strategy.ranks() <= ranks && seen.insert(strategy.text()).second)
        programs.push_back(sim::lower(model, strategy));
    }
  };
  add("toy_mlp,dtype=f64,global_batch=8", sim::testing::strategy_texts);
  for (const char* model :
       {"convnet,dtype=f64,global_batch=8", "convnet,dtype=f64,global_batch=8,loss=mse_loss,timing=tutorial",
        "convnet,dtype=f64,global_batch=8,timing=epoch",
        "resnet18,image=32,dtype=f64,global_batch=8,optimizer=sgd:lr=0.01:momentum=0.9"})
    add(model, [&](const sim::Model& /*model*/) { return few; });
  return programs;
}

void execute_all(Session& session, std::uint32_t ranks) {
  for (const sim::Program& program : programs(ranks)) {
    SCOPED_TRACE(program.model + " " + program.strategy);
    const RunResult result =
        session.run({.program = program, .warmup_steps = 1, .steps = 2, .seed = 3, .verify = true});
    EXPECT_FALSE(result.verified.empty());
    for (const sim::RankTimeline& rank : result.steps.back().timeline.ranks) {
      EXPECT_EQ(rank.issued_s.size(), rank.start_s.size());
      EXPECT_TRUE(std::ranges::is_sorted(rank.issued_s));
      EXPECT_GT(rank.issued_s.front(), 0);
    }
    for (const VerifiedTensor& tensor : result.verified) EXPECT_LE(tensor.relative_error, 1e-12) << tensor.name;
    for (const std::string& race : standin::take_races()) ADD_FAILURE() << race;
  }
}

class StandinSession : public testing::TestWithParam<std::tuple<standin::Mode, std::uint32_t>> {};

TEST_P(StandinSession, EveryStrategyIsRightAndHasNoRace) {
  const auto [mode, ranks] = GetParam();
  standin::configure({.mode = mode, .seed = 1, .delay_us = 10});
  execute_all(*open_session({.ranks = ranks, .device = kDevice}), ranks);
}
INSTANTIATE_TEST_SUITE_P(Local, StandinSession,
                         testing::Combine(testing::Values(standin::Mode::threads, standin::Mode::drawn),
                                          testing::Values(1, 2, 4)),
                         [](const auto& test) {
                           return fmt::format("{}_{}",
                                              std::get<0>(test.param) == standin::Mode::drawn ? "drawn" : "threads",
                                              std::get<1>(test.param));
                         });

TEST_P(StandinSession, EveryCollectiveIsRightAndHasNoRace) {
  const auto [mode, ranks] = GetParam();
  standin::configure({.mode = mode, .seed = 1, .delay_us = 10});
  expect_no_errors(execute_local(ranks, 60, do_collectives, kDevice));
  for (const std::string& race : standin::take_races()) ADD_FAILURE() << race;
}

// ---- nccl: this program again, once per rank, with a device each

int spawn(const std::string& name, std::uint32_t ranks, double timeout_s = 60) {
  setenv("STANDIN_DEVICES", std::to_string(ranks).c_str(), 1);
  return spawn_ranks({"/proc/self/exe", "--gtest_filter=" + name, "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
                     ranks, timeout_s);
}

std::uint32_t world_size() { return static_cast<std::uint32_t>(std::atoi(std::getenv("WORLD_SIZE"))); }

class StandinNcclRanks : public testing::TestWithParam<std::tuple<const char*, std::uint32_t>> {};

TEST(StandinNccl, DISABLED_PlayAll) {
  if (const auto session = open_session({.world = "nccl", .ranks = world_size(), .device = kDevice}))
    execute_all(*session, world_size());
  for (const std::string& race : standin::take_races()) ADD_FAILURE() << race;  // of ranks that served
}

TEST(StandinNccl, DISABLED_DoCollectives) {
  do_collectives(*world_table().at("nccl").make({.world = "nccl", .ranks = world_size(), .device = kDevice}).ranks[0]);
  for (const std::string& race : standin::take_races()) ADD_FAILURE() << race;
}

TEST_P(StandinNcclRanks, EveryCollectiveIsRightAndHasNoRace) {
  const auto [options, ranks] = GetParam();
  setenv("STANDIN", options, 1);
  EXPECT_EQ(spawn("StandinNccl.DISABLED_DoCollectives", ranks), 0);
}

TEST_P(StandinNcclRanks, EveryStrategyIsRightAndHasNoRace) {
  const auto [options, ranks] = GetParam();
  setenv("STANDIN", options, 1);
  EXPECT_EQ(spawn("StandinNccl.DISABLED_PlayAll", ranks), 0);
}
INSTANTIATE_TEST_SUITE_P(Nccl, StandinNcclRanks,
                         testing::Combine(testing::Values("mode=threads,seed=1,delay_us=10", "mode=drawn,seed=1"),
                                          testing::Values(2, 4)));

TEST(StandinNccl, DISABLED_MeetOneThatStaysAway) {
  const World world = world_table().at("nccl").make({.world = "nccl", .ranks = 2, .device = kDevice, .timeout_s = 1.5});
  Communicator& rank = *world.ranks[0];
  if (rank.rank() == 1) return std::this_thread::sleep_for(std::chrono::seconds(4));
  try {
    rank.prepare(everyone(2), 2);
    FAIL() << "it has met nobody";
  } catch (const sim::RunError& error) {
    EXPECT_EQ(std::string_view(error.what()).substr(0, 67),
              "rank 0 can't connect to ranks 0, 1: wait timeout after 1500ms, keys");
  }
}
TEST(StandinNcclRanks, WaitsNoLongerThanTheTimeoutForOneThatStaysAway) {
  setenv("STANDIN", "mode=drawn", 1);
  EXPECT_EQ(spawn("StandinNccl.DISABLED_MeetOneThatStaysAway", 2), 0);
}

TEST(StandinNcclRanks, NeedsADeviceForEachRank) {
  setenv("STANDIN", "mode=drawn", 1);
  setenv("STANDIN_DEVICES", "1", 1);
  EXPECT_THROW(spawn_ranks({"/proc/self/exe", "--gtest_filter=StandinNccl.DISABLED_PlayAll",
                            "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
                           2, 20),
               sim::ConfigError);
}

}  // namespace
}  // namespace backend
