#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include "backend/supervise.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "tests/backend/chain.hpp"
#include "tests/backend/session/cases.hpp"

namespace backend {
namespace {

TEST(LocalSessionRanks, EveryStrategyIsRight) { execute_all(*open_session({.ranks = 2})); }

TEST(LocalSessionRanks, EveryPresetIsRight) { execute_presets(*open_session({.ranks = 4})); }

/// Transformers whose parameters are in half precision themselves: as far as float64 can tell they are one device's, and in
/// half precision what lives is what the forecast says.
TEST(LocalSessionRanks, PlayImportedOpsWithHalfParameters) {
  const auto session = open_session({.ranks = 4});
  for (const char* toy : {"gpt_toy", "llama_toy"}) {
    const std::string model = fmt::format(PARAGAUGE_TESTS_DIR "/models/{}.json", toy);
    for (const char* strategy :
         {"zero1,dp=2,param_dtype=half", "zero2,dp=2,microbatches=2,param_dtype=half", "fsdp,dp=2,param_dtype=half",
          "zero3,dp=2,param_dtype=half,reduce_dtype=f32", "mesh,dp=2,tp=2,zero=3,param_dtype=half",
          "mesh,dp=2,tp=2,sp=1,zero=1,param_dtype=half", "deepspeed_stage_3,dp=2"}) {
      SCOPED_TRACE(std::string(toy) + " " + strategy);
      for (const char* samples : {"8", "2"}) {  // 2: sp=1 cuts positions
        if (std::string_view(strategy).find("microbatches") != std::string_view::npos && *samples == '2') continue;
        const sim::Program exact =
            lowered(fmt::format("{},dtype=f64,precision=bf16,global_batch={}", model, samples), strategy);
        expect_right(exact, session->run({.program = exact, .steps = 1, .verify = true}), 1);
      }
      const RunResult in_full = session->run({.program = lowered(model, "single"), .steps = 2});
      for (const char* precision : {"bf16", "fp16"}) {
        SCOPED_TRACE(precision);
        const sim::Program program = lowered(fmt::format("{},precision={}", model, precision), strategy);
        const RunResult result = session->run({.program = program, .steps = 2});
        expect_right(program, result, 2);
        for (std::size_t s = 0; s < 2; ++s) EXPECT_NEAR(result.steps[s].loss / in_full.steps[s].loss, 1, 0.02);
      }
    }
  }
}

/// Of imported ops, too: what lives is what the forecast says, in every byte, and the loss is f32's, nearly. Verified runs
/// leave nothing to chance, which dropout would make of it.
TEST(LocalSessionRanks, PlayImportedOpsInHalfPrecision) {
  const auto session = open_session({.ranks = 2});
  const std::string tokens = PARAGAUGE_TESTS_DIR "/models/token_toy.json";
  for (const char* strategy :
       {"single", "single,microbatches=2", "ddp,dp=2", "1f1b,pp=2,microbatches=4", "zero3,dp=2"}) {
    const RunResult in_full = session->run({.program = lowered(tokens, strategy), .steps = 2, .verify = true});
    for (const char* precision : {"bf16", "fp16"}) {
      if (std::string_view(precision) == "fp16" && std::string_view(strategy).starts_with("1f1b"))
        continue;  // a tied weight and a loss scale: refused
      SCOPED_TRACE(std::string(strategy) + " " + precision);
      const sim::Program program = lowered(fmt::format("{},precision={}", tokens, precision), strategy);
      const RunResult result = session->run({.program = program, .steps = 2, .verify = true});
      ASSERT_EQ(result.steps.size(), 2U);
      expect_right_memory(program, result);
      for (std::size_t s = 0; s < 2; ++s) EXPECT_NEAR(result.steps[s].loss / in_full.steps[s].loss, 1, 0.02);
    }
  }
}

TEST(LocalSessionRanks, PlayInHalfPrecision) { execute_in_half_precision(*open_session({.ranks = 4})); }

/// The same kernels on the same inputs.
TEST(LocalSessionRanks, WhatIsComputedAgainIsEqualInEveryBit) {
  const auto session = open_session({.ranks = 2});
  const auto losses = [&](const std::string& model, const std::string& strategy) {
    const sim::Program program = lowered(model, strategy);
    const RunResult result = session->run({.program = program, .steps = 3});
    expect_right(program, result, 3);
    std::vector<double> all;
    for (const auto& step : result.steps) all.push_back(step.loss);
    return all;
  };
  for (const char* strategy : {"single,microbatches=2", "ddp,dp=2", "zero3,dp=2", "pipeline,pp=2,microbatches=4",
                               "zero_bubble,pp=2", "tp,tp=2"})
    for (const char* recompute : {"selective", "block", "full"}) {
      SCOPED_TRACE(std::string(strategy) + " " + recompute);
      const std::string again = std::string(strategy) + ",recompute=" + recompute;
      for (const char* model : {"convnet,global_batch=16", "convnet,global_batch=16,precision=bf16"})
        EXPECT_EQ(losses(model, again), losses(model, strategy));
    }
  const std::string resnet = "resnet18,image=32,global_batch=4";
  EXPECT_EQ(losses(resnet, "ddp,dp=2,recompute=selective"), losses(resnet, "ddp,dp=2"));
}

TEST(LocalSessionRanks, HalfParametersAreRight) { execute_half_parameters(*open_session({.ranks = 4})); }

/// A loss scale whose gradients overflow f16: nothing is updated, on no rank, until it is small enough.
TEST(LocalSessionRanks, InfiniteGradientsUpdateNothing) {
  const auto session = open_session({.ranks = 2});
  for (const char* strategy : {"single", "ddp,dp=2", "model_parallel,pp=2", "zero3,dp=2", "tp,tp=2"}) {
    SCOPED_TRACE(strategy);
    // 2^27 times gradients of a thousandth are beyond 65504; four steps later they are not.
    const sim::Program program =
        lowered("toy_mlp,global_batch=8,precision=fp16,loss_scale=134217728,optimizer=sgd:lr=0.1", strategy);
    const RunResult result = session->run({.program = program, .warmup_steps = 0, .steps = 16});
    ASSERT_EQ(result.steps.size(), 16U);
    EXPECT_EQ(result.steps[0].loss, result.steps[1].loss);
    EXPECT_EQ(result.steps[1].loss, result.steps[2].loss);
    EXPECT_LT(result.steps[15].loss, result.steps[14].loss);
    EXPECT_LT(result.steps[15].loss, result.steps[2].loss);
  }
}

TEST(LocalSessionRanks, MoreRanksThanCores) { execute_with_many(*open_session({.ranks = 4})); }

TEST(LocalSessionRanks, HyParsPairIsRightInEveryCombination) { execute_hypar(*open_session({.ranks = 4})); }

TEST(LocalSessionRanks, CopiesAreReplicasThatExchangeNothing) {
  const auto session = open_session({.ranks = 3});
  sim::Program three = lowered("toy_mlp,global_batch=20", "single");
  three.roles[0].ranks = {0, 1, 2};
  three.mesh.axes = {{"copy", 3}};
  three.rows = {sim::shard(0)};
  three.global_batch = 60;
  for (sim::Tensor& tensor : three.roles[0].tensors)
    if (tensor.name == "input" || tensor.name == "target") {
      tensor.whole = tensor.spec.shape;
      tensor.whole[0] = 60;
      tensor.on = {sim::shard(0)};
    }
  const RunResult copies = session->run({.program = three, .warmup_steps = 0});
  const RunResult replicas =
      session->run({.program = lowered("toy_mlp,global_batch=60", "ddp_blocking,dp=3"), .warmup_steps = 0});
  EXPECT_EQ(copies.steps[0].loss, replicas.steps[0].loss) << "each with a batch of its own";
  EXPECT_EQ(copies.steps[0].timeline.ranks.size(), 3U);
  EXPECT_EQ(copies.memory.size(), 3U);
}

TEST(LocalSessionRanks, ProbeHowFastTheMachineIs) { probe_speeds(*open_session({.ranks = 2})); }

TEST(LocalSessionRanksTimes, ATransferIsReadyWhenBothHavePosted) {
  const sim::Program program = chain(256, 40);
  const RunResult result = open_session({.ranks = 2})->run({.program = program});
  const sim::RankTimeline &sender = result.steps[0].timeline.ranks[0], &receiver = result.steps[0].timeline.ranks[1];
  EXPECT_LT(receiver.posted_s[0], sender.end_s[20]) << "posted while the sender still computes";
  EXPECT_GE(receiver.start_s[0], sender.end_s[39]) << "ready once the sender has computed";
  EXPECT_GT(receiver.bubble_s, 0.8 * sender.compute_s);
  EXPECT_LT(receiver.exposed_communication_s, 0.2 * sender.compute_s);
}

TEST(LocalSession, TellsWhatIsWrong) {
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.world = "mpi"}); }),
            "unknown world 'mpi'; known: local, gloo, nccl");
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.device = "tpu"}); }),
            "unknown device 'tpu'; known: cpu, cuda, privateuseone; did you mean 'cpu'?");
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.world = "gloo"}); }),
            "world 'gloo': RANK isn't set; start the ranks with torchrun, srun or mpirun, or let paragauge spawn them");
  const auto session = open_session({.ranks = 2});
  EXPECT_EQ(message<sim::ConfigError>(
                [&] { session->run({.program = lowered("convnet,global_batch=8", "ddp_blocking,dp=4")}); }),
            "the program needs 4 ranks, the session has 2");
  EXPECT_EQ(message<sim::ConfigError>([&] { session->run({.program = lowered("toy_mlp", "ddp,dp=2,threads=1024")}); }),
            fmt::format("2 ranks of 1024 threads need 2048 cores; this machine has {}", sim::usable_cores()));
  sim::Program periodic = lowered("toy_mlp", "ddp_blocking,dp=2");
  for (sim::Role& role : periodic.roles) role.body_begin = role.size();
  EXPECT_EQ(message<sim::ConfigError>([&] { session->run({.program = periodic}); }),
            "steps that reach into each other (prologue, body, epilogue) are played as one list: sim::unroll");
}

TEST(Session, TimeoutsAreBetweenAMillisecondAndAWeek) {
  for (const char* world : {"local", "gloo"})
    for (const auto& [timeout_s, text] : {std::pair{std::numeric_limits<double>::infinity(), "inf"},
                                          {std::numeric_limits<double>::quiet_NaN(), "nan"},
                                          {1e300, "1e+300"},
                                          {0, "0"},
                                          {604801, "604801"}})
      EXPECT_EQ(message<sim::ConfigError>([&] { open_session({.world = world, .timeout_s = timeout_s}); }),
                fmt::format("timeout_s={} must be at least 0.001 and at most 604800 (a week)", text));
  EXPECT_EQ(message<sim::ConfigError>([] { spawn_ranks({"true"}, 1, 1e300); }),
            "timeout_s=1e+300 must be at least 0.001 and at most 604800 (a week)");
}

TEST(LocalSessionRanks, AFailureNamesRankAndInstruction) {
  sim::Program program = chain(8, 2);
  program.works[0].op.inputs[0].shape = {8, 8};
  program.roles[0].tensors[2].spec.shape = {4, 16};  // what the first layer writes isn't that
  const auto session = open_session({.ranks = 2});
  EXPECT_EQ(message<sim::RunError>([&] { session->run({.program = program}); }),
            "rank 0, instruction 0 (compute forward): internal error: 'value0' was written as Float[8,8] (strides "
            "8,1), the Program "
            "says f32[4,16]");
  EXPECT_EQ(message<sim::RunError>([&] { session->run({.program = program}); }),
            "the session has failed before; open a new one");
}

/// One layer of 1.6 TFLOP takes many seconds; rank 1 gives up waiting long before.
TEST(LocalSessionRanks, AHungThreadEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_session({.ranks = 2, .timeout_s = 0.3})->run({.program = chain(9216, 1)}),
              testing::ExitedWithCode(sim::kRunErrorStatus),
              "^paragauge: rank 0 hangs \\(no progress for 2.3 s\\) in instruction 0: compute forward\n$");
}

}  // namespace
}  // namespace backend
