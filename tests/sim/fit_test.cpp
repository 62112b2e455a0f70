#include "sim/fit.hpp"

#include <cmath>
#include <random>

#include "sim/lower.hpp"
#include "sim/profile.hpp"
#include "sim/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::plain_cluster;

constexpr double kLaunch_s = 2e-6, kFlops = 80e9, kCached = 40e9, kMemory = 8e9, kCache = 1048576;

double true_seconds(const Demand& demand) {
  return kLaunch_s + demand.flops / kFlops + demand.bytes / (demand.bytes <= kCache ? kCached : kMemory);
}

std::vector<ShapeSample> samples_of_a_machine() {
  std::vector<ShapeSample> samples;
  for (double flops = 1e5; flops < 1e10; flops *= 7)
    for (double bytes = 1e4; bytes < 1e9; bytes *= 9) {
      const Demand demand{flops, bytes};
      samples.push_back({demand, {std::log(flops), std::log(bytes)}, true_seconds(demand), 0});
    }
  return samples;
}

TEST(ShapeFit, FindsTheMachine) {
  const ShapeFit fit(samples_of_a_machine());
  EXPECT_NEAR(fit.launch_s() / kLaunch_s, 1, 1e-6);
  EXPECT_NEAR(fit.flops_per_s() / kFlops, 1, 1e-6);
  EXPECT_NEAR(fit.cached_bytes_per_s() / kCached, 1, 1e-6);
  EXPECT_NEAR(fit.memory_bytes_per_s() / kMemory, 1, 1e-6);
  EXPECT_EQ(fit.cache_bytes(), kCache);
  const Demand other{3.3e8, 5e6};  // in none of the samples
  const std::vector<double> shape{std::log(other.flops), std::log(other.bytes)};
  EXPECT_NEAR(fit.at(other, shape).seconds / true_seconds(other), 1, 1e-3);
}

TEST(ShapeFit, NoConstantIsNegative) {
  // Faster with more bytes: no bandwidth explains that.
  const ShapeFit fit({{{0, 1e6}, {}, 3e-3, 0}, {{0, 2e6}, {}, 2e-3, 0}, {{0, 4e6}, {}, 1e-3, 0}});
  EXPECT_GE(fit.launch_s(), 0);
  EXPECT_GT(fit.cached_bytes_per_s(), 0);
  EXPECT_GT(fit.memory_bytes_per_s(), 0);
  EXPECT_GT(fit.at({0, 1e7}, {}).seconds, 0);
}

TEST(ShapeFit, OneSampleIsEnoughForAnAnswer) {
  const ShapeFit fit({{{1e6, 1e4}, {1.0}, 1e-3, 0.01}});
  const Estimate same = fit.at({1e6, 1e4}, std::vector{1.0});
  EXPECT_NEAR(same.seconds, 1e-3, 1e-9);
  EXPECT_LT(same.novelty, 0.6);
  EXPECT_GT(fit.at({1e6, 1e4}, std::vector{9.0}).novelty, 0.99);
}

// A kernel that is twice as slow where the first coordinate is small.
TEST(Kriging, InterpolatesAndForgets) {
  std::vector<std::vector<double>> points;
  std::vector<double> values, noise;
  for (double x = 0; x <= 8; x += 0.5) {
    points.push_back({x});
    values.push_back(x < 4 ? std::log(2.0) : 0);
    noise.push_back(0.01);
  }
  const Kriging kriging(points, values, noise);
  EXPECT_NEAR(kriging.at(std::vector{1.25}).value, std::log(2.0), 0.1);
  EXPECT_NEAR(kriging.at(std::vector{6.75}).value, 0, 0.1);
  EXPECT_LT(kriging.at(std::vector{1.25}).novelty, 0.1);
  const Kriging::Answer far = kriging.at(std::vector{50.0});
  EXPECT_NEAR(far.value, 0, 1e-6);
  EXPECT_NEAR(far.novelty, 1, 1e-6);
  EXPECT_GT(far.sd, 0.3);
}

// ---- The cost model. ----

/// What a machine of the analytic model would measure for a model's calibration, with noise.
void add_ops(Profile& profile, const std::string& model_text, const Cluster& cluster, double noise) {
  const Model model = load_model(model_text);
  const Program program = calibration_program(model, parse_strategy("single", model));
  const auto analytic = cost_model_table().at("analytic").make(cluster, nullptr);
  std::mt19937 random(7);
  std::normal_distribution<double> relative(1, noise);
  for (const Work& work : program.works) {
    const double truth = 5e-6 + analytic->compute(work).busy_s[0];
    profile.add_op("local", work_key(work), 1, std::vector{truth * relative(random), truth * relative(random)});
    profile.add_op("local", work_key(work), 2, std::vector{1.25 * truth, 1.25 * truth});
  }
  profile.add_launch(std::vector{1e-6});
}

TEST(Fitted, ForecastsAModelThatIsNotInTheProfile) {
  const Cluster cluster = plain_cluster(2);
  Profile seen("core"), unseen("core");
  add_ops(seen, "resnet18,image=64,global_batch=8", cluster, 0.01);
  add_ops(seen, "resnet50,image=96,global_batch=4", cluster, 0.01);
  add_ops(unseen, "resnet34,image=128,global_batch=8", cluster, 0);
  const auto fitted = cost_model_table().at("fitted").make(cluster, &seen);
  double predicted = 0, truth = 0;
  for (const std::string& key : unseen.works()) {
    const ComputeCost cost = fitted->compute(work_from_key(key));
    predicted += cost.busy_s[0];
    truth += unseen.op_levels("local", key).at(1).mean_s;
    EXPECT_NEAR(cost.busy_s.at(1) / cost.busy_s[0], 1.25, 0.05) << key;
    EXPECT_LT(cost.novelty, 1) << key;
  }
  EXPECT_NEAR(std::log(predicted / truth), 0, 0.1);
}

TEST(Fitted, SaysThatAnOpIsUnlikeAll) {
  const Cluster cluster = plain_cluster(1);
  Profile profile("core");
  add_ops(profile, "toy_mlp", cluster, 0.01);
  const auto fitted = cost_model_table().at("fitted").make(cluster, &profile);
  const Model vgg = load_model("vgg11,image=32,global_batch=2");
  const Program program = lower(vgg, parse_strategy("single", vgg));
  for (const Work& work : program.works)
    if (work.op.kind->name == "conv2d") EXPECT_EQ(fitted->compute(work).novelty, 1);
  EXPECT_EQ(message_of([&] { cost_model_table().at("fitted").make(cluster, nullptr); }),
            "cost model 'fitted' needs a profile; 'paragauge calibrate' writes one");
}

TEST(Fitted, MoreRanksTakeMoreSteps) {
  const Cluster cluster = plain_cluster(2);
  Profile profile("core");
  add_ops(profile, "toy_mlp", cluster, 0.01);
  profile.add_link({"gloo", "all_reduce", 2}, 4096, std::vector{100e-6});
  profile.add_link({"gloo", "all_reduce", 2}, 4096 + 1'000'000, std::vector{1100e-6});
  const auto fitted = cost_model_table().at("fitted").make(cluster, &profile);
  TransferQuestion question{InstructionKind::collective, CollectiveKind::all_reduce, 2'004'096, 2};
  EXPECT_NEAR(fitted->transfer(question).latency_s, 100e-6, 1e-9);
  EXPECT_NEAR(fitted->transfer(question).wire_s, 2e-3, 1e-9);
  question.members = 8;  // ring: 14 steps for 2, 14/8 s for s
  EXPECT_NEAR(fitted->transfer(question).latency_s, 7 * 100e-6, 1e-9);
  EXPECT_NEAR(fitted->transfer(question).wire_s, 1.75 * 2e-3, 1e-9);
  question.collective = CollectiveKind::broadcast;
  EXPECT_EQ(
      message_of([&] { (void)fitted->transfer(question); }),
      "the profile of device 'core' has no broadcast of world 'gloo' at two sizes or more; 'paragauge calibrate' for "
      "a strategy that uses it adds it");
}

}  // namespace
}  // namespace sim
