#include "backend/machine/threads.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"
#include "tests/backend/machine/threads_here.hpp"

namespace backend {
namespace {

using testing::Cores;
using testing::cores_of;
using testing::threads_here;

Cores set_of(const std::vector<std::uint32_t>& cores) { return {cores.begin(), cores.end()}; }

void compute() { at::ones({1 << 20}).add_(1); }

/// What a rank's thread finds in the scope, and after it.
void expect_threads_of_a_scope(bool has_process) {
  if (sim::usable_cores() < 2) GTEST_SKIP() << "one core";
  at::set_num_threads(1);
  std::atomic<bool> is_pinned = false, done = false;
  std::thread transport([&] {
    pin_to_core(core_of_rank(0));
    is_pinned = true;
    while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  while (!is_pinned) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread rank([&] {
    at::set_num_threads(1);
    for (int again = 0; again < 2; ++again) {
      const auto before = threads_here();
      {
        const RankThreads threads(0, 2, has_process);
        EXPECT_EQ(at::get_num_threads(), 2);
        EXPECT_EQ(cores_of(0), set_of(cores_of_rank(0, 2)));
        compute();
        std::size_t begun = 0;
        for (const auto& [number, cores] : threads_here())
          if (!before.contains(number)) {
            ++begun;
            EXPECT_EQ(cores, set_of(cores_of_rank(0, 2)));
          } else if (has_process) {
            EXPECT_EQ(cores, set_of(cores_of_rank(0, 2)));
          }
        EXPECT_GE(begun, 1U) << "nobody computed beside this thread";
      }
      EXPECT_EQ(at::get_num_threads(), 1);
      EXPECT_EQ(cores_of(0), Cores{core_of_rank(0)});
      compute();
      for (const auto& [number, cores] : threads_here()) {
        EXPECT_TRUE(before.contains(number)) << "a thread has outlived the scope";
        if (has_process) {
          EXPECT_EQ(cores, Cores{core_of_rank(0)});
        }
      }
    }
  });
  rank.join();
  done = true;
  transport.join();
}

TEST(RankThreads, EndWithTheirScope) { expect_threads_of_a_scope(/*has_process=*/false); }

TEST(RankThreads, ShareTheirCoresWithAProcesssOtherThreads) {
  expect_threads_of_a_scope(/*has_process=*/true);
  pin_process(cores_of_rank(0, sim::usable_cores()));  // for the tests that follow
}

TEST(RankThreads, SitSideBySide) {
  const std::uint32_t cores = sim::usable_cores();
  for (std::uint32_t threads = 1; threads <= cores; ++threads) {
    Cores seen;
    for (std::uint32_t rank = 0; rank < cores / threads; ++rank)
      for (const std::uint32_t core : cores_of_rank(rank, threads)) EXPECT_TRUE(seen.insert(core).second) << core;
    EXPECT_EQ(seen.size(), cores / threads * threads);
  }
}

}  // namespace
}  // namespace backend
