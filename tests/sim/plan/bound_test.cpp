#include "sim/plan/bound.hpp"

#include "sim/lower/lower.hpp"
#include "sim/plan/candidates.hpp"
#include "sim/program/fold.hpp"
#include "sim/program/memory.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

struct OnCluster {
  explicit OnCluster(const std::string& file, std::uint32_t ranks)
      : cluster(load_cluster(file, ranks)), cost_model(make_cost_model("analytic", cluster)) {}

  [[nodiscard]] Program lowered(const Model& model, const Strategy& strategy, Cluster& own) const {
    Program program = lower(model, strategy);
    own = cluster;
    own.place.resize(program.ranks());
    return fold_many(std::move(program), own);
  }
  [[nodiscard]] MicrobatchUse use(const Model& model, const OneMicrobatch& one) const {
    Cluster own;
    const Program program = lowered(one.of(model), one.strategy, own);
    return {program, costs_of(program, *cost_model, own), own};
  }

  Cluster cluster;
  std::unique_ptr<CostModel> cost_model;
};

/// Of every candidate of several microbatches, and of it with recomputation: how many there are.
std::size_t expect_bounds(const std::string& model_text, const std::string& file, std::uint32_t devices) {
  const Model model = load_model(model_text);
  const OnCluster on(file, devices);
  std::size_t bounds = 0;
  std::map<std::string, MicrobatchUse> uses;
  const auto check_one = [&](const Strategy& strategy) {
    const std::optional<OneMicrobatch> one = one_microbatch(model, strategy);
    if (!one) return;
    Cluster own;
    Program program;
    try {
      program = on.lowered(model, strategy, own);
    } catch (const ConfigError&) {  // of a shared parameter
      return;
    }
    ++bounds;
    auto use = uses.find(one->key);
    if (use == uses.end()) use = uses.emplace(one->key, on.use(model, *one)).first;
    const StepBound bound = use->second.bound(strategy);
    const Costs costs = costs_of(program, *on.cost_model, own);
    EXPECT_LE(bound.step_s, simulate(program, costs, own).step_s * (1 + 1e-9)) << model_text << ' ' << strategy.text();
    EXPECT_LE(bound.needed_bytes, fit_memory(program, own, costs.workspace_bytes).needed_bytes())
        << model_text << ' ' << strategy.text();
  };
  for (const Strategy& strategy : candidate_strategies(model, devices).strategies) {
    check_one(strategy);
    if (const std::optional<Strategy> smaller = with_recomputation(model, strategy)) check_one(*smaller);
  }
  return bounds;
}

TEST(Bound, IsNeverAboveTheForecast) {
  EXPECT_GT(expect_bounds("convnet,global_batch=24", "dgx_a100", 4), 50U);
  EXPECT_GT(expect_bounds("convnet,global_batch=48", "two_pcs_1gbe", 2), 5U);
  EXPECT_GT(expect_bounds("vgg11,global_batch=64", "dgx1", 4), 50U);
  EXPECT_GT(expect_bounds("gpt_nano,global_batch=32,precision=bf16", "dgx_h100", 4), 50U);
  EXPECT_GT(expect_bounds((testing::tests_folder() / "models" / "llama_toy.json").string() + ",global_batch=32",
                          "pcie_workstation", 4),
            50U);
}

/// Of stages that aren't equal.
TEST(Bound, IsNotFarBelowTheForecast) {
  const Model model = load_model("gpt_nano,global_batch=64");
  const OnCluster on("dgx_a100", 4);
  for (const char* text :
       {"pipeline,pp=2,schedule=1f1b,microbatches=8", "pipeline,pp=2,schedule=gpipe,microbatches=4"}) {
    const Strategy strategy = parse_strategy(text, model);
    const StepBound bound = on.use(model, *one_microbatch(model, strategy)).bound(strategy);
    Cluster own;
    const Program program = on.lowered(model, strategy, own);
    EXPECT_GT(bound.step_s, 0.65 * simulate(program, costs_of(program, *on.cost_model, own), own).step_s) << text;
  }
}

TEST(Bound, KnowsWhatSchedulesKeep) {
  const Model model = load_model("convnet,global_batch=65536");
  const OnCluster on("dgx_a100", 4);
  const auto needed = [&](const char* text) {
    const Strategy strategy = parse_strategy(text, model);
    return on.use(model, *one_microbatch(model, strategy)).bound(strategy).needed_bytes;
  };
  EXPECT_GT(needed("pipeline,pp=2,schedule=gpipe,microbatches=16"),
            needed("pipeline,pp=2,schedule=1f1b,microbatches=16"));
}

TEST(Bound, IsMadeOncePerMicrobatch) {
  const Model model = load_model("convnet,global_batch=24");
  EXPECT_FALSE(one_microbatch(model, parse_strategy("ddp,dp=2", model)));
  const auto key = [&](const char* text) { return one_microbatch(model, parse_strategy(text, model))->key; };
  EXPECT_EQ(key("pipeline,pp=2,microbatches=4,schedule=1f1b"), key("pipeline,pp=2,microbatches=4,schedule=gpipe"));
  EXPECT_NE(key("pipeline,pp=2,microbatches=4,schedule=1f1b"), key("pipeline,pp=2,microbatches=8,schedule=1f1b"));
  EXPECT_NE(key("pipeline,pp=2,microbatches=4,schedule=1f1b"), key("pipeline,pp=2,microbatches=4,schedule=zb_h1"));
}

}  // namespace
}  // namespace sim
