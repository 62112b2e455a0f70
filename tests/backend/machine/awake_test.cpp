#include "backend/machine/awake.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <set>

#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"
#include "tests/backend/machine/threads_here.hpp"

namespace backend {
namespace {

/// The cores on which this process has a thread that runs when nobody else does, and nowhere else.
std::multiset<std::uint32_t> cores_awake() {
  std::multiset<std::uint32_t> awake;
  for (const auto& [number, cores] : testing::threads_here()) {
    const bool has_begun = cores.size() == 1;  // not yet pinned when it was looked at
    if (has_begun && sched_getscheduler(number) == SCHED_IDLE) awake.insert(cores.begin(), cores.end());
  }
  return awake;
}

std::multiset<std::uint32_t> all_cores() {
  std::multiset<std::uint32_t> cores;
  for (std::uint32_t rank = 0; rank < sim::usable_cores(); ++rank) cores.insert(core_of_rank(rank));
  return cores;
}

/// When all threads have begun.
void expect_all_cores_awake() {
  for (const double end_s = now_s() + 5; cores_awake() != all_cores() && now_s() < end_s;)
    sleep_until(now_s() + 1e-3, /*precisely=*/false);
  EXPECT_EQ(cores_awake(), all_cores());
}

TEST(AwakeCores, AreAllThatThisProcessMayUseUntilTheEndOfTheScope) {
  {
    const AwakeCores awake(/*spin=*/true);
    EXPECT_EQ(awake.cores(), sim::usable_cores());
    expect_all_cores_awake();
  }
  EXPECT_TRUE(cores_awake().empty());
  const AwakeCores none(/*spin=*/false);
  EXPECT_EQ(none.cores(), 0);
  EXPECT_TRUE(cores_awake().empty());
}

TEST(AwakeCores, StayWhereTheyAreWhenTheProcessIsPinned) {
  const AwakeCores awake(/*spin=*/true);
  expect_all_cores_awake();
  pin_process({core_of_rank(0)});
  EXPECT_EQ(cores_awake(), all_cores());
  pin_process(cores_of_rank(0, sim::usable_cores()));  // for the tests that follow
}

}  // namespace
}  // namespace backend
