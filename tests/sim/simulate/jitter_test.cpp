#include "sim/simulate/step.hpp"

#include <cmath>

#include "tests/sim/simulate/sketch.hpp"

namespace sim {
namespace {

using namespace testing;

TEST(ExpectedStep, WaitsForTheSlowestRank) {
  // Two exponential times of mean 1: the larger has the mean 1 + 1/2.
  constexpr std::uint32_t kRanks = 2;
  Sketch sketch(kRanks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    sketch.compute(rank, 1.0);
    sketch.wait(rank, sketch.all_reduce(rank, {}));
  }
  const Cluster cluster = plain_cluster(kRanks);
  EXPECT_DOUBLE_EQ(expected_step(sketch.program, sketch.costs, cluster).step_s, 1);  // no jitter
  sketch.costs.jitter = {1, 1};
  EXPECT_NEAR(expected_step(sketch.program, sketch.costs, cluster).step_s, 1.5, 0.1);
  // Of many ops in a row the relative spread is smaller: for normal sums the larger has the mean n + sd √(n/π).
  constexpr int kOps = 64;
  Sketch longer(kRanks);
  for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
    for (int i = 0; i < kOps; ++i) longer.compute(rank, 1.0);
    longer.wait(rank, longer.all_reduce(rank, {}));
  }
  longer.costs.jitter.assign(longer.program.works.size(), 0.5);
  EXPECT_NEAR(expected_step(longer.program, longer.costs, cluster).step_s, kOps + 0.5 * std::sqrt(kOps / M_PI), 0.4);
}

TEST(ExpectedStep, ARankIsSlowForAWholeStep) {
  // Hiccups of single ops average out over many; what slows a rank for the whole step doesn't: the larger of two normal
  // sums of mean n and relative deviation σ has the mean n (1 + σ/√π).
  constexpr int kOps = 64;
  constexpr double kSpread = 0.1;
  Sketch sketch(2);
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    for (int i = 0; i < kOps; ++i) sketch.compute(rank, 1.0);
    sketch.wait(rank, sketch.all_reduce(rank, {}));
  }
  sketch.costs.rank_jitter = kSpread;
  const Cluster cluster = plain_cluster(2);
  EXPECT_NEAR(expected_step(sketch.program, sketch.costs, cluster).step_s, kOps * (1 + kSpread / std::sqrt(M_PI)), 1);
  // Ranks that take turns wait for nobody who is slower than usual: as without.
  Sketch turns(2);
  turns.compute(0, 1.0);
  turns.move(0, 1, {});
  turns.compute(1, 1.0);
  turns.costs.rank_jitter = kSpread;
  EXPECT_NEAR(expected_step(turns.program, turns.costs, cluster).step_s, 2, 1e-5);
}

TEST(ExpectedStep, OfARankThatWaitsForNobodyIsTheStepOfTheMeans) {
  // Nobody to wait for: rank 1 only receives.
  Sketch sketch(2);
  sketch.compute(0, 1.0);
  sketch.move(0, 1, {.latency_s = 0.25, .wire_s = 0.5, .jitter = 0.8});
  sketch.costs.jitter = {0.7};
  EXPECT_NEAR(expected_step(sketch.program, sketch.costs, plain_cluster(2)).step_s, 1.75, 1e-6);
}

/// Factors of one op in 128 steps.
std::vector<double> drawn(double jitter, std::uint32_t ops) {
  Sketch sketch(2);
  for (std::uint32_t k = 0; k < ops; ++k) sketch.compute(0, 1.0);
  sketch.costs.jitter.assign(ops, jitter);
  const Cluster cluster = plain_cluster(2);
  const PlacedProgram placed(sketch.program, cluster);
  std::vector<double> factors;
  DrawnSteps steps(placed, sketch.costs);
  EXPECT_TRUE(steps.vary());
  for (std::size_t batch = 0; batch < 128 / DrawnSteps::kBatch; ++batch)
    for (const Factors& step : steps.next())
      for (const float factor : step.compute[0]) factors.push_back(static_cast<double>(factor));
  return factors;
}

TEST(Jitter, HasTheMeanAndDeviationAskedFor) {
  for (const double jitter : {0.01, 0.3, 1.0, 2.0}) {
    const std::vector<double> factors = drawn(jitter, 1000);
    ASSERT_EQ(factors.size(), 128'000U);
    double sum = 0, squares = 0, least = 1, skew = 0;
    for (const double f : factors)
      sum += f, squares += (f - 1) * (f - 1), least = std::min(least, f), skew += std::pow(f - 1, 3);
    const double n = static_cast<double>(factors.size());
    EXPECT_NEAR(sum / n, 1, 1e-6) << jitter;
    EXPECT_NEAR(std::sqrt(squares / n) / jitter, 1, 0.02) << jitter;
    EXPECT_GE(least, 0) << jitter;
    EXPECT_GT(skew, 0) << jitter << ": gamma distributed times are longer, not shorter, now and then";
  }
}

// From std::mt19937_64, which the standard defines, by our own formulas: std::gamma_distribution differs between
// standard libraries.
TEST(Jitter, IsTheSameEverywhere) {
  const std::vector<double> factors = drawn(0.5, 1);
  const std::vector<double> first(factors.begin(), factors.begin() + 4);
  const std::vector<double> expected{1.744013786, 0.286818117, 1.576155782, 1.369468212};
  for (std::size_t k = 0; k < expected.size(); ++k) EXPECT_NEAR(first[k], expected[k], 1e-6) << k;
}

}  // namespace
}  // namespace sim
