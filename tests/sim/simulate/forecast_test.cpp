#include "sim/simulate/forecast.hpp"

#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::plain_cluster;

/// toy_mlp on two replicas; every op takes 1 or 3 ms, every transfer 2.
struct Known {
  Program program;
  Cluster cluster = plain_cluster(2);
  Profile profile{"cpu"};
  Known() {
    const Model model = load_model("toy_mlp");
    program = lower(model, parse_strategy("ddp,dp=2", model));
    for (const Work& work : program.works) profile.add_op("gloo", work_key(work), 1, std::vector{1e-3, 3e-3});
    for (const char* kind : {"all_reduce", "broadcast"})
      profile.add_link({"gloo", kind, 2}, std::int64_t{1} << 30, std::vector{2e-3});
    profile.add_launch(std::vector{1e-6});
  }
};

// Ranks wait for each other's hiccups: a timeline without any is shorter than the mean of steps that have them.
TEST(Forecast, IsTheMeanOverStepsWithJitter) {
  const Known known;
  const Forecast f = forecast(known.program, known.cluster, "profiled", &known.profile);
  EXPECT_EQ(f.step, expected_step(known.program, f.costs, known.cluster));
  EXPECT_GT(f.step.step_s, 1.02 * simulate(known.program, f.costs, known.cluster).step_s);
}

TEST(Forecast, NoveltyIsOfTheComputeByTime) {
  const Known known;
  EXPECT_EQ(forecast(known.program, known.cluster, "profiled", &known.profile).novelty, 0);
  Profile other("cpu");  // a batch four times as large
  const Model model = load_model("toy_mlp,global_batch=64");
  for (const Work& work : lower(model, parse_strategy("ddp,dp=2", model)).works)
    other.add_op("gloo", work_key(work), 1, std::vector{1e-3, 3e-3});
  for (const std::int64_t bytes : {1 << 10, 1 << 20})
    for (const char* kind : {"all_reduce", "broadcast"}) other.add_link({"gloo", kind, 2}, bytes, std::vector{2e-3});
  other.add_launch(std::vector{1e-6});
  const Forecast f = forecast(known.program, known.cluster, "fitted", &other);
  double novel_s = 0, all_s = 0;
  for (std::size_t work = 0; work < known.program.works.size(); ++work) {
    novel_s += f.costs.novelty[work] * f.costs.work_s[work * f.costs.busy_levels];
    all_s += f.costs.work_s[work * f.costs.busy_levels];
  }
  EXPECT_GT(f.novelty, 0);
  EXPECT_DOUBLE_EQ(f.novelty, novel_s / all_s);
}

TEST(Forecast, OfAnotherMachine) {
  const Known known;
  const double step_s = forecast(known.program, known.cluster, "analytic").step.step_s;
  const Scale faster = parse_scale("flops=2,memory_bandwidth=2,bandwidth=2,latency=0.5,launch=0.5");
  EXPECT_NEAR(forecast(known.program, known.cluster, "analytic", nullptr, faster).step.step_s, step_s / 2, 1e-12);
}

TEST(Forecast, SaysWhatIsMissing) {
  const Known known;
  EXPECT_EQ(message_of([&] { forecast(known.program, known.cluster, "profiled"); }),
            "cost model 'profiled' needs a profile; 'paragauge calibrate' writes one");
  EXPECT_EQ(message_of([&] { forecast(known.program, known.cluster, "guessed"); }),
            "unknown cost model 'guessed'; known: analytic, fitted, profiled");
}

}  // namespace
}  // namespace sim
