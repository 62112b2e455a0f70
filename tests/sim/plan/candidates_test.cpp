#include "sim/plan/candidates.hpp"

#include <algorithm>
#include <set>

#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

std::set<std::string> candidates(const Model& model, std::uint32_t devices) {
  std::set<std::string> texts;
  for (const Strategy& strategy : candidate_strategies(model, devices).strategies) {
    EXPECT_TRUE(texts.insert(strategy.text()).second) << strategy.text() << " is there twice";
    EXPECT_LE(strategy.ranks(), devices);
    EXPECT_NO_THROW(lower(model, strategy)) << strategy.text();
  }
  return texts;
}

std::set<std::string> texts_of(const Model& model, std::initializer_list<const char*> given) {
  std::set<std::string> texts;
  for (const char* text : given) texts.insert(parse_strategy(text, model).text());
  return texts;
}

void expect_contains(const std::set<std::string>& all, const std::set<std::string>& some) {
  for (const std::string& text : some) EXPECT_TRUE(all.contains(text)) << text;
}

std::string left_out(const Proposal& proposal) {
  std::string text;
  for (const OmittedStrategies& each : proposal.left_out) text += each.whole + '\n';
  return text;
}

TEST(Candidates, HaveEveryRowAndDegree) {
  const Model model = load_model("convnet,global_batch=24");
  expect_contains(candidates(model, 4),
                  texts_of(model, {"single", "single,microbatches=4", "model_parallel,pp=4", "model_parallel,pp=2",
                                   "pipeline,pp=4,schedule=1f1b,microbatches=8",
                                   "pipeline,pp=2,schedule=gpipe,microbatches=2", "ddp_blocking,dp=4", "ddp,dp=4",
                                   "ddp_blocking,dp=2", "mesh,dp=2,pp=2,schedule=gpipe,microbatches=4",
                                   "mesh,dp=2,pp=2,schedule=1f1b,microbatches=4,zero=1", "zero1,dp=4",
                                   "zero2,dp=2,microbatches=12", "zero3,dp=4", "ddp,dp=4,microbatches=2", "tp,tp=2",
                                   "tp,tp=2,microbatches=4", "mesh,dp=2,tp=2", "mesh,pp=2,tp=2,microbatches=2"}));
  std::set<std::string> presets;
  for (const Strategy& strategy : candidate_strategies(model, 4).strategies) presets.insert(strategy.preset);
  for (const StrategyKind& kind : strategy_table())
    EXPECT_EQ(presets.contains(std::string(kind.name)), kind.is_proposed) << kind.name;
  expect_contains(candidates(model, 8), texts_of(model, {"hsdp,replicas=4,shard=2", "hsdp,replicas=2,shard=4",
                                                         "hsdp,replicas=2,shard=2,microbatches=6"}));
  const std::string rest = left_out(candidate_strategies(model, 4));
  EXPECT_NE(rest.find("deepspeed_stage_1, deepspeed_stage_2, deepspeed_stage_3 (ZeRO as DeepSpeed sets it"),
            std::string::npos)
      << rest;
  EXPECT_NE(rest.find("heat, heat_blocking (Heat's loop instead of PyTorch's)"), std::string::npos) << rest;
}

/// Imported models' tensor parallelism with and without; of others there is none.
TEST(Candidates, OfCutLayersTryWhatLiesBetweenThem) {
  const Model llama = load_model((testing::tests_folder() / "models" / "llama_toy.json").string());
  expect_contains(
      candidates(llama, 4),
      texts_of(llama, {"tp,tp=2", "tp,tp=2,sp=1", "tp,tp=4,sp=1", "tp,tp=2,sp=1,microbatches=4", "mesh,dp=2,tp=2,sp=1",
                       "mesh,dp=2,tp=2,sp=1,zero=1", "mesh,pp=2,tp=2,sp=1,microbatches=4,schedule=1f1b"}));
  for (const std::string& text : candidates(load_model("convnet,global_batch=24"), 4))
    EXPECT_EQ(text.find("sp="), std::string::npos) << text;
}

// What a CPU's user has without any strategy: one process with all cores; and fewer ranks with more threads.
TEST(Candidates, OfCoresHaveThreads) {
  const Model model = load_model("convnet,global_batch=24");
  std::set<std::string> of_cores;
  for (const Strategy& strategy : candidate_strategies(model, 4, /*are_cores=*/true).strategies) {
    EXPECT_TRUE(of_cores.insert(strategy.text()).second) << strategy.text();
    EXPECT_LE(strategy.ranks() * strategy.threads, 4U) << strategy.text();
    EXPECT_TRUE(strategy.threads == 1 || strategy.ranks() * strategy.threads == 4) << strategy.text();
  }
  const std::set<std::string> of_devices = candidates(model, 4);
  expect_contains(of_cores, of_devices);
  expect_contains(of_cores,
                  texts_of(model, {"single,threads=4", "ddp,dp=2,threads=2", "model_parallel,pp=2,threads=2",
                                   "hypar,levels=2,layers=out,threads=2", "single,microbatches=2,threads=4"}));
  for (const std::string& text : of_devices) EXPECT_EQ(text.find("threads"), std::string::npos) << text;
}

// A machine of three: all of it, and DataParallel's parts of 22, 22 and 20 samples.
TEST(Candidates, UseEveryNumberOfDevices) {
  const Model model = load_model("resnet18,image=64,global_batch=64");
  expect_contains(candidates(model, 3),
                  texts_of(model, {"ddp,dp=2", "data_parallel,dp=3", "model_parallel,pp=3",
                                   "pipeline,pp=3,schedule=gpipe,microbatches=4", "hypar,levels=3,layers=dp"}));
  expect_contains(candidates(model, 6),
                  texts_of(model, {"ddp,dp=4", "data_parallel,dp=5", "pipeline,pp=5,microbatches=8",
                                   "mesh,dp=2,pp=3,schedule=1f1b,microbatches=4"}));
  EXPECT_NE(left_out(candidate_strategies(model, 6)).find("tp with tp = 2, 4 (the model is no chain of layers)"),
            std::string::npos);
  const Model odd = load_model("resnet18,image=64,global_batch=250");
  expect_contains(candidates(odd, 8), texts_of(odd, {"ddp,dp=5", "ddp,dp=2", "data_parallel,dp=7"}));
}

// On many devices few idle: 64 replicas of 100, or 32 of pipelines of three stages.
TEST(Candidates, OfManyDevicesAreFewAndLeaveFewIdle) {
  const Model model = load_model("convnet,global_batch=256");
  const std::set<std::string> of_100 = candidates(model, 100);
  expect_contains(of_100, texts_of(model, {"ddp,dp=64", "mesh,dp=32,pp=3,microbatches=4", "ddp,dp=16",
                                           "data_parallel,dp=86", "single"}));
  EXPECT_LE(of_100.size(), 1200U);
  EXPECT_LE(candidates(model, 1024).size(), 1300U);
  EXPECT_NE(left_out(candidate_strategies(model, 100)).find("numbers of devices above 16"), std::string::npos);
}

// A schedule that needs more stages than there are doesn't end the others; where no number of microbatches fills the
// bubble, the largest is tried with all of them.
TEST(Candidates, PipelinesHaveEverySchedule) {
  expect_contains(candidates(load_model("convnet"), 8),
                  texts_of(load_model("convnet"), {"pipeline,pp=8,microbatches=16,schedule=zb_h1",
                                                   "pipeline,pp=8,microbatches=32,schedule=1f1b"}));
  const Model few = load_model("resnet18,image=64,global_batch=8");
  expect_contains(candidates(few, 8), texts_of(few, {"pipeline,pp=8,microbatches=8,schedule=zb_h1"}));
}

// What the model doesn't allow isn't there, and is said: 6 samples on 4 devices, more stages than nodes.
/// Blocks where the model allows it, else ops without parameters; and it does need less.
TEST(Candidates, WhatDoesNotFitIsTriedWithRecomputation) {
  const auto again = [](const std::string& model_text, const char* text) {
    const Model model = load_model(model_text);
    const std::optional<Strategy> smaller = with_recomputation(model, parse_strategy(text, model));
    return smaller ? smaller->text() : "nothing";
  };
  EXPECT_EQ(again("vgg11,image=64,global_batch=16", "ddp,dp=2"), "ddp,dp=2,recompute=block");
  EXPECT_EQ(again("resnet18,image=64,global_batch=16", "ddp,dp=2"), "ddp,dp=2,recompute=selective");
  EXPECT_EQ(again("resnet18,image=64,global_batch=16", "ddp,dp=2,recompute=selective"), "nothing");
  EXPECT_EQ(again("resnet18,image=64,global_batch=16", "hypar,layers=dp"),
            "hypar,recompute=selective,levels=2,layers=dp");
  EXPECT_EQ(again("resnet18,image=64,global_batch=16", "data_parallel,dp=2"), "nothing");
  const std::string gpt = (testing::tests_folder() / "models" / "gpt_toy.json").string() + ",global_batch=64";
  for (const std::string& model_text : {gpt, std::string("resnet18,image=64,global_batch=16")}) {
    const Model model = load_model(model_text);
    const Strategy strategy = parse_strategy("ddp,dp=2", model);
    EXPECT_LT(peak_memory(lower(model, *with_recomputation(model, strategy)).roles[0]).peak_bytes,
              peak_memory(lower(model, strategy).roles[0]).peak_bytes)
        << model_text;
  }
}

TEST(Candidates, WhatTheModelDoesNotAllowIsSaid) {
  const Model six = load_model("convnet,global_batch=6");
  for (const std::string& text : candidates(six, 4))
    EXPECT_TRUE(text.find("dp=4") == std::string::npos || text.starts_with("data_parallel") ||
                text.starts_with("hypar"))
        << text;
  const Proposal proposal = candidate_strategies(six, 4);
  const auto ddp = std::ranges::find(proposal.skipped, "ddp,dp=4", &SkippedStrategy::strategy);
  ASSERT_NE(ddp, proposal.skipped.end());
  EXPECT_EQ(ddp->why,
            "strategy 'ddp,dp=4': dp=4 must divide global_batch=6 of model 'convnet'; near: dp=3 or 6, or "
            "global_batch=4 or 8");
  EXPECT_NE(left_out(proposal).find("with dp = 4 (6 samples don't divide)"), std::string::npos) << left_out(proposal);
  EXPECT_EQ(proposal.left_out.at(0).brief, "tp = 4");

  EXPECT_EQ(candidates(load_model("toy_mlp,global_batch=1"), 1), std::set<std::string>{"single"});
  const Model toy = load_model("toy_mlp,global_batch=1");
  const Proposal of_64 = candidate_strategies(toy, 64);
  for (const Strategy& strategy : of_64.strategies) EXPECT_LE(strategy.pp, toy.nodes.size());
  EXPECT_NE(left_out(of_64).find(fmt::format("(the model has {} layers)", toy.nodes.size())), std::string::npos)
      << left_out(of_64);
}

}  // namespace
}  // namespace sim
