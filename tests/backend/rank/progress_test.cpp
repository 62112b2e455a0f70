#include "backend/rank/progress.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"
#include "tests/backend/chain.hpp"

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

/// A board on which rank 1's labels are those of chain(8, 2): a receive, then its wait; and rank 0 computes.
class HangWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      board_.set_labels(rank, program_, program_.roles[rank]);
      board_.progress(rank).stage = Stage::serving;
    }
  }
  void pass_s(double seconds) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    watch_.look();
  }

  const ProgressBoard board_{2};
  const sim::Program program_ = chain(8, 2);
  HangWatch watch_{board_, 0.01};
};

TEST_F(HangWatchTest, NamesTheRankThatGetsOnNoLonger) {
  EXPECT_EQ(board_.where(1), "outside a step");
  pass_s(2.1);
  EXPECT_EQ(watch_.overdue(), std::nullopt) << "between steps a rank may take its time";
  board_.progress(1).instruction = 1;
  pass_s(0);
  EXPECT_EQ(watch_.overdue(), std::nullopt);
  board_.progress(1).step = 5;  // the next step's same instruction
  pass_s(2.1);
  EXPECT_EQ(watch_.overdue(), std::nullopt);
  pass_s(2.1);
  EXPECT_EQ(watch_.overdue(), "rank 1 hangs (no progress for 2.0 s) in instruction 1: wait for recv from sender");
  board_.progress(1).instruction = 2;
  EXPECT_EQ(board_.where(1), "at the end of a step");
}

TEST_F(HangWatchTest, NotTheRankThatWaitsIsNamed) {
  board_.progress(1).instruction = 1;  // waits, and has done so for longer
  pass_s(0);
  board_.progress(0).instruction = 0;
  pass_s(2.1);
  pass_s(2.1);
  EXPECT_EQ(watch_.overdue(), "rank 0 hangs (no progress for 2.0 s) in instruction 0: compute forward");
  EXPECT_EQ(watch_.behind(1).value_or("nobody").substr(0, 12), "rank 0 hangs");
  EXPECT_EQ(watch_.behind(0), std::nullopt) << "a rank that waits holds up nobody";
  board_.progress(0).instruction = 1;
  pass_s(0);
  EXPECT_EQ(watch_.behind(1), std::nullopt) << "it gets on";
}

TEST_F(HangWatchTest, AStoppedRankIsNamedAtAnyStage) {
  for (const auto& [stage, where] : {std::pair{Stage::starting, "while starting"},
                                     {Stage::meeting, "while looking for the other ranks"},
                                     {Stage::serving, "outside a step"},
                                     {Stage::ending, "while ending"}}) {
    board_.progress(0).stage = stage;
    watch_.look({true, false});
    EXPECT_EQ(watch_.overdue(), std::nullopt);
    EXPECT_EQ(watch_.behind(1), fmt::format("rank 0 is stopped (by SIGSTOP or the like) {}", where));
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    watch_.look({true, false});
    EXPECT_EQ(watch_.overdue(), fmt::format("rank 0 is stopped (by SIGSTOP or the like) {}", where));
    watch_.look({false, false});
    EXPECT_EQ(watch_.overdue(), std::nullopt) << "it goes on";
  }
}

TEST_F(HangWatchTest, WhoHasNotComeIsNamedByWhoLooksForIt) {
  board_.progress(0).stage = Stage::starting;
  board_.progress(1).stage = Stage::meeting;
  pass_s(0);
  pass_s(2.1);
  EXPECT_EQ(watch_.overdue().value_or("nobody").substr(0, 12), "rank 0 hangs");
  board_.progress(0).stage = Stage::meeting;
  pass_s(0);
  EXPECT_EQ(watch_.overdue(), "rank 1 hangs (no progress for 2.0 s) while looking for the other ranks");
}

}  // namespace
}  // namespace backend
