#include "sim/cost/statistic.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace sim {
namespace {

TEST(Statistic, BatchesMergeToTheWhole) {
  const std::vector<double> a{1, 2, 4}, b{10, 20}, c{7};
  std::vector<double> all = a;
  all.insert(all.end(), b.begin(), b.end());
  all.insert(all.end(), c.begin(), c.end());
  Statistic whole, parts;
  whole.add(all);
  parts.add(a);
  parts.add(b);
  parts.add({});
  parts.add(c);
  const double mean = 44.0 / 6;
  double squares = 0;
  for (double x : all) squares += (x - mean) * (x - mean);
  EXPECT_EQ(parts.count, 6);
  EXPECT_DOUBLE_EQ(parts.mean_s, mean);
  EXPECT_DOUBLE_EQ(whole.mean_s, mean);
  EXPECT_DOUBLE_EQ(*parts.sd_s, std::sqrt(squares / 5));
  EXPECT_DOUBLE_EQ(*whole.sd_s, std::sqrt(squares / 5));
  EXPECT_DOUBLE_EQ(whole.median_s, 5.5);
  EXPECT_DOUBLE_EQ(parts.median_s, (3 * 2 + 2 * 15 + 7) / 6.0);
}

TEST(Statistic, OneSampleHasNoDeviation) {
  Statistic statistic;
  statistic.add(std::vector{0.5});
  EXPECT_FALSE(statistic.sd_s);
  statistic.add(std::vector{0.5});
  EXPECT_EQ(statistic.sd_s, 0.0);
}

TEST(Interruptions, AreTakenOutOfABatch) {
  std::vector<double> samples{1e-5, 1.1e-5, 6e-3, 0.9e-5, 1e-5, 1e-5, 4.9e-5};  // the last one is in keeping
  const Interruptions found = without_interruptions(samples);
  EXPECT_EQ(samples, (std::vector{1e-5, 1.1e-5, 1e-5, 0.9e-5, 1e-5, 1e-5, 4.9e-5}));
  EXPECT_DOUBLE_EQ(found.lost_s, 6e-3 - 1e-5);
  EXPECT_DOUBLE_EQ(found.played_s, 6e-3 + 9.9e-5);
  EXPECT_NEAR(found.share(), (6e-3 - 1e-5) / 10.9e-5, 1e-9);
}

TEST(Interruptions, ColdWorksAndFewSamplesAreNoInterruptions) {
  std::vector<double> cold{1e-6, 1e-6, 1e-6, 1e-6, 2e-5};  // 20 times, but 19 us
  const std::vector<double> cold_before = cold;
  EXPECT_EQ(without_interruptions(cold).lost_s, 0);
  EXPECT_EQ(cold, cold_before);
  std::vector<double> few{1e-3, 1e-3, 1e-3, 1};
  EXPECT_EQ(without_interruptions(few).lost_s, 0);
  EXPECT_EQ(few.back(), 1);
  EXPECT_EQ(without_interruptions({}).share(), 0);
}

}  // namespace
}  // namespace sim
