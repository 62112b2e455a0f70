#include "backend/machine/scheduling.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

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

}  // namespace
}  // namespace backend
