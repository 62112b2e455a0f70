#include "sim/plan/candidates.hpp"

#include <algorithm>
#include <set>

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

std::set<std::string> candidates(const Model& model, std::uint32_t devices) {
  std::set<std::string> texts;
  for (const Strategy& strategy : candidate_strategies(model, devices)) {
    EXPECT_TRUE(texts.insert(strategy.text()).second) << strategy.text() << " is there twice";
    EXPECT_EQ(devices % strategy.ranks(), 0U);
    EXPECT_NO_THROW(lower(model, strategy)) << strategy.text();
  }
  return texts;
}

TEST(Candidates, HaveEveryRowAndDegree) {
  const Model model = load_model("convnet,global_batch=24");
  const std::set<std::string> of_four = candidates(model, 4);
  for (const char* text : {"single", "single,microbatches=4", "model_parallel,pp=4", "model_parallel,pp=2",
                           "pipeline,pp=4,schedule=1f1b,microbatches=8", "pipeline,pp=2,schedule=gpipe,microbatches=2",
                           "ddp_blocking,dp=4", "ddp,dp=4", "ddp_blocking,dp=2",
                           "mesh,dp=2,pp=2,schedule=gpipe,microbatches=4", "ddp,dp=4,microbatches=2"})
    EXPECT_TRUE(of_four.contains(parse_strategy(text, model).text())) << text;
  std::set<std::string> presets;
  for (const Strategy& strategy : candidate_strategies(model, 4)) presets.insert(strategy.preset);
  for (const StrategyKind& kind : strategy_table()) EXPECT_TRUE(presets.contains(std::string(kind.name))) << kind.name;
}

// What doesn't divide isn't there: 6 samples on 4 devices, more stages than nodes.
TEST(Candidates, FitTheModel) {
  for (const std::string& text : candidates(load_model("convnet,global_batch=6"), 4))
    EXPECT_EQ(text.find("dp=4"), std::string::npos) << text;
  EXPECT_EQ(candidates(load_model("toy_mlp,global_batch=1"), 1), std::set<std::string>{"single"});
  const Model toy = load_model("toy_mlp,global_batch=1");
  for (const Strategy& strategy : candidate_strategies(toy, 64)) EXPECT_LE(strategy.pp, toy.nodes.size());
}

}  // namespace
}  // namespace sim
