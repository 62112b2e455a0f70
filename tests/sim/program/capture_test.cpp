#include "sim/program/capture.hpp"

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

std::string refusal(const char* model_text, const char* strategy, const char* world, bool asynchronous = true) {
  const Model model = load_model(model_text);
  const Program program = lower(model, parse_strategy(strategy, model));
  return message_of([&] { check_capture(program, world, asynchronous); });
}

TEST(Capture, WhatARankDoesByItselfOrThroughItsOwnStreams) {
  EXPECT_EQ(refusal("toy_mlp", "single", "local"), "no error");
  EXPECT_EQ(refusal("toy_mlp", "ddp_blocking", "nccl"), "no error");
  EXPECT_EQ(refusal("toy_mlp,timing=step", "single", "nccl"), "no error");
}

TEST(Capture, WhatAReplayCouldNotDoIsRefused) {
  EXPECT_EQ(refusal("toy_mlp", "single", "local", /*asynchronous=*/false),
            "graph: a CPU core executes each instruction itself, nothing is launched; allowed: device=cuda");
  for (const char* timing : {"epoch", "tutorial"})
    EXPECT_EQ(
        refusal(fmt::format("convnet,timing={}", timing).c_str(), "single", "local"),
        fmt::format(
            "graph: 'convnet,global_batch=64,timing={}' works on the host in every step, which a replay leaves out; "
            "allowed: timing=step",
            timing));
  EXPECT_EQ(refusal("toy_mlp", "ddp_blocking", "local"),
            "graph: the 2 ranks of 'ddp_blocking,dp=2' share a process in world 'local', and what orders them is in no "
            "rank's "
            "own graph; allowed: one rank, or world=nccl");
  EXPECT_EQ(refusal("toy_mlp", "heat", "nccl"),
            "graph: 'heat,dp=2' plays 9 steps between two barriers, and a replay has the time of all together only; "
            "allowed: bodies=1, and strategies whose steps don't reach into each other, such as heat_blocking");
}

}  // namespace
}  // namespace sim
