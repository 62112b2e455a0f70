#include "bench/peers.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>

#include "backend/session.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"

namespace bench {
namespace {

constexpr std::uint32_t kWarmup = 1, kSteps = 3;

/// Processes whose parent we are and that run serve.py.
std::vector<pid_t> peers_of_ours() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream line(entry.path() / "cmdline"), status(entry.path() / "stat");
    std::string command, number, name, state;
    std::getline(line, command);
    pid_t parent = 0;
    if (status >> number >> name >> state >> parent && parent == getpid() && state != "Z" &&
        command.find("serve.py") != std::string::npos)
      found.push_back(std::stoi(number));
  }
  std::ranges::sort(found);
  return found;
}

template <class Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The same losses, step by step: the peer's step is ours, in plain PyTorch.
TEST(PeersRanks, LossesArePyTorchs) {
  const auto session = backend::open_session({.world = "local", .ranks = 2});
  Peers peers({.real_time = true}, 2);
  struct Case {
    std::string model, strategy;
    double tolerance;  // relative
  };
  for (const auto& [model_text, strategy_text, tolerance] :
       {Case{"toy_mlp", "single", 1e-6}, Case{"toy_mlp", "pipeline,pp=2,schedule=gpipe,microbatches=4,cut=r1", 1e-6},
        Case{"convnet", "single", 1e-6}, Case{"convnet", "model_parallel,pp=2,cut=pool2", 1e-6},
        Case{"convnet", "ddp,dp=2,overlap=1", 1e-6},
        Case{"convnet,loss=mse_loss,timing=tutorial", "model_parallel,pp=2,cut=pool2", 1e-6},
        Case{"convnet,timing=tutorial", "ddp,dp=2,overlap=1", 1e-6},
        Case{"convnet,timing=epoch", "pipeline,pp=2,schedule=gpipe,microbatches=2,cut=pool2", 1e-6},
        Case{"resnet18,image=32,global_batch=8,optimizer=sgd:lr=0.01:momentum=0.9", "single", 1e-4},
        Case{"resnet18,image=32,global_batch=8,optimizer=sgd:lr=0.01:momentum=0.9", "ddp,dp=2,overlap=1", 1e-4},
        Case{"resnet18,image=32,global_batch=8,loss=mse_loss,optimizer=adam:lr=0.0001",
             "pipeline,pp=2,schedule=1f1b,microbatches=2,cut=layer2", 1e-4}}) {
    SCOPED_TRACE(model_text + " " + strategy_text);
    const sim::Model model = sim::load_model(model_text);
    const sim::Program program = sim::lower(model, sim::parse_strategy(strategy_text, model));
    const backend::RunResult ours = session->run({.program = program, .warmup_steps = 0, .steps = kWarmup + kSteps});
    const Peers::Answer theirs = peers.run(program.model, program.strategy, kWarmup, kSteps);
    ASSERT_EQ(theirs.skipped, "");
    ASSERT_EQ(theirs.step_s.size(), kSteps);
    ASSERT_EQ(theirs.losses.size(), kWarmup + kSteps);
    for (std::size_t step = 0; step < theirs.losses.size(); ++step)
      EXPECT_NEAR(theirs.losses[step], ours.steps[step].loss, tolerance * ours.steps[step].loss) << step;
    for (const double step_s : theirs.step_s) EXPECT_GT(step_s, 0);
    EXPECT_GT(theirs.resident_peak_bytes, std::int64_t{1} << 20);
  }
}

TEST(PeersRanks, WrongTextsAndSkippedOnesAreAnswers) {
  Peers peers({}, 1);
  EXPECT_EQ(message_of<sim::ConfigError>([&] { peers.run("toy_mlp,size=3", "single", 0, 1); }),
            "PyTorch peers: model 'toy_mlp,size=3': unknown key 'size'; known: image, global_batch, loss, optimizer, "
            "dtype, timing");
  EXPECT_EQ(peers.run("toy_mlp", "ddp,dp=2", 0, 1).skipped,
            "plain PyTorch has no DDP that overlaps nothing; overlap=1 is its DistributedDataParallel");
  EXPECT_EQ(peers.run("toy_mlp", "single", 0, 1).losses.size(), 1U);
}

TEST(PeersRanks, DeathIsAnErrorAndNobodyStays) {
  Peers peers({}, 2);
  EXPECT_EQ(peers.run("toy_mlp", "ddp,dp=2,overlap=1", 0, 1).losses.size(), 1U);
  const std::vector<pid_t> processes = peers_of_ours();
  ASSERT_EQ(processes.size(), 2U);
  kill(processes[1], SIGKILL);
  EXPECT_EQ(message_of<sim::RunError>([&] { peers.run("toy_mlp", "ddp,dp=2,overlap=1", 0, 1); }).substr(0, 38),
            "PyTorch peers: rank 1 died of signal 9");
  EXPECT_EQ(peers_of_ours().size(), 0U);
  EXPECT_EQ(message_of<sim::RunError>([&] { peers.run("toy_mlp", "single", 0, 1); }),
            "PyTorch peers: they have failed before");
}

TEST(PeersRanks, NoAnswerIsAnError) {
  Peers peers({.timeout_s = 0.05}, 1);  // importing torch takes longer
  EXPECT_EQ(message_of<sim::RunError>([&] { peers.run("toy_mlp", "single", 0, 1); }).substr(0, 38),
            "PyTorch peers: no answer for 0.05 s");
  EXPECT_EQ(peers_of_ours().size(), 0U);
}

TEST(PeersRanks, PythonThatIsNotThere) {
  setenv("PARAGAUGE_PYTHON", "/nowhere/python", 1);
  Peers peers({}, 1);
  unsetenv("PARAGAUGE_PYTHON");
  EXPECT_EQ(message_of<sim::RunError>([&] { peers.run("toy_mlp", "single", 0, 1); }),
            "PyTorch peers: rank 0 ended with status 127: can't execute /nowhere/python: No such file or directory");
}

TEST(PeersRanks, TheEndOfPeersEndsTheProcesses) {
  {
    Peers peers({}, 2);
    peers.run("toy_mlp", "ddp,dp=2,overlap=1", 0, 1);
    EXPECT_EQ(peers_of_ours().size(), 2U);
  }
  EXPECT_EQ(peers_of_ours().size(), 0U);
}

}  // namespace
}  // namespace bench
