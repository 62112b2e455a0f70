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

#include "backend/rank/execute.hpp"
#include "backend/session.hpp"
#include "backend/supervise.hpp"
#include "sim/lower/lower.hpp"
#include "tests/backend/world/ranks.hpp"
#include "tests/sim/testing.hpp"
#include "tests/standin/device.hpp"

namespace backend {
namespace {

constexpr const char* kDevice = "privateuseone";

/// Every strategy with every schedule and key on the toy; some on the ConvNet with every timing, a small net with batch norm
/// and residuals, and on two ranks ResNet-18 with an eighth of its channels. Four ranks don't play again what two play.
std::vector<sim::Program> programs(std::uint32_t ranks) {
  const std::vector<std::string> few =
      ranks == 4 ? std::vector<std::string>{"ddp_blocking,dp=4", "ddp,dp=4", "dp=2,pp=2,microbatches=2",
                                            "pipeline,pp=4,microbatches=4,schedule=1f1b"}
                 : std::vector<std::string>{"single", "model_parallel", "ddp", "pipeline,microbatches=2"};
  const std::uint32_t fewest_ranks = ranks > 2 ? 3 : 1;
  std::vector<sim::Program> programs;
  const auto add = [&](const std::string& model_text, const auto& strategies_of) {
    const sim::Model model = sim::load_model(model_text);
    std::set<std::string> seen;
    for (const std::string& text : strategies_of(model)) {
      const sim::Strategy strategy = sim::parse_strategy(text, model);
      if (strategy.ranks() >= fewest_ranks && strategy.ranks() <= ranks && seen.insert(strategy.text()).second)
        programs.push_back(sim::lower(model, strategy));
    }
  };
  add("toy_mlp,dtype=f64,global_batch=8", sim::testing::strategy_texts);
  const std::vector<std::string> models{
      "toy_mlp,dtype=f64,global_batch=8,optimizer=adam:lr=0.01", "convnet,dtype=f64,global_batch=8",
      "convnet,dtype=f64,global_batch=8,loss=mse_loss,timing=tutorial", "convnet,dtype=f64,global_batch=8,timing=epoch",
      (sim::testing::tests_folder() / "golden/residual.json").string() + ",dtype=f64"};
  for (const std::string& model : models) add(model, [&](const sim::Model& /*model*/) { return few; });
  if (ranks == 2)
    add((sim::testing::tests_folder() / "models/resnet_toy.json").string() + ",dtype=f64",
        [](const sim::Model& /*model*/) {
          return std::vector<std::string>{"ddp", "pipeline,microbatches=2"};
        });
  return programs;
}

/// `graph`: the second step is captured, and the verified results
/// are the third replay's.
void execute_all(Session& session, std::uint32_t ranks, bool graph = false) {
  for (const sim::Program& program : programs(ranks)) {
    if (graph && (sim::load_model(program.model).timing != sim::Timing::step || program.bodies() > 1)) continue;
    SCOPED_TRACE(program.model + " " + program.strategy);
    const RunResult result = session.run(
        {.program = program, .warmup_steps = graph ? 2U : 1U, .steps = 2, .seed = 3, .verify = true, .graph = graph});
    EXPECT_TRUE(std::ranges::any_of(result.verified,
                                    [](const VerifiedTensor& tensor) { return tensor.name.starts_with("gradient"); }));
    for (const sim::RankTimeline& rank : result.steps.back().timeline.ranks) {
      if (graph) {
        EXPECT_GT(rank.end_of_step_s, 0);
        EXPECT_TRUE(rank.start_s.empty() && rank.issued_s.empty());
        continue;
      }
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

class StandinReplay : public testing::TestWithParam<standin::Mode> {
 protected:
  StandinReplay() { standin::configure({.mode = GetParam(), .seed = 1, .delay_us = 10}); }
};
INSTANTIATE_TEST_SUITE_P(Local, StandinReplay, testing::Values(standin::Mode::threads, standin::Mode::drawn),
                         [](const auto& test) {
                           return std::string(test.param == standin::Mode::drawn ? "drawn" : "threads");
                         });

TEST_P(StandinReplay, EveryStrategyIsRightAndHasNoRace) {
  execute_all(*open_session({.ranks = 1, .device = kDevice}), 1, /*graph=*/true);
}

TEST_P(StandinReplay, IsTheStep) {
  const auto session = open_session({.ranks = 1, .device = kDevice});
  const sim::Model model = sim::load_model("convnet,dtype=f64,global_batch=8,optimizer=adam:lr=0.01");
  RunRequest request{.program = sim::lower(model, sim::parse_strategy("single", model)),
                     .warmup_steps = 2,
                     .steps = 3,
                     .verify = true};
  const RunResult played = session->run(request);
  request.graph = true;
  const RunResult replayed = session->run(request);
  for (std::size_t s = 0; s < request.steps; ++s) EXPECT_EQ(replayed.steps[s].loss, played.steps[s].loss) << s;
  EXPECT_NE(played.steps[0].loss, played.steps[2].loss);
  ASSERT_EQ(replayed.verified.size(), played.verified.size());
  for (std::size_t t = 0; t < played.verified.size(); ++t) {
    EXPECT_EQ(replayed.verified[t].name, played.verified[t].name);
    EXPECT_EQ(replayed.verified[t].relative_error, played.verified[t].relative_error) << played.verified[t].name;
  }
  EXPECT_EQ(replayed.memory[0].peak_bytes, played.memory[0].peak_bytes);
  EXPECT_EQ(replayed.workspace_bytes, played.workspace_bytes);
  request.graph = false;
  EXPECT_EQ(session->run(request).steps[2].loss, played.steps[2].loss) << "a graph leaves nothing behind";
}

TEST_P(StandinReplay, WhatCannotBeCapturedIsRefused) {
  const auto message = [&](const std::string& world, std::uint32_t ranks, const std::string& device,
                           const std::string& model_text, const std::string& strategy, std::uint32_t warmup_steps) {
    const sim::Model model = sim::load_model(model_text);
    const auto session = open_session({.world = world, .ranks = ranks, .device = device});
    const sim::Program program = sim::lower(model, sim::parse_strategy(strategy, model));
    return sim::testing::message_of(
        [&] { session->run({.program = program, .warmup_steps = warmup_steps, .graph = true}); });
  };
  EXPECT_EQ(message("local", 1, "cpu", "toy_mlp", "single", 2),
            "graph: a CPU core executes each instruction itself, nothing is launched; allowed: device=cuda");
  EXPECT_EQ(message("local", 1, kDevice, "convnet,timing=epoch", "single", 2),
            "graph: 'convnet,global_batch=64,timing=epoch' works on the host in every step, which a replay leaves out; "
            "allowed: "
            "timing=step");
  EXPECT_EQ(message("local", 2, kDevice, "toy_mlp", "ddp_blocking", 2),
            "graph: the 2 ranks of 'ddp_blocking,dp=2' share a process in world 'local', and what orders them is in no "
            "rank's "
            "own graph; allowed: one rank, or world=nccl");
  EXPECT_EQ(message("local", 1, kDevice, "toy_mlp", "single", 1),
            "graph: warmup_steps=1 must be at least 2, a step as ever and one that is captured");
}

TEST_P(StandinReplay, WorkOfTheHostFailsWhereItIsCaptured) {
  const sim::Model model = sim::load_model("convnet,global_batch=8,timing=epoch");
  const sim::Program program = sim::lower(model, sim::parse_strategy("single", model));
  const std::vector<std::string> errors = execute_local(
      1, 60,
      [&](Communicator& rank) {
        rank.prepare(program.groups, 1);
        Executor executor(program, program.places()[0], rank, 1);
        StepRecord record = executor.new_record();
        Progress progress;
        executor.step(record, progress);
        executor.capture();
        executor.step(record, progress);
      },
      kDevice);
  EXPECT_TRUE(errors[0].starts_with("rank 0, instruction ")) << errors[0];
  EXPECT_NE(errors[0].find("stand-in: the host reads a value while stream"), std::string::npos) << errors[0];
}

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

TEST(StandinNccl, DISABLED_ReplayAll) {
  if (const auto session = open_session({.world = "nccl", .ranks = world_size(), .device = kDevice}))
    execute_all(*session, world_size(), /*graph=*/true);
  for (const std::string& race : standin::take_races()) ADD_FAILURE() << race;
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
TEST_P(StandinNcclRanks, EveryReplayIsRightAndHasNoRace) {
  const auto [options, ranks] = GetParam();
  setenv("STANDIN", options, 1);
  EXPECT_EQ(spawn("StandinNccl.DISABLED_ReplayAll", ranks), 0);
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
