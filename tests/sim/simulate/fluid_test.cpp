#include "sim/simulate/fluid.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace sim {
namespace {

/// When each of the activities begun by `begin` ends, by name.
struct Recorder {
  Fluid fluid;
  std::map<char, double> end_s;

  Fluid::Activity begin(char name, double seconds, std::vector<Fluid::Demand> demands) {
    return fluid.begin(seconds, std::move(demands), [this, name] { end_s[name] = fluid.now_s(); });
  }
  std::map<char, double> run() {
    while (fluid.advance()) {
    }
    return end_s;
  }
};

TEST(Fluid, AloneEverythingTakesItsTime) {
  Recorder r;
  const Fluid::Resource core = r.fluid.add_resource(), wide = r.fluid.add_resource(4);
  r.begin('a', 2, {{core}});
  r.begin('b', 3, {{wide}});  // no faster for a wide resource
  r.begin('c', 5, {});
  r.begin('d', 0, {});
  EXPECT_EQ(r.run(), (std::map<char, double>{{'a', 2}, {'b', 3}, {'c', 5}, {'d', 0}}));
  EXPECT_FALSE(r.fluid.advance());
  EXPECT_EQ(r.fluid.now_s(), 5);
}

TEST(Fluid, UsersOfAResourceGetEqualParts) {
  Recorder r;
  const Fluid::Resource core = r.fluid.add_resource();
  r.begin('a', 1, {{core}});
  r.begin('b', 3, {{core}});
  EXPECT_EQ(r.run(), (std::map<char, double>{{'a', 2}, {'b', 4}}));
}

// b, c, d and e share the second resource; what b leaves of the first goes to a. An equal split of each resource would
// give a one half.
TEST(Fluid, WhatOneCantUseGoesToTheOthers) {
  Recorder r;
  const Fluid::Resource first = r.fluid.add_resource(), second = r.fluid.add_resource();
  const Fluid::Activity a = r.begin('a', 1, {{first}}), b = r.begin('b', 1, {{first}, {second}});
  for (const char name : {'c', 'd', 'e'}) r.begin(name, 1, {{second}});
  EXPECT_DOUBLE_EQ(r.fluid.rate(a), 0.75);
  EXPECT_DOUBLE_EQ(r.fluid.rate(b), 0.25);
  const std::map<char, double> end_s = r.run();
  EXPECT_DOUBLE_EQ(end_s.at('a'), 1 / 0.75);
  EXPECT_DOUBLE_EQ(end_s.at('b'), 4);
}

TEST(Fluid, WhatIsTakenGoesFirst) {
  Recorder r;
  const Fluid::Resource core = r.fluid.add_resource();
  const Fluid::Activity user = r.begin('u', 3, {{core}}), taker = r.begin('t', 2, {{core, 0.5}});
  EXPECT_DOUBLE_EQ(r.fluid.rate(user), 0.5);
  EXPECT_DOUBLE_EQ(r.fluid.rate(taker), 1);
  EXPECT_EQ(r.run(), (std::map<char, double>{{'t', 2}, {'u', 4}}));
}

// Whoever takes is slowed down by others who take, in all that it does; the resource's users have next to nothing then.
TEST(Fluid, NobodyTakesMoreThanThereIs) {
  Recorder r;
  const Fluid::Resource first = r.fluid.add_resource(), second = r.fluid.add_resource();
  const Fluid::Activity user = r.begin('u', 2, {{first}}), a = r.begin('a', 1, {{first, 0.75}, {second, 0.75}}),
                        b = r.begin('b', 1.25, {{first, 0.75}}), other = r.begin('o', 2, {{second, 0.25}});
  EXPECT_DOUBLE_EQ(r.fluid.rate(a), 1 / 1.5);
  EXPECT_DOUBLE_EQ(r.fluid.rate(b), 1 / 1.5);
  EXPECT_DOUBLE_EQ(r.fluid.rate(user), Fluid::kLeast);
  EXPECT_DOUBLE_EQ(r.fluid.rate(other), 1);
  const std::map<char, double> end_s = r.run();
  EXPECT_DOUBLE_EQ(end_s.at('a'), 1.5);
  EXPECT_DOUBLE_EQ(end_s.at('o'), 2);
  EXPECT_DOUBLE_EQ(end_s.at('b'), 1.5 + 0.25);  // a quarter is left, at full rate
  EXPECT_DOUBLE_EQ(end_s.at('u'), 1.75 + 2 - 1.5 * Fluid::kLeast - 0.25 * 0.25);
}

TEST(Fluid, AResourceIsNeverTakenWhole) {
  Recorder r;
  const Fluid::Resource core = r.fluid.add_resource();
  const Fluid::Activity user = r.begin('u', 1, {{core}});
  r.begin('t', 9, {{core, 1}});
  r.begin('v', 9, {{core, 1}});
  EXPECT_DOUBLE_EQ(r.fluid.rate(user), Fluid::kLeast);
}

TEST(Fluid, DemandsAndSpeedsMayChange) {
  Recorder r;
  const Fluid::Resource core = r.fluid.add_resource();
  const Fluid::Activity user = r.begin('u', 3, {{core}}), taker = r.begin('t', 4, {});
  r.fluid.begin(1, {}, [&] { r.fluid.demand(taker, {core, 0.5}); });
  r.fluid.begin(2, {}, [&] { r.fluid.set_speed(user, 0.5); });
  // 1 s at full rate, 1 s at half, 2 s at a quarter, then at half.
  EXPECT_EQ(r.run(), (std::map<char, double>{{'t', 4}, {'u', 6}}));
}

TEST(Fluid, WhatEndsNowDemandsNothingAnyMore) {
  Recorder r;
  const Fluid::Resource core = r.fluid.add_resource();
  Fluid::Activity mover = 0;
  r.fluid.begin(1, {}, [&] { r.fluid.demand(mover, {core, 1}); });  // at the moment when the mover ends, too
  mover = r.fluid.begin(1, {}, [] {});
  r.fluid.advance();
  const Fluid::Activity user = r.fluid.begin(1, {{core}}, [] {});
  EXPECT_DOUBLE_EQ(r.fluid.rate(user), 1);
}

TEST(Fluid, AnEndMayBeginOthers) {
  Fluid fluid;
  const Fluid::Resource core = fluid.add_resource();
  int left = 1000;
  std::function<void()> next = [&] {
    if (--left > 0) fluid.begin(1, {{core}}, next);
  };
  fluid.begin(1, {{core}}, next);
  while (fluid.advance()) {
  }
  EXPECT_DOUBLE_EQ(fluid.now_s(), 1000);
}

// Max-min fair: no resource is used beyond its capacity, and whoever is slower than alone uses a full one, of whose
// users none is faster.
TEST(Fluid, RatesAreMaxMinFair) {
  std::mt19937_64 random(7);
  for (int trial = 0; trial < 300; ++trial) {
    Recorder r;
    const std::size_t resources = 1 + random() % 6, activities = 1 + random() % 10;
    for (std::size_t k = 0; k < resources; ++k) r.fluid.add_resource();
    std::vector<std::vector<Fluid::Resource>> uses(activities);
    std::vector<double> rate(activities), used(resources, 0);
    for (std::size_t a = 0; a < activities; ++a) {
      std::vector<Fluid::Demand> demands;
      for (Fluid::Resource k = 0; k < resources; ++k)
        if (random() % 3 == 0) uses[a].push_back(k), demands.push_back({k});
      r.begin('a', 1, demands);
    }
    for (std::size_t a = 0; a < activities; ++a) {
      rate[a] = r.fluid.rate(static_cast<Fluid::Activity>(a));
      for (const Fluid::Resource k : uses[a]) used[k] += rate[a];
    }
    for (const double share : used) EXPECT_LE(share, 1 + 1e-9);
    for (std::size_t a = 0; a < activities; ++a) {
      const bool limited = std::ranges::any_of(uses[a], [&](Fluid::Resource k) {
        for (std::size_t b = 0; b < activities; ++b)
          if (std::ranges::count(uses[b], k) > 0 && rate[b] > rate[a] + 1e-9) return false;
        return used[k] > 1 - 1e-9;
      });
      EXPECT_TRUE(limited || rate[a] == 1) << "trial " << trial << ", activity " << a << " at " << rate[a];
    }
  }
}

}  // namespace
}  // namespace sim
