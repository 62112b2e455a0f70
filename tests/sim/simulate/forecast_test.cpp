#include "sim/simulate/forecast.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include "sim/cost/origin.hpp"
#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/report/console.hpp"
#include "sim/report/knowledge.hpp"
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
    profile.environment = {{"device_name", cluster.device.driver_name}};
    const Model model = load_model("toy_mlp");
    program = lower(model, parse_strategy("ddp_blocking,dp=2", model));
    for (const Work& work : program.works) profile.add_op("gloo", work_key(work), 1, std::vector{1e-3, 3e-3});
    for (const char* kind : {"all_reduce", "broadcast"})
      profile.add_link({"gloo", kind, 2}, std::int64_t{1} << 30, std::vector{2e-3});
    profile.add_launch(std::vector{1e-6});
  }
};

// Ranks wait for each other's hiccups: a timeline without any is shorter than the mean of steps that have them.
TEST(Forecast, IsTheMeanOverStepsWithJitter) {
  const Known known;
  const Forecast f =
      forecast(known.program, known.cluster, *make_cost_model("profiled", known.cluster, &known.profile));
  EXPECT_EQ(f.step, expected_step(known.program, f.costs, known.cluster));
  EXPECT_GT(f.step.step_s, 1.02 * simulate(known.program, f.costs, known.cluster).step_s);
}

TEST(Forecast, NoveltyIsOfTheStepByTime) {
  const Known known;
  EXPECT_EQ(forecast(known.program, known.cluster, *make_cost_model("profiled", known.cluster, &known.profile)).novelty,
            0);
  Profile other("cpu");  // a batch four times as large
  const Model model = load_model("toy_mlp,global_batch=64");
  for (const Work& work : lower(model, parse_strategy("ddp_blocking,dp=2", model)).works)
    other.add_op("gloo", work_key(work), 1, std::vector{1e-3, 3e-3});
  for (const std::int64_t bytes : {1 << 10, 1 << 20})
    for (const char* kind : {"all_reduce", "broadcast"}) other.add_link({"gloo", kind, 2}, bytes, std::vector{2e-3});
  other.add_launch(std::vector{1e-6});
  const Forecast f = forecast(known.program, known.cluster, *make_cost_model("fitted", known.cluster, &other));
  double novel_s = 0, all_s = 0;
  for (const Role& role : known.program.roles)
    for (const std::uint32_t work : role.work) {
      if (work == kNone) continue;
      const double seconds = f.costs.work_s[work * f.costs.busy_levels] * static_cast<double>(role.ranks.size());
      novel_s += f.costs.knowledge[work].novelty * seconds;
      all_s += seconds;
    }
  // All transfers are measured.
  EXPECT_GT(f.novelty, 0);
  EXPECT_NEAR(f.novelty, novel_s / all_s * (1 - f.step.exposed_communication_s / f.step.step_s), 1e-12);
}

// The errors of one kind add up and so do those of all that is new; those of several known kinds average out.
TEST(Forecast, IntervalIsOfKinds) {
  const Cluster cluster = plain_cluster(1);
  const Model model = load_model("toy_mlp");
  const Program program = lower(model, parse_strategy("single", model));
  Profile profile("cpu");
  for (const char* key : {"relu.forward f32[21,10] inplace=0", "linear.forward f32[20,11] bias=1 out_features=10"})
    profile.add_op("gloo", key, 1, std::vector{1e-3, 1e-3});
  profile.add_launch(std::vector{1e-6});
  profile.environment = {{"device_name", cluster.device.driver_name}};
  const Forecast f = forecast(program, cluster, *make_cost_model("fitted", cluster, &profile));
  std::map<std::string, std::array<double, 3>> kinds;  // seconds, of them at the ends of the interval
  double all_s = 0, of_new_s = 0;
  for (const std::uint32_t work : program.roles[0].work) {
    if (work == kNone) continue;
    const double seconds = f.costs.work_s[work], sd = f.costs.knowledge[work].sd;
    all_s += seconds;
    const Knowledge& knowledge = f.costs.knowledge[work];
    if (knowledge.kind_is_new) of_new_s += seconds;
    auto& [s, low, high] = kinds[knowledge.novelty < 0.5 ? knowledge.kind : ""];
    s += seconds, low += seconds * std::exp(-kNormal90 * sd), high += seconds * std::exp(kNormal90 * sd);
  }
  double less = 0, more = 0;
  EXPECT_EQ(kinds.size(), 3U);
  for (const auto& [kind, s] : kinds) {
    less += std::pow((s[0] - s[1]) / all_s, 2);
    more += std::pow((s[2] - s[0]) / all_s, 2);
  }
  EXPECT_NEAR(f.low_s / f.step.step_s, 1 - std::sqrt(less), 1e-9);
  EXPECT_NEAR(f.high_s / f.step.step_s, 1 + std::sqrt(more), 1e-9);
  double share = 0;
  for (const NewKind& kind : f.new_kinds) share += kind.share;
  EXPECT_NEAR(share, of_new_s / all_s, 1e-9);
  EXPECT_TRUE(std::ranges::is_sorted(f.new_kinds, std::ranges::greater(), &NewKind::share));
  const std::string text = describe_knowledge(f, cost_model_table().at("fitted"));
  EXPECT_TRUE(text.starts_with(
      fmt::format("by what the profile leaves open from {} to {}; {:.0f} % of its compute is of kinds that the profile "
                  "has never seen: {} (",
                  readable_seconds(f.low_s), readable_seconds(f.high_s), 100 * share, f.new_kinds.at(0).kind)))
      << text;
  const Known known;
  const Forecast profiled =
      forecast(known.program, known.cluster, *make_cost_model("profiled", known.cluster, &known.profile));
  EXPECT_EQ(profiled.low_s, profiled.step.step_s);
  EXPECT_EQ(describe_knowledge(profiled, cost_model_table().at("profiled")), "");
}

// Only the broadcast wasn't measured: the step is longer and shorter by what that is at the ends of its interval.
TEST(Forecast, TransfersThatWerentMeasuredAreInTheInterval) {
  Known known;
  Profile lacking("cpu");
  lacking.environment = known.profile.environment;
  for (const Work& work : known.program.works) lacking.add_op("gloo", work_key(work), 1, std::vector{2e-3, 2e-3});
  lacking.add_launch(std::vector{1e-6});
  const Forecast f = forecast(known.program, known.cluster, *make_cost_model("profiled", known.cluster, &lacking));
  EXPECT_EQ(f.guesses, (std::vector<std::string>{"all_reduce among 2 (data sheet)"}));
  double transfers_s = 0;  // one after the other, with nothing beside them
  const TransferCost& cost = f.costs.transfers.at(0);
  for (const std::uint32_t transfer : f.costs.transfer_of)
    if (transfer != kNone) transfers_s += f.costs.transfers[transfer].latency_s + f.costs.transfers[transfer].wire_s;
  constexpr double kLaunch_s = 1e-6;  // of a wait, beside the transfer
  EXPECT_NEAR(f.step.exposed_communication_s, transfers_s, 1.001 * kLaunch_s);
  EXPECT_NEAR(f.high_s, f.step.step_s + transfers_s * (std::exp(kNormal90 * cost.sd) - 1), 1e-9);
  EXPECT_NEAR(f.low_s, f.step.step_s - transfers_s * (1 - std::exp(-kNormal90 * cost.sd)), 1e-9);
  EXPECT_NEAR(f.novelty, transfers_s / f.step.step_s, 1.001 * kLaunch_s / f.step.step_s);
  const std::string text = describe_knowledge(f, cost_model_table().at("profiled"));
  EXPECT_TRUE(text.ends_with("; not in the profile: all_reduce among 2 (data sheet)")) << text;
}

// A data sheet's links, too, may be off; whoever looks for the fastest of many needn't know by how much.
TEST(Forecast, ADataSheetsTransfersAreInTheInterval) {
  const Known known;
  const auto sheet = make_cost_model("analytic", known.cluster);
  const Forecast with = forecast(known.program, known.cluster, *sheet),
                 without = forecast(known.program, known.cluster, *sheet, {}, /*of_transfers=*/false);
  EXPECT_EQ(with.step, without.step);
  EXPECT_LT(with.low_s, without.low_s);
  EXPECT_GT(with.high_s, without.high_s);
  const auto of_transfers = [](const Forecast& f) {
    return std::ranges::count(f.spreads, "transfers", &KindSpread::kind);
  };
  EXPECT_EQ(of_transfers(with), 1);
  EXPECT_EQ(of_transfers(without), 0);
  TransferQuestion question{.kind = InstructionKind::collective, .bytes = 1 << 20, .members = 8};
  const auto sd_on = [&](const char* name) {
    const Cluster cluster = load_cluster(name, 8);
    return make_cost_model("analytic", cluster)->transfer(question).sd;
  };
  EXPECT_EQ(sd_on("dgx_a100"), 0.29);
  EXPECT_EQ(sd_on("dgx_a100_nccl"), 0.1) << "fitted to NCCL's own times";
}

// What was measured of other numbers of ranks, or of ranks with devices of their own, is a guess of these, and said to be.
TEST(Forecast, TransfersOfOtherRanksAreGuesses) {
  Known known;
  const Model model = load_model("toy_mlp");
  const Program program = lower(model, parse_strategy("ddp_blocking,dp=4", model));
  for (const Work& work : program.works) known.profile.add_op("gloo", work_key(work), 1, std::vector{1e-3, 3e-3});
  const Cluster four = plain_cluster(4);
  const Forecast f = forecast(program, four, *make_cost_model("profiled", four, &known.profile));
  EXPECT_EQ(f.guesses, (std::vector<std::string>{"all_reduce among 4 (other transfers)"}));
  EXPECT_GT(f.novelty, 0);
  const auto fitted = make_cost_model("fitted", known.cluster, &known.profile);
  TransferQuestion question{
      .kind = InstructionKind::collective, .collective = CollectiveKind::all_reduce, .bytes = 1 << 30, .members = 2};
  EXPECT_EQ(fitted->transfer(question).novelty, 0);
  question.devices = "0 0";  // both on one
  EXPECT_EQ(fitted->transfer(question).novelty, 1);
  EXPECT_GT(fitted->transfer(question).sd, 0);
}

// What all costs are wrong by together, the step is: by a machine that may be another one, or that drifts between rounds.
TEST(Forecast, CommonErrorsAreInTheInterval) {
  Known known;
  const auto interval = [&] {
    const Forecast f =
        forecast(known.program, known.cluster, *make_cost_model("profiled", known.cluster, &known.profile));
    return std::pair(std::log(f.step.step_s / f.low_s), std::log(f.high_s / f.step.step_s));
  };
  EXPECT_EQ(interval(), std::pair(0.0, 0.0));
  for (const double seconds : {1.0, 1.1, 1.3}) known.profile.add_round("ops", seconds);
  const double of_rounds = kNormal90 * known.profile.drift_sd();
  EXPECT_GT(of_rounds, 0.1);
  EXPECT_NEAR(interval().first, of_rounds, 1e-12);
  EXPECT_NEAR(interval().second, of_rounds, 1e-12);
  known.profile.environment = nlohmann::json::object();
  EXPECT_NEAR(interval().second, std::hypot(of_rounds, kNormal90 * kOtherDeviceSd), 1e-12);
}

TEST(Forecast, OfAnotherMachine) {
  const Known known;
  const double step_s = forecast(known.program, known.cluster, *make_cost_model("analytic", known.cluster)).step.step_s;
  const Scale faster = parse_scale("flops=2,memory_bandwidth=2,bandwidth=2,latency=0.5,launch=0.5");
  EXPECT_NEAR(forecast(known.program, known.cluster, *make_cost_model("analytic", known.cluster), faster).step.step_s,
              step_s / 2, 1e-12);
}

TEST(Forecast, SaysWhatIsMissing) {
  const Known known;
  EXPECT_EQ(message_of([&] { forecast(known.program, known.cluster, *make_cost_model("profiled", known.cluster)); }),
            "cost model 'profiled' needs a profile; 'paragauge calibrate' writes one");
  EXPECT_EQ(message_of([&] { forecast(known.program, known.cluster, *make_cost_model("guessed", known.cluster)); }),
            "unknown cost model 'guessed'; known: analytic, fitted, profiled");
}

}  // namespace
}  // namespace sim
