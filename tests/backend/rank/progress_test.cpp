#include "backend/rank/progress.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"

namespace backend {
namespace {

TEST(ProgressBoard, WhoSharesTheCoreIsLetEndItsStep) {
  const std::uint32_t other = sim::usable_cores(), ranks = other + 1;  // on rank 0's core
  const ProgressBoard board(ranks);
  const ProgressBoard::Participation first(board.progress(0));
  std::optional<ProgressBoard::Participation> second(board.progress(other));
  std::atomic<bool> has_ended = false;
  std::thread waiting([&] {
    board.let_others_end(0, ranks);
    EXPECT_TRUE(has_ended) << "it went on while the other was in its step";
  });
  sleep_until(now_s() + 0.02, /*precisely=*/false);
  has_ended = true;
  board.let_others_end(other, ranks);  // returns: rank 0 has ended its step
  waiting.join();
  // Not a rank that isn't of the program, nor one that plays it no more, for whatever reason.
  board.let_others_end(0, 1);
  second.reset();
  board.let_others_end(0, ranks);
}

TEST(ProgressBoard, WhoHasItsOwnCoreWaitsForNobody) {
  if (sim::usable_cores() < 2) GTEST_SKIP() << "one core";
  const ProgressBoard board(2);
  const ProgressBoard::Participation first(board.progress(0)), second(board.progress(1));
  board.let_others_end(0, 2);
}

/// Also of ranks that its own world doesn't have: what they say is heard, and their pages stay.
TEST(ProgressBoard, WhoJoinsHasTheSupervisorsBoard) {
  const ProgressBoard board(3);
  setenv(ProgressBoard::kVariable, std::to_string(board.descriptor()).c_str(), 1);
  {
    const ProgressBoard joined = ProgressBoard::join(2);
    EXPECT_EQ(joined.ranks(), 3);
    joined.progress(2).instruction = 7;
  }
  unsetenv(ProgressBoard::kVariable);
  EXPECT_EQ(board.progress(2).instruction, 7);
  EXPECT_EQ(ProgressBoard::join(2).ranks(), 2) << "its own, where nobody watches";
}

}  // namespace
}  // namespace backend
