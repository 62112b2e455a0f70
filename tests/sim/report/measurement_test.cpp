#include "sim/report/measurement.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

#include "sim/error.hpp"

namespace sim {
namespace {

Measurement one_per_round(const std::vector<double>& values) {
  Measurement measurement;
  for (std::size_t i = 0; i < values.size(); ++i) measurement.add(static_cast<int>(i), values[i]);
  return measurement;
}

/// Standard normal numbers, the same on every standard library (Box and Muller).
std::vector<double> normal_numbers(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) / 9007199254740992.0; };
  std::vector<double> numbers;
  for (std::size_t i = 0; i < count; ++i)
    numbers.push_back(std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform()));
  return numbers;
}

TEST(Measurement, IsUnavailableWithoutEnoughSamples) {
  Measurement none;
  EXPECT_EQ(none.count(), 0U);
  EXPECT_FALSE(none.sample_deviation() || none.population_deviation());
  EXPECT_FALSE(none.interval_95() || none.noise_floor());

  Measurement one = one_per_round({0.5});
  EXPECT_FALSE(one.sample_deviation() || one.population_deviation() || one.interval_95() || one.noise_floor());

  Measurement one_round;  // many samples of one round say nothing about drift between rounds
  for (double s : {1.0, 1.1, 1.2, 1.3, 1.4, 1.5}) one_round.add(0, s);
  EXPECT_TRUE(one_round.sample_deviation());
  EXPECT_FALSE(one_round.interval_95() || one_round.noise_floor());
  EXPECT_FALSE(one_per_round({1, 2, 3}).interval_95());
  EXPECT_TRUE(one_per_round({1, 2, 3, 4}).interval_95());
}

TEST(Measurement, StatisticsFollowTheirFormulas) {
  Measurement measurement;
  measurement.add(3, 4.0);
  measurement.add(0, 1.0);
  measurement.add(0, 2.0);
  // Rounds weigh the same: (1 + 2)/2 and 4, while the deviation is that of the samples 1, 2, 4 around 7/3.
  EXPECT_EQ(measurement.round_means(), (std::vector<double>{1.5, 4.0}));
  const double squares = 16.0 / 9 + 1.0 / 9 + 25.0 / 9;
  EXPECT_DOUBLE_EQ(*measurement.sample_deviation(), std::sqrt(squares / 2));
  EXPECT_DOUBLE_EQ(*measurement.population_deviation(), std::sqrt(squares / 3));
  EXPECT_EQ(measurement.count(), 3U);
  EXPECT_EQ(measurement.rounds(), 2U);
}

TEST(Measurement, SamplesMayComeAsTheirNumbers) {
  Measurement one_by_one, at_once;
  for (double s : {1.0, 2.0, 4.0}) one_by_one.add(0, s);
  for (double s : {3.0, 5.0}) one_by_one.add(1, s);
  at_once.add(0, 3, 7.0 / 3, std::sqrt((16.0 / 9 + 1.0 / 9 + 25.0 / 9) / 2));
  at_once.add(1, 2, 4, std::sqrt(2.0));
  EXPECT_EQ(at_once.count(), 5U);
  EXPECT_EQ(at_once.rounds(), 2U);
  EXPECT_NEAR(at_once.round_means()[0], one_by_one.round_means()[0], 1e-15);
  EXPECT_NEAR(*at_once.sample_deviation(), *one_by_one.sample_deviation(), 1e-15);
  EXPECT_NEAR(*one_by_one.sample_deviation(), std::sqrt(10.0 / 4), 1e-15);  // 1 2 4 3 5 around 3
}

// Rounds 1, 1, 1, 2. A mean of four drawn ones is 1 + k/4, k of binomial(4, 1/4): at most 0 with 31.6 %, at most 2 with
// 94.9 %, at most 3 with 99.6 %. So the percentiles are 1 and 1.75, whatever the random numbers, and the distances of the
// mean to them are stretched by √(4/3) · t₀.₉₇₅,₃ / z₀.₉₇₅ = √(4/3) · 3.182 / 1.960.
TEST(Measurement, IntervalByHand) {
  const Interval interval = *one_per_round({1, 1, 1, 2}).interval_95();
  const double stretch = std::sqrt(4.0 / 3) * 3.182 / 1.960;
  EXPECT_NEAR(interval.low, 1.25 - stretch * 0.25, 0.01);  // student_t is 0.3 % off with 3 degrees of freedom
  EXPECT_NEAR(interval.high, 1.25 + stretch * 0.5, 0.01);
}

TEST(Measurement, RefusesWhatIsNoTime) {
  Measurement measurement;
  EXPECT_THROW(measurement.add(0, -1e-9), InternalError);
  EXPECT_THROW(measurement.add(0, std::nan("")), InternalError);
  EXPECT_THROW(measurement.add(0, INFINITY), InternalError);
}

TEST(Measurement, SameSamplesGiveTheSameInterval) {
  const std::vector<double> values{1.00, 1.02, 0.99, 1.05, 1.01, 0.97, 1.03, 1.00};
  EXPECT_EQ(one_per_round(values).interval_95(), one_per_round(values).interval_95());
  EXPECT_EQ(one_per_round(values).noise_floor(), one_per_round(values).noise_floor());
}

TEST(Measurement, IntervalScalesWithTheData) {
  const std::vector<double> values{1.00, 1.02, 0.99, 1.05, 1.01, 0.97, 1.03, 1.00};
  std::vector<double> tripled;
  for (double value : values) tripled.push_back(3 * value);
  const Interval interval = *one_per_round(values).interval_95(), wide = *one_per_round(tripled).interval_95();
  EXPECT_NEAR(wide.low, 3 * interval.low, 1e-12);
  EXPECT_NEAR(wide.high, 3 * interval.high, 1e-12);
  EXPECT_NEAR(*one_per_round(tripled).noise_floor(), *one_per_round(values).noise_floor(), 1e-12);
}

// The interval is worth its name: over 400 measurements of 8 rounds it holds the true mean 95 times of 100 (the plain
// percentile interval: 89).
TEST(Measurement, IntervalHoldsTheTrueMean) {
  for (std::size_t rounds : {4U, 8U, 16U}) {
    int held = 0;
    const int trials = 400;
    const std::vector<double> noise = normal_numbers(rounds * trials, rounds);
    for (int trial = 0; trial < trials; ++trial) {
      std::vector<double> values;
      for (std::size_t i = 0; i < rounds; ++i)
        values.push_back(1 + 0.05 * noise[static_cast<std::size_t>(trial) * rounds + i]);
      const Interval interval = *one_per_round(values).interval_95();
      held += interval.low <= 1 && 1 <= interval.high;
    }
    EXPECT_GT(held, 0.91 * trials) << rounds;
    EXPECT_LT(held, 0.985 * trials) << rounds;
  }
}

TEST(Measurement, NoiseFloorIsZeroForEqualRoundsAndExactForTwoValues) {
  EXPECT_DOUBLE_EQ(*one_per_round({2, 2, 2, 2, 2}).noise_floor(), 0);
  // Rounds 1, 1, 3, 3: of the 6 halvings 2 give |1 − 3| = 2 and 4 give 0, relative to the mean 2: expected 1/3.
  EXPECT_NEAR(*one_per_round({1, 1, 3, 3}).noise_floor(), 1.0 / 3, 0.05);
}

TEST(Measurement, NoiseFloorIsTheExpectedDifferenceOfHalves) {
  double sum = 0;
  const int trials = 200;
  const std::size_t rounds = 8;
  const std::vector<double> noise = normal_numbers(rounds * trials, 5);
  for (int trial = 0; trial < trials; ++trial) {
    std::vector<double> values;
    for (std::size_t i = 0; i < rounds; ++i)
      values.push_back(1 + 0.05 * noise[static_cast<std::size_t>(trial) * rounds + i]);
    sum += *one_per_round(values).noise_floor();
  }
  // E|a − b| for independent normal rounds: √(2/π) · 2σ/√n.
  const double expected = std::sqrt(2 / std::numbers::pi) * 2 * 0.05 / std::sqrt(8.0);
  EXPECT_NEAR(sum / trials, expected, 0.06 * expected);
}

}  // namespace
}  // namespace sim
