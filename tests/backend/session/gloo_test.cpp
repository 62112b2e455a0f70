// This program again, once per rank.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <regex>
#include <thread>

#include "backend/rank/progress.hpp"
#include "backend/supervise.hpp"
#include "sim/error.hpp"
#include "sim/text/file.hpp"
#include "tests/backend/chain.hpp"
#include "tests/backend/session/cases.hpp"

namespace backend {
namespace {

// ---- gloo: this program again, once per rank

int spawn(const std::string& name, std::uint32_t ranks, double timeout_s = 60) {
  return spawn_ranks({"/proc/self/exe", "--gtest_filter=" + name, "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
                     ranks, timeout_s);
}

TEST(GlooSessionRanks, DISABLED_PlayAll) {
  if (const auto session = open_session({.world = "gloo", .ranks = 2})) execute_all(*session);
}

TEST(GlooSessionRanks, EveryStrategyIsRight) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayAll", 2), 0); }

TEST(GlooSessionRanks, DISABLED_PlayPresets) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) execute_presets(*session);
}

TEST(GlooSessionRanks, EveryPresetIsRight) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayPresets", 4), 0); }

TEST(GlooSessionRanks, DISABLED_PlayInHalfPrecision) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) {
    execute_in_half_precision(*session);
    execute_half_parameters(*session);
  }
}

TEST(GlooSessionRanks, HalfPrecision) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayInHalfPrecision", 4), 0); }

/// The GPT with a dropout behind its embeddings.
std::string gpt_with_dropout() {
  nlohmann::json file = nlohmann::json::parse(sim::read_text_file(PARAGAUGE_TESTS_DIR "/models/gpt_toy.json"));
  const nlohmann::json other = nlohmann::json::parse(sim::read_text_file(PARAGAUGE_TESTS_DIR "/models/token_toy.json"));
  file["bodies"]["dropout/1"] = other["bodies"]["dropout/1"];
  for (nlohmann::json& node : file["nodes"])
    for (nlohmann::json& input : node["inputs"])
      if (input == "add") input = "drop";
  const auto where = std::ranges::find_if(file["nodes"], [](const auto& node) { return node["name"] == "add"; }) + 1;
  file["nodes"].insert(where, nlohmann::json::parse(R"({"name": "drop", "op": "aten", "body": "dropout/1",
                                                        "inputs": ["add"], "parameters": []})"));
  const std::string path = ::testing::TempDir() + "gpt_with_dropout.json";
  sim::write_text_file(path, file.dump());
  return path + ",dtype=f64";
}

/// What both ranks of a cut layer have is the same in both, and the same as in one, though it is drawn.
TEST(GlooSessionRanks, DISABLED_Draw) {
  const auto session = open_session({.world = "gloo", .ranks = 2});
  if (!session) return;
  const std::string model = gpt_with_dropout();
  const auto losses = [&](const std::string& strategy, std::uint64_t seed) {
    const sim::Program program = lowered(model, strategy);
    return session->run({.program = program, .steps = 3, .seed = seed}).losses;
  };
  const std::vector<double> one = losses("single", 3), two = losses("tp", 3), again = losses("tp", 3);
  EXPECT_EQ(two, again);
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(two[s], one[s], 1e-12);
  EXPECT_NE(losses("tp", 4), two);
  // Where each has samples of its own in between, it draws for itself.
  const std::vector<double> parts = losses("tp,sp=1", 3);
  EXPECT_EQ(losses("tp,sp=1", 3), parts);
  EXPECT_NE(parts, two);
}

TEST(GlooSessionRanks, WhatIsDrawnIsTheSameForAll) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_Draw", 2), 0); }

TEST(GlooSessionRanks, DISABLED_PlayWithMany) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) execute_with_many(*session);
}

TEST(GlooSessionRanks, MoreRanksThanCores) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayWithMany", 4), 0); }

TEST(GlooSessionRanks, DISABLED_Probe) {
  if (const auto session = open_session({.world = "gloo", .ranks = 2})) probe_speeds(*session);
}

TEST(GlooSessionRanks, ProbeHowFastTheMachineIs) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_Probe", 2), 0); }

TEST(GlooSessionRanks, DISABLED_PlayHyPar) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) execute_hypar(*session);
}

TEST(GlooSessionRanks, HyParsPairIsRightInEveryCombination) {
  EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayHyPar", 4), 0);
}

TEST(GlooSessionRanks, DISABLED_PlayLong) {
  std::jthread killer;
  if (std::getenv("RANK") == std::string("1"))
    killer = std::jthread([] {
      const ProgressBoard board = ProgressBoard::join(2);
      while (board.progress(1).instruction != 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      raise(SIGKILL);
    });
  if (const auto session = open_session({.world = "gloo", .ranks = 2}))
    session->run({.program = chain(1024, 1000), .warmup_steps = 0});
}

TEST(GlooSessionRanks, AKilledRankEndsAll) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(message<sim::RunError>([] { spawn("GlooSessionRanks.DISABLED_PlayLong", 2); }),
            "rank 1 died (signal 9) in instruction 1: wait for recv from sender");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "who loses the dead rank says nothing";
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a rank's process is left";
  EXPECT_EQ(errno, ECHILD);
}

/// Rank 0 computes for several seconds; rank 1 gives up waiting. The ranks also have to find each other within the
/// timeout.
TEST(GlooSessionRanks, DISABLED_WaitTooLong) {
  const auto session = open_session({.world = "gloo", .ranks = 2, .timeout_s = 1.5});
  if (session) session->run({.program = chain(6144, 2), .warmup_steps = 0});
}

TEST(GlooSessionRanksTimes, ATimeoutNamesTheRankThatComputes) {
  const std::string said = message<sim::RunError>([] { spawn("GlooSessionRanks.DISABLED_WaitTooLong", 2, 1.5); });
  EXPECT_TRUE(std::regex_match(
      said, std::regex("rank 0 hangs \\(no progress for [0-9.]+ s\\) in instruction [01]: compute forward")))
      << said;
}

/// Rank 0 gets on all the time, but not fast enough for rank 1.
TEST(GlooSessionRanks, DISABLED_WaitForMany) {
  const auto session = open_session({.world = "gloo", .ranks = 2, .timeout_s = 1.5});
  if (session) session->run({.program = chain(1024, 10000), .warmup_steps = 0});
}

TEST(GlooSessionRanksTimes, ATimeoutNamesRankAndInstruction) {
  EXPECT_EQ(message<sim::RunError>([] { spawn("GlooSessionRanks.DISABLED_WaitForMany", 2, 1.5); }),
            "rank 1, instruction 1 (wait for recv from sender): the receive from rank 0 (tag 0) failed: Timed out "
            "waiting 1500ms for recv operation to complete");
}

TEST(GlooSessionRanks, AConfigErrorOfTheRanksIsOne) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(message<sim::ConfigError>([] { spawn("GlooSessionRanks.DISABLED_WaitTooLong", 3, 60); }),
            "ranks=2 but WORLD_SIZE=3");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(GlooSessionRanks, DISABLED_PlayForEver) {
  if (const auto session = open_session({.world = "gloo", .ranks = 2}))
    session->run({.program = chain(1024, 100000), .warmup_steps = 0});
}

/// The pipe's last writer is gone only when all ranks' processes are.
TEST(GlooSessionRanks, NoRankOutlivesItsSupervisor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    close(ends[0]);
    _exit(spawn("GlooSessionRanks.DISABLED_PlayForEver", 2));
  }
  close(ends[1]);
  pollfd reading{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&reading, 1, 3000), 0) << "the ranks have ended by themselves";
  kill(supervisor, SIGKILL);
  waitpid(supervisor, nullptr, 0);
  EXPECT_EQ(poll(&reading, 1, 5000), 1) << "a rank's process is left";
  close(ends[0]);
}

TEST(GlooSession, APortInUseIsOneLine) {
  const int taken = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin6_port));
  const std::vector<std::pair<const char*, std::string>> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", port}};
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.world = "gloo", .ranks = 2}); }), "ranks=2 but WORLD_SIZE=1");
  EXPECT_EQ(message<sim::RunError>([] { open_session({.world = "gloo", .ranks = 1}); }),
            "port " + port + " of localhost (MASTER_PORT) is in use");
  for (const auto& [name, value] : variables) unsetenv(name);
  close(taken);
}

}  // namespace
}  // namespace backend
