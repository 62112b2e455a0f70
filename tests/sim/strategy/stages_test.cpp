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

/// Cost of a node as stages_of documents it: the roofline of a generic device, 50 GFLOP/s and 10 GB/s. The loss's is its
/// predecessor's where there are more nodes than parts.
std::vector<double> weights(const Model& model, std::int64_t rows, std::uint32_t parts) {
  std::vector<double> list;
  for (const NodeSummary& node : summarize(model, rows))
    list.push_back((node.forward_flops + node.backward_flops) / 50e9 +
                   (node.forward_bytes + node.backward_bytes) / 10e9);
  if (parts == list.size()) return list;
  const double loss = list.back();
  list.pop_back();
  list.back() += loss;
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
      std::vector<std::uint32_t> stages = stages_of(model, parse_strategy(fmt::format("pp={}", pp), model));
      const std::vector<double> costs = weights(model, model.global_batch, pp);
      if (costs.size() < stages.size()) {
        EXPECT_EQ(stages[stages.size() - 2], stages.back());
        stages.pop_back();
      }
      std::vector<double> sums(pp, 0);
      for (std::size_t n = 0; n < stages.size(); ++n) sums.at(stages[n]) += costs[n];
      EXPECT_TRUE(std::ranges::is_sorted(stages));
      EXPECT_EQ(stages.front(), 0U);
      EXPECT_EQ(stages.back(), pp - 1);
      EXPECT_NEAR(std::ranges::max(sums), best_cut(costs, 0, pp), 1e-12 * std::ranges::max(sums));
    }
  }
}

/// The dynamic program over all prefixes: of every (prefix, stages) the lightest heaviest; the last stage as long as it may be.
std::vector<std::uint32_t> stages_by_prefixes(const std::vector<double>& costs, std::uint32_t parts) {
  const std::size_t n = costs.size();
  std::vector<double> sum(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) sum[i + 1] = sum[i] + costs[i];
  std::vector best(parts + 1, std::vector<double>(n + 1, HUGE_VAL));
  std::vector cut(parts + 1, std::vector<std::size_t>(n + 1, 0));
  best[0][0] = 0;
  for (std::uint32_t p = 1; p <= parts; ++p)
    for (std::size_t end = p; end <= n; ++end)
      for (std::size_t begin = p - 1; begin < end; ++begin)
        if (const double cost = std::max(best[p - 1][begin], sum[end] - sum[begin]); cost < best[p][end]) {
          best[p][end] = cost;
          cut[p][end] = begin;
        }
  std::vector<std::uint32_t> stages(n);
  for (std::size_t p = parts, end = n; p > 0; end = cut[p][end], --p)
    for (std::size_t i = cut[p][end]; i < end; ++i) stages[i] = static_cast<std::uint32_t>(p - 1);
  return stages;
}

TEST(Stages, BalancedAsByTryingAllPrefixes) {
  for (const char* name : {"convnet", "resnet18", "vgg16"}) {
    const Model model = small_model(name);
    for (const std::uint32_t pp : {2U, 3U, 4U, 5U, 8U, 16U}) {
      if (pp > model.nodes.size()) continue;
      std::vector<std::uint32_t> expected = stages_by_prefixes(weights(model, model.global_batch, pp), pp);
      if (expected.size() < model.nodes.size()) expected.push_back(pp - 1);
      EXPECT_EQ(stages_of(model, parse_strategy(fmt::format("pp={}", pp), model)), expected) << name << " in " << pp;
    }
  }
}

/// By compute alone GPT-2's classifier would be a stage and the loss the next one, which the logits of 50,257 tokens had to
/// get to: 66 times the bytes of the hidden state.
TEST(Stages, LogitsStayWhereTheLossIs) {
  const Model model = load_model("gpt2");
  const auto head = static_cast<std::size_t>(model.node_index("lm_head"));
  for (const std::uint32_t pp : {2U, 4U, 8U, 16U}) {
    const std::vector<std::uint32_t> stages =
        stages_of(model, parse_strategy(fmt::format("pipeline,pp={},microbatches=4", pp), model));
    EXPECT_TRUE(stages[head] == pp - 1 && stages.back() == pp - 1) << pp;
  }
}

/// A chain of so many layers: thousands of nodes in thousands of stages, which took seconds and gigabytes.
TEST(Stages, ManyNodesInManyStages) {
  const testing::TemporaryFolder folder;
  const std::string path = folder.file(
      "deep.json",
      R"({"format": "paragauge-model-1", "name": "deep", "input": [4], "target": {"classes": 4}, "global_batch": 8,
          "optimizer": {"kind": "sgd", "lr": 0.1}, "loss": "mse_loss",
          "blocks": {"b": {"nodes": [{"name": "fc", "op": "linear", "out_features": 4}]}},
          "nodes": [{"block": "b", "name": "{i}", "repeat": 6000}]})");
  const Model model = load_model(path);
  const std::vector<std::uint32_t> stages = stages_of(model, parse_strategy("pp=3000", model));
  std::vector<int> sizes(3000, 0);
  for (const std::uint32_t stage : stages) ++sizes.at(stage);
  EXPECT_GE(std::ranges::min(sizes), 1);
  EXPECT_LE(std::ranges::max(sizes), 3);
}

TEST(Stages, AsManyAsNodes) {
  const Model model = small_model("toy_mlp");
  EXPECT_EQ(stages_of(model, parse_strategy("pp=4", model)), (std::vector<std::uint32_t>{0, 1, 2, 3}));
}

}  // namespace
}  // namespace sim
