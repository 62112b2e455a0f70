#include "sim/plan/layers.hpp"

#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/simulate/forecast.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::plain_cluster;

/// By forecast, on links of this rate.
std::function<PlanEstimate(const Strategy&)> forecast_on(const Model& model, double link_GBps) {
  return [&model, link_GBps](const Strategy& strategy) {
    Cluster cluster = plain_cluster(strategy.ranks());
    cluster.levels[0].link.bandwidth = gigabytes_per_second(link_GBps);
    return PlanEstimate{
        .step_s = forecast(lower(model, strategy), cluster, *make_cost_model("analytic", cluster)).step.step_s};
  };
}

// Where all can be tried, descent from a uniform choice is compared with the best of all.
TEST(LayerSearch, DescentIsTheBestOfAllOnSmallNets) {
  int cases = 0, equal = 0;
  double worst = 1;
  for (const auto& [name, devices_levels] :
       std::vector<std::pair<std::string, std::vector<std::uint32_t>>>{{"toy_mlp", {2}},
                                                                       {"toy_mlp", {2, 2}},
                                                                       {"toy_mlp", {3}},
                                                                       {"convnet", {2}},
                                                                       {"convnet", {4}},
                                                                       {"lenet_c", {2}},
                                                                       {"sfc,global_batch=64", {2}}})
    for (const double link_GBps : {0.01, 1.0, 100.0}) {
      const Model model = load_model(name);
      LayerSearch search(model, forecast_on(model, link_GBps));
      const auto best = search.try_all(devices_levels);
      ASSERT_TRUE(best);
      std::optional<EstimatedStrategy> descended;
      std::string levels;
      for (const std::uint32_t level : devices_levels) levels += (levels.empty() ? "" : "x") + std::to_string(level);
      for (const char* choice : {"dp", "in", "out"}) {
        const auto found =
            search.descend(parse_strategy(fmt::format("hypar,levels={},layers={}", levels, choice), model));
        if (found && (!descended || found->estimate.is_better_than(descended->estimate))) descended = found;
      }
      ASSERT_TRUE(descended);
      EXPECT_GE(descended->estimate.step_s, best->estimate.step_s);
      const double ratio = descended->estimate.step_s / best->estimate.step_s;
      ++cases;
      equal += ratio < 1 + 1e-9 ? 1 : 0;
      worst = std::max(worst, ratio);
    }
  std::printf("descent is the best of all in %d of %d cases, else within %.2f %%\n", equal, cases, 100 * (worst - 1));
  EXPECT_GE(equal, cases - 1);  // SFC on fast links: three layers change together
  EXPECT_LT(worst, 1.001);
}

// What no single change makes better, and nothing is tried twice.
TEST(LayerSearch, DescentEndsWhereNoChangeHelps) {
  const Model model = load_model("cifar_c");
  int calls = 0;
  const auto forecast = forecast_on(model, 1);
  LayerSearch search(model, [&](const Strategy& strategy) {
    ++calls;
    return forecast(strategy);
  });
  const auto found = search.descend(parse_strategy("hypar,levels=2x2,layers=dp", model));
  if (!found) FAIL() << search.last_obstacle();
  EXPECT_EQ(static_cast<std::size_t>(calls), search.tried());
  Strategy changed = found->strategy;
  for (auto& level : changed.layers)
    if (level.size() == 1) level.resize(search.layers(), level[0]);
  for (auto& level : changed.layers)
    for (std::string& choice : level) {
      const std::string chosen = choice;
      for (const char* other : {"dp", "in", "out"}) {
        choice = other;
        const auto tried = search.try_one(changed);
        EXPECT_FALSE(tried && tried->estimate.is_better_than(found->estimate));
      }
      choice = chosen;
    }
}

// What fits comes before what is faster; where nothing fits, what needs least.
TEST(LayerSearch, MemoryComesFirst) {
  const Model model = load_model("toy_mlp");
  for (const bool some_fit : {true, false}) {
    const auto estimate = [&](const Strategy& strategy) {
      const bool is_out = strategy.text().ends_with("layers=out");
      return PlanEstimate{.fits = some_fit && is_out, .step_s = is_out ? 9.0 : 1.0, .needed_bytes = is_out ? 10 : 20};
    };
    const Proposal proposal = method_table().at("layers").propose({model, 2, estimate});
    EXPECT_EQ(proposal.strategies.at(0).text(), "hypar,levels=2,layers=out");
    EXPECT_EQ(proposal.words, "all 9 choices by layers and levels for 2 devices tried\n");
  }
}

TEST(LayerSearch, SaysWhatIsWrong) {
  const Model model = load_model("toy_mlp,global_batch=1");
  const auto estimate = [&](const Strategy& strategy) -> PlanEstimate { throw ConfigError("no, {}", strategy.preset); };
  EXPECT_EQ(message_of([&] {
              method_table().at("layers").propose({model, 2, estimate});
            }),
            "model 'toy_mlp' can't be cut into parts for 2 devices: no, hypar");
  EXPECT_EQ(message_of([&] {
              method_table().at("layers").propose({model, 1, estimate});
            }),
            "method layers cuts layers for 2 devices or more, found 1");
}

}  // namespace
}  // namespace sim
