#include "backend/machine/clock.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "sim/error.hpp"

namespace backend {
namespace {

/// Another host's clock: `offset_s` ahead of this one's at 0, and gains `drift` seconds in each.
struct Other {
  double offset_s = 0, drift = 0;
  [[nodiscard]] double at(double here_s) const { return here_s + offset_s + drift * here_s; }
};

/// Round trips from `begin_s` on, of ways that take between `least_s` and ten times as long: the way back as long as it
/// likes, whatever the way there took.
std::vector<RoundTrip> round_trips(const Other& other, double begin_s, double least_s, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::exponential_distribution<double> more(1 / (3 * least_s));
  std::vector<RoundTrip> trips;
  for (double now_s = begin_s; trips.size() < 32;) {
    const double there_s = now_s + least_s + more(random), back_s = there_s + least_s + more(random);
    trips.push_back({now_s, other.at(there_s), back_s});
    now_s = back_s;
  }
  return trips;
}

TEST(ClockOffset, IsWithinItsErrorWhateverWayTookLonger) {
  for (const double offset_s : {0.0, 1e-3, -1e-3, 12345.678, -86400.0})
    for (std::uint32_t seed = 0; seed < 100; ++seed) {
      const Other other{offset_s, 0};
      const ClockOffset found = offset_of(round_trips(other, 100, 20e-6, seed));
      EXPECT_LE(std::abs(found.offset_s - offset_s), found.error_s + 1e-10) << seed;
      EXPECT_LT(found.error_s, 100e-6) << "the shortest of 32";
      EXPECT_GE(found.error_s, 20e-6 - 1e-10) << "no better than the ways allow";
    }
}

/// All the delay on one way: the middle is off by as much as is said.
TEST(ClockOffset, ErrorIsReachedByAOneSidedDelay) {
  const RoundTrip late{.sent_s = 10, .there_s = 10 + 5 + 1e-3, .back_s = 10 + 1e-3};  // there after 1 ms, back at once
  const ClockOffset found = offset_of(std::vector{late});
  EXPECT_NEAR(found.offset_s, 5 + 0.5e-3, 1e-12);
  EXPECT_NEAR(found.error_s, 0.5e-3, 1e-12);
}

TEST(HostClock, IsTheReferenceWithoutOffsets) {
  const HostClock clock;
  EXPECT_EQ(clock.on_reference(7), 7);
  EXPECT_EQ(clock.here(7), 7);
  EXPECT_EQ(clock.error_s(), 0);
}

TEST(HostClock, FollowsADriftingClockWithinItsError) {
  for (const double drift : {0.0, 50e-6, -50e-6, 400e-6, -400e-6}) {
    const Other other{-98765.4321, drift};
    HostClock clock;
    for (std::uint32_t minute = 0; minute <= 10; ++minute)
      clock.add(offset_of(round_trips(other, 60.0 * minute, 20e-6, minute)));
    const double first_s = clock.offsets().front().at_s, last_s = clock.offsets().back().at_s;
    for (double here_s = first_s; here_s <= last_s; here_s += 7.77)
      EXPECT_LE(std::abs(clock.on_reference(here_s) - other.at(here_s)), clock.error_s() + 1e-9) << drift;
    // The rate is known as well as the ends are.
    EXPECT_NEAR(clock.drift(), drift, 2 * clock.error_s() / (last_s - first_s));
    // What one offset alone would have made of the end.
    if (drift != 0) {
      HostClock still;
      still.add(clock.offsets().front());
      EXPECT_GT(std::abs(still.on_reference(last_s) - other.at(last_s)), 10 * clock.error_s());
    }
    EXPECT_NEAR(clock.here(other.at(last_s)), last_s, clock.error_s() + 1e-9);
  }
}

TEST(HostClock, ErrorIsTheWorstOfItsOffsets) {
  HostClock clock;
  clock.add({.at_s = 0, .offset_s = 1, .error_s = 3e-5});
  clock.add({.at_s = 1, .offset_s = 1, .error_s = 1e-5});
  EXPECT_EQ(clock.error_s(), 3e-5);
}

/// A suspended host, or a clock that was set: 1 ms within a second is twice what two clocks can differ by.
TEST(HostClock, RefusesAJump) {
  HostClock clock;
  clock.add({.at_s = 10, .offset_s = 1, .error_s = 20e-6});
  clock.add({.at_s = 11, .offset_s = 1 + 1e-3, .error_s = 20e-6});
  try {
    clock.add({.at_s = 12, .offset_s = 1 + 3.1e-3, .error_s = 20e-6});
    FAIL() << "2.1 ms in a second";
  } catch (const sim::RunError& error) {
    EXPECT_STREQ(error.what(),
                 "this host's clock and rank 0's host's have moved apart by 2.1 ms within 1 s; clocks that nobody sets "
                 "do so by 1.04 ms at most");
  }
}

TEST(ClockOffset, RefusesAnAnswerFromBefore) {
  EXPECT_THROW(offset_of(std::vector{RoundTrip{.sent_s = 2, .there_s = 0, .back_s = 1}}), sim::RunError);
}

}  // namespace
}  // namespace backend
