#include "backend/machine/scheduling.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "sim/cluster/allowance.hpp"

namespace backend {
namespace {

/// As gloo's event loop does while another of its threads, on the same core, holds a connection.
TEST(Scheduling, WhoPollsInLimitedTurnsLetsAThreadOfItsPriorityRun) {
  constexpr double kPatience_s = 5;
  std::atomic<bool> polls = false, came = false;
  bool permitted = false, seen = false;
  std::thread poller([&] {
    pin_to_core(core_of_rank(0));
    const RealTime urgent(kCommunicationPriority, /*wanted=*/true, Turn::limited);
    permitted = urgent.permitted();
    std::thread other([&] {  // inherits core and policy
      while (!polls) std::this_thread::yield();
      came = true;
    });
    polls = true;
    for (const double end_s = now_s() + kPatience_s; !seen && now_s() < end_s;) seen = came;
    other.join();
  });
  poller.join();
  if (!permitted) GTEST_SKIP() << "real-time scheduling isn't permitted";
  EXPECT_TRUE(seen) << "it kept the core for itself";
}

TEST(Scheduling, RanksOfACoreBeginInTheOrderOfTheirNumbers) {
  const std::uint32_t cores = sim::usable_cores();
  for (std::uint32_t rank = 0; rank < cores; ++rank) {
    EXPECT_EQ(turn_after_s(rank), 0) << rank;
    EXPECT_EQ(core_of_rank(rank), core_of_rank(rank + cores));
    EXPECT_GT(turn_after_s(rank + cores), 0);
    EXPECT_GT(turn_after_s(rank + 2 * cores), turn_after_s(rank + cores));
  }
}

}  // namespace
}  // namespace backend
