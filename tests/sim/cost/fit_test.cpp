#include "sim/cost/fit.hpp"

#include <cmath>
#include <random>

#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::plain_cluster;

// Slow: works of less than about 10 us are expected to vary by what was executed before them, and say little.
constexpr double kLaunch_s = 5e-5, kFlops = 4e9, kCached = 2e9, kMemory = 4e8, kCache = 1048576;

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

/// What one would guess of that machine: everything three times as fast, or as slow.
constexpr Physics kGuess{kLaunch_s / 3, 3 / kFlops, 1 / (3 * kCached), 9, 0};

TEST(ShapeFit, FindsTheMachine) {
  const ShapeFit fit(samples_of_a_machine(), kGuess, Cache::found);
  const Physics& found = fit.physics();
  EXPECT_NEAR(found.launch_s / kLaunch_s, 1, 0.12);
  EXPECT_NEAR(found.s_per_flop * kFlops, 1, 0.12);
  EXPECT_NEAR(found.s_per_byte * kCached, 1, 0.15);
  EXPECT_NEAR(found.s_per_byte * (1 + found.beyond) * kMemory, 1, 0.12);
  EXPECT_EQ(found.cache_bytes, kCache);
  const Demand other{3.3e8, 5e6};  // in none of the samples
  const std::vector<double> shape{std::log(other.flops), std::log(other.bytes)};
  EXPECT_NEAR(fit.at(other, shape).seconds / true_seconds(other), 1, 3e-3);
}

TEST(ShapeFit, NoConstantIsNegative) {
  // Faster with more bytes: no bandwidth explains that.
  const Physics found =
      ShapeFit({{{0, 1e6}, {}, 3e-3, 0}, {{0, 2e6}, {}, 2e-3, 0}, {{0, 4e6}, {}, 1e-3, 0}}, kGuess, Cache::found)
          .physics();
  for (const double constant : {found.launch_s, found.s_per_flop, found.s_per_byte, found.beyond})
    EXPECT_GT(constant, 0);
  EXPECT_GE(found.seconds({0, 1e7}), found.seconds({0, 1e6}));
}

TEST(ShapeFit, OneSampleIsEnoughForAnAnswer) {
  const ShapeFit fit({{{1e6, 1e4}, {1.0}, 1e-3, 0.01}}, kGuess, Cache::found);
  const Estimate same = fit.at({1e6, 1e4}, std::vector{1.0});
  EXPECT_NEAR(same.seconds, 1e-3, 1e-5);
  EXPECT_LT(same.novelty, 0.6);
  EXPECT_GT(fit.at({1e6, 1e4}, std::vector{9.0}).novelty, 0.99);
}

// A product of a large weight with few samples moves bytes; three samples and nothing else don't show that.
TEST(ShapeFit, TheBroaderClassTellsRateFromBandwidth) {
  const auto product = [](double batch) { return Demand{2 * batch * 4e6, 4 * 4e6}; };
  const ShapeFit all(samples_of_a_machine(), kGuess, Cache::found);
  const ShapeFit fit({{product(3), {std::log(3.0)}, true_seconds(product(3)), 0.01}}, all.physics(), Cache::broader);
  EXPECT_NEAR(fit.at(product(12), std::vector{std::log(12.0)}).seconds / true_seconds(product(12)), 1, 0.05);
}

// One sample of which little is known, for it was interrupted, doesn't make the others' class slow.
TEST(ShapeFit, ANoisySampleSaysLittle) {
  const ShapeFit all(samples_of_a_machine(), kGuess, Cache::found);
  const Demand wrong{1e8, 1e6}, right{1e9, 1e7}, other{4e9, 4e7};
  const auto error_with = [&](double noise) {
    const std::vector<ShapeSample> samples{{wrong, {1.0}, 40 * true_seconds(wrong), noise},
                                           {right, {2.0}, true_seconds(right), 0.01}};
    return ShapeFit(samples, all.physics(), Cache::broader).physics().seconds(other) / true_seconds(other) - 1;
  };
  EXPECT_GT(error_with(0.01), 1);
  EXPECT_LT(error_with(3), 0.2);
}

// One tiny copy, late for a reason of its own, doesn't make large copies slow.
TEST(ShapeFit, ATinySampleSaysLittleOfLargeOnes) {
  const ShapeFit all(samples_of_a_machine(), kGuess, Cache::found);
  const Demand tiny{0, 1e3}, large{0, 1e9};
  const ShapeFit fit({{tiny, {std::log(1e3)}, 8 * true_seconds(tiny), 0.01}}, all.physics(), Cache::broader);
  EXPECT_NEAR(fit.at(large, std::vector{std::log(1e9)}).seconds / true_seconds(large), 1, 0.1);
  EXPECT_GT(fit.at(tiny, std::vector{std::log(1e3)}).seconds / true_seconds(tiny), 6);
}

// A run of 0.3 us found everything in the caches: another one's launch isn't short for that.
TEST(ShapeFit, AShortRunIsNoisierThanItsSamplesSay) {
  const auto launch_from = [&](double seconds, double launch_s) {
    return ShapeFit({{{0, 1e2}, {}, seconds, 0.01}}, Physics{launch_s, 1 / kFlops, 1 / kCached, 4, kCache},
                    Cache::broader)
        .physics()
        .launch_s;
  };
  EXPECT_GT(launch_from(3e-7, 2.5e-6), 2e-6);
  EXPECT_LT(launch_from(3e-4, 2.5e-3), 4e-4);
}

// A launch of 50 us can't be in a kernel that has run in 20.
TEST(ShapeFit, ALaunchIsAtMostTheShortestRun) {
  const Physics slow{5e-5, 1e-12, 1e-12, 4, kCache};
  const std::vector<ShapeSample> samples{{{1e3, 1e3}, {1.0}, 2e-5, 0.01}, {{1e6, 1e6}, {2.0}, 5e-5, 0.01}};
  EXPECT_LE(ShapeFit(samples, slow, Cache::broader).physics().launch_s, 2.0001e-5);
}

// Two neighbours far apart in their values, each said to be known well: beyond them the answer stays between them.
TEST(Kriging, NeverLeavesWhatWasMeasured) {
  const std::vector<std::vector<double>> points{{4.2}, {4.5}, {4.9}, {5.5}};
  const Kriging kriging(points, std::vector{0.6, -0.6, 0.5, 0.4}, std::vector{0.01, 0.01, 0.01, 0.01});
  for (double x = -10; x < 20; x += 0.1) {
    EXPECT_LE(kriging.at(std::vector{x}).value, 0.6) << x;
    EXPECT_GE(kriging.at(std::vector{x}).value, -0.6) << x;
  }
}

TEST(LeaveOut, IsAsFarOffAsTheSamplesDiffer) {
  const ShapeFit all(samples_of_a_machine(), kGuess, Cache::found);
  std::vector<ShapeSample> samples;
  for (const double flops : {1e8, 2e8, 4e8, 8e8})
    samples.push_back({{flops, 1e5}, {std::log(flops)}, true_seconds({flops, 1e5}), 0.001});
  const std::vector<std::string> groups{"a", "b", "c", "d"};
  double of_smooth = 0, of_rough = 0;
  for (const LeftOut& out : leave_out(samples, groups, all.physics(), Cache::broader)) of_smooth += out.error;
  samples[1].seconds *= 5;
  const std::vector<LeftOut> rough = leave_out(samples, groups, all.physics(), Cache::broader);
  for (const LeftOut& out : rough) of_rough += out.error;
  EXPECT_EQ(rough.size(), 8U);  // each in its group, and in a half
  EXPECT_GT(of_rough, 3 * of_smooth);
  EXPECT_TRUE(leave_out({samples[0]}, std::vector<std::string>{"a"}, all.physics(), Cache::broader).empty());
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
  const Program program = lower(model, parse_strategy("single", model));
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
    EXPECT_LT(cost.knowledge.novelty, 1) << key;
  }
  EXPECT_NEAR(std::log(predicted / truth), 0, 0.1);
}

double fitted_seconds(const Profile& profile, const std::string& key) {
  return cost_model_table().at("fitted").make(plain_cluster(1), &profile)->compute(work_from_key(key)).busy_s[0];
}

// LibTorch computes a small convolution of one sample with another kernel. However its time compares, the time of two
// samples isn't changed by it, and neither is it by theirs.
TEST(Fitted, KernelsAreFittedApart) {
  const Cluster cluster = plain_cluster(1);
  const auto with = [&](double slower) {
    Profile profile("core");
    for (const char* batch : {"1", "8"}) {
      const Model model = load_model(fmt::format("resnet18,image=64,global_batch={}", batch));
      const auto analytic = cost_model_table().at("analytic").make(cluster, nullptr);
      for (const Work& work : lower(model, parse_strategy("single", model)).works) {
        const bool other =
            work.op.kind->name == "conv2d" && work.op.kind->cpu_kernel(work.op, work.pass).name != "oneDNN";
        const double seconds = (other ? slower : 1) * (1e-6 + analytic->compute(work).busy_s[0]);
        profile.add_op("local", work_key(work), 1, std::vector{seconds, 1.01 * seconds});
      }
    }
    profile.add_launch(std::vector{1e-6});
    return profile;
  };
  const auto seconds = [&](const Profile& profile, int batch) {
    return fitted_seconds(profile, fmt::format("conv2d.forward f32[{},200,8,8] bias=0 dilation=1 groups=1 "
                                               "kernel_size=3 out_channels=128 padding=1 stride=1",
                                               batch));
  };
  const Profile same = with(1), slow = with(3);
  EXPECT_NEAR(seconds(slow, 2) / seconds(same, 2), 1, 0.1);
  EXPECT_NEAR(seconds(slow, 1) / seconds(same, 1), 3, 0.3);
}

// Copies find their operands in the cache where it holds them; updates never do.
constexpr double kWarm = 8e10, kCold = 2e10;  // bytes per second

void add_stream(Profile& profile, const std::string& key, double bandwidth) {
  const double seconds = 2e-6 + work_from_key(key).demand().bytes / bandwidth;
  profile.add_op("local", key, 1, std::vector{seconds, 1.01 * seconds});
}
Profile streams() {
  Profile profile("core");
  for (const int elements : {1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 21, 1 << 23, 1 << 25}) {
    const double bandwidth = 8.0 * elements > 1.7e7 ? kCold : kWarm;
    add_stream(profile, fmt::format("accumulate.forward f32[{0}] f32[{0}]", elements), bandwidth);
    add_stream(profile, fmt::format("scaled_copy.forward f32[{}]", elements), bandwidth);
  }
  profile.add_launch(std::vector{1e-6});
  return profile;
}

TEST(Fitted, LargeUpdatesComeFromMemoryAsSmallOnes) {
  Profile profile = streams();
  const auto update = [](int elements) {
    return fmt::format("sgd.update f32[{}] lr=0.1 momentum=0 weight_decay=0", elements);
  };
  for (const int elements : {1000, 9000, 36864, 73728, 147456, 589824, 1179648})
    add_stream(profile, update(elements), kCold);
  const std::string large = update(100'000'000);
  EXPECT_NEAR(fitted_seconds(profile, large) * kCold / work_from_key(large).demand().bytes, 1, 0.15);
}

// A linear layer of up to three rows is as many matrix-vector products, each of which streams the weight.
TEST(Fitted, FewRowsAreMatrixVectorProducts) {
  constexpr double kStream = 1.5e10;
  Profile profile = streams();
  const auto key = [](int rows, int features, int out) {
    return fmt::format("linear.forward f32[{},{}] bias=1 out_features={}", rows, features, out);
  };
  const auto add = [&](int rows, int features, int out) {
    const double weights = 4.0 * features * out, passes = rows <= 3 ? rows : 2.5 + rows / 10.0;
    const double seconds = 2e-6 + passes * weights / kStream;
    profile.add_op("local", key(rows, features, out), 1, std::vector{seconds, 1.01 * seconds});
  };
  add(1, 4000, 4000);
  for (const int rows : {3, 12})
    for (const auto& [features, out] : {std::pair{4096, 4096}, {4096, 1000}, {25088, 4096}}) add(rows, features, out);
  for (const int rows : {1, 2})
    EXPECT_NEAR(fitted_seconds(profile, key(rows, 20000, 3000)) * kStream / (rows * 4.0 * 20000 * 3000), 1, 0.08)
        << rows;
}

TEST(Fitted, SaysThatAnOpIsUnlikeAll) {
  const Cluster cluster = plain_cluster(1);
  Profile profile("core");
  add_ops(profile, "toy_mlp", cluster, 0.01);
  const auto fitted = cost_model_table().at("fitted").make(cluster, &profile);
  const Model vgg = load_model("vgg11,image=32,global_batch=2");
  const Program program = lower(vgg, parse_strategy("single", vgg));
  for (const Work& work : program.works)
    if (work.op.kind->name == "conv2d") {
      EXPECT_EQ(fitted->compute(work).knowledge.novelty, 1);
    }
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
  EXPECT_EQ(fitted->transfer(question).source, Source::broader);  // by what the all_reduce shows of the link
}

}  // namespace
}  // namespace sim
