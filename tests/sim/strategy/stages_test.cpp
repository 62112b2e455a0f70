#include "sim/strategy/strategy.hpp"

#include <cmath>

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::small_model;

std::string stage_ends(const Model& model, std::string_view strategy) {
  const std::vector<std::uint32_t> stages = stages_of(model, parse_strategy(strategy, model));
  std::string text;
  for (std::size_t n = 0; n + 1 < stages.size(); ++n)
    if (stages[n] != stages[n + 1]) text += (text.empty() ? "" : " ") + model.nodes[n].name;
  return text;
}

TEST(Stages, NamedCuts) {
  EXPECT_EQ(stage_ends(small_model("toy_mlp"), "model_parallel,cut=r1"), "relu");
  // R1: ResNet-50 is cut behind layer2, a prefix that stands for its last node.
  EXPECT_EQ(stage_ends(small_model("resnet50"), "model_parallel,cut=r1"), "layer2.3.relu3");
  EXPECT_EQ(stage_ends(small_model("resnet18"), "model_parallel,pp=4,cut=by_layer"),
            "layer1.1.relu2 layer2.1.relu2 layer3.1.relu2");
  EXPECT_EQ(stage_ends(small_model("resnet18"), "model_parallel,pp=3,cut=layer1.0.conv1+layer3"),
            "layer1.0.conv1 layer3.1.relu2");
  EXPECT_EQ(stage_ends(small_model("convnet"), "pipeline,pp=4,cut=r2"), "pool1 pool2 relu4");
  EXPECT_EQ(stage_ends(small_model("toy_mlp"), "ddp"), "");
}

/// Cost of a node as stages_of documents it: the roofline of a generic device, 50 GFLOP/s and 10 GB/s.
std::vector<double> weights(const Model& model, std::int64_t rows) {
  std::vector<double> list;
  for (const NodeSummary& node : summarize(model, rows))
    list.push_back((node.forward_flops + node.backward_flops) / 50e9 +
                   (node.forward_bytes + node.backward_bytes) / 10e9);
  return list;
}

/// The least possible cost of the dearest stage, by trying all cuts of [begin, end) into `parts`.
double best_cut(const std::vector<double>& costs, std::size_t begin, std::uint32_t parts) {
  double sum = 0;
  if (parts == 1) {
    for (std::size_t n = begin; n < costs.size(); ++n) sum += costs[n];
    return sum;
  }
  double best = HUGE_VAL;
  for (std::size_t end = begin + 1; end + parts - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, best_cut(costs, end, parts - 1)));
  }
  return best;
}

TEST(Stages, BalancedIsTheBestOfAllCuts) {
  for (const char* name : {"toy_mlp", "linear_dp", "convnet"}) {
    const Model model = small_model(name);
    for (std::uint32_t pp = 2; pp <= std::min<std::size_t>(5, model.nodes.size()); ++pp) {
      SCOPED_TRACE(fmt::format("{} in {}", name, pp));
      const std::vector<std::uint32_t> stages = stages_of(model, parse_strategy(fmt::format("pp={}", pp), model));
      const std::vector<double> costs = weights(model, model.global_batch);
      std::vector<double> sums(pp, 0);
      for (std::size_t n = 0; n < stages.size(); ++n) sums.at(stages[n]) += costs[n];
      EXPECT_TRUE(std::ranges::is_sorted(stages));
      EXPECT_EQ(stages.front(), 0U);
      EXPECT_EQ(stages.back(), pp - 1);
      EXPECT_NEAR(std::ranges::max(sums), best_cut(costs, 0, pp), 1e-12 * std::ranges::max(sums));
    }
  }
}

TEST(Stages, AsManyAsNodes) {
  const Model model = small_model("toy_mlp");
  EXPECT_EQ(stages_of(model, parse_strategy("pp=4", model)), (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace sim
