#include "sim/report/told_apart.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "sim/report/measurement.hpp"

namespace sim {
namespace {

ComparedForecast of(double step_s, std::vector<KindSpread> spreads = {}, std::optional<double> record = 0.1845) {
  return {.step_s = step_s, .spreads = std::move(spreads), .ratio_sd = record};
}

// By data sheet, with the committed record: 1.01 is no order, 2.46 is one.
TEST(ToldApart, ByWhatRatiosHaveBeenOff) {
  EXPECT_FALSE(told_apart(of(4.84), of(4.91)));
  EXPECT_TRUE(told_apart(of(74), of(182)));
  EXPECT_TRUE(told_apart(of(182), of(74)));
  const double limit = std::exp(kNormal95 * 0.1845);
  EXPECT_FALSE(told_apart(of(1), of(0.999 * limit)));
  EXPECT_TRUE(told_apart(of(1), of(1.001 * limit)));
}

TEST(ToldApart, NotWhereNothingIsKnown) {
  EXPECT_EQ(ratio_sd(of(1, {}, {}), of(1, {}, {})), std::nullopt);
  EXPECT_FALSE(told_apart(of(1, {}, {}), of(100, {}, {})));
}

// The same kinds in the same shares: only the record counts, however little is known of the kinds.
TEST(ToldApart, WhatIsWrongAboutBothAlikeCancels) {
  const std::vector<KindSpread> kinds{{"conv", 0.5, false, 1}, {"linear", 0.9, true, 2}};
  EXPECT_DOUBLE_EQ(ratio_sd(of(1, kinds), of(2, kinds)).value(), 0.1845);
  // As stages on two devices, each kind's share of the step is another one.
  std::vector<KindSpread> less = kinds;
  less[0].sd = 0.1;
  EXPECT_DOUBLE_EQ(ratio_sd(of(1, kinds), of(2, less)).value(), std::hypot(0.1845, 0.4));
}

TEST(ToldApart, KindsThatWereMeasuredAreIndependentAndGuessesAreNot) {
  const auto sd = [](bool is_guess) {
    return ratio_sd(of(1, {{"conv", 0.3, is_guess, 1}, {"linear", 0, is_guess, 2}}, {}),
                    of(1, {{"conv", 0, is_guess, 1}, {"linear", 0.3, is_guess, 2}}, {}))
        .value();
  };
  EXPECT_DOUBLE_EQ(sd(false), std::hypot(0.3, 0.3));
  EXPECT_DOUBLE_EQ(sd(true), 0);  // one up and the other down: both are wrong by the same factor
}

// Seven tenths of the compute of kinds that the profile has never seen, off by a factor of 3: 58.3 and 61.2 ms are no order,
// but eight times is one.
TEST(ToldApart, AGuessIsAnotherAtOtherShapes) {
  const double spread = 0.7 * std::log(3);
  const auto guess = [&](double step_s, std::size_t works) {
    return of(step_s, {{"1x1", spread, true, works}}, 0.0567);
  };
  EXPECT_DOUBLE_EQ(ratio_sd(guess(1, 1), guess(1, 2)).value(), std::hypot(0.0567, kGuessAtOtherShapes * spread));
  EXPECT_DOUBLE_EQ(ratio_sd(guess(1, 1), guess(1, 1)).value(), 0.0567);
  EXPECT_FALSE(told_apart(guess(58.3, 1), guess(61.2, 2)));
  EXPECT_TRUE(told_apart(guess(58.3, 1), guess(8 * 58.3, 2)));
}

// Read again from a file, which hasn't the kinds: the whole interval counts, so less is told apart, never more.
TEST(ToldApart, WithoutKindsTheWholeIntervalCounts) {
  ComparedForecast a = of(1, {}, 0.1), b = of(2, {}, 0.1);
  a.stated_sd = 0.3, b.stated_sd = 0.4;
  EXPECT_DOUBLE_EQ(ratio_sd(a, b).value(), std::hypot(0.1, 0.5));
  EXPECT_FALSE(told_apart(a, b));
  a.spreads = b.spreads = {{"conv", 0.3, false, 1}};
  EXPECT_TRUE(told_apart(a, b));
}

}  // namespace
}  // namespace sim
