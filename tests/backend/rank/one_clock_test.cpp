#include "backend/rank/one_clock.hpp"

#include <gtest/gtest.h>

#include "sim/error.hpp"
#include "sim/lower/lower.hpp"

namespace backend {
namespace {

sim::Program program_of(const char* strategy) {
  const sim::Model model = sim::load_model("toy_mlp,global_batch=16");
  return sim::lower(model, sim::parse_strategy(strategy, model));
}

/// Everything is posted at 1 ms and done at 2 ms.
std::vector<sim::RankTimeline> timelines_of(const sim::Program& program) {
  std::vector<sim::RankTimeline> timelines;
  for (const sim::Program::Place& place : program.places()) {
    const std::size_t size = program.roles[place.role].size();
    timelines.push_back({.posted_s = std::vector<double>(size, 1e-3),
                         .start_s = std::vector<double>(size, 1e-3),
                         .end_s = std::vector<double>(size, 2e-3),
                         .issued_s = {},
                         .end_of_step_s = 3e-3});
  }
  return timelines;
}

/// Two hosts, a and b, of two ranks; b's clock is known to within 20 us.
std::vector<ClockReading> readings() {
  return {{.host = 0, .rank = "rank 0 on a"},
          {.host = 0, .rank = "rank 1 on a"},
          {.error_s = 20e-6, .host = 1, .rank = "rank 2 on b"},
          {.error_s = 20e-6, .host = 1, .rank = "rank 3 on b"}};
}

/// The first of a rank's instructions of a kind.
std::uint32_t first_of(const sim::Program& program, std::uint32_t rank, sim::InstructionKind kind) {
  const sim::Role& role = program.roles[program.places()[rank].role];
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (role.kind[i] == kind) return i;
  ADD_FAILURE() << "no " << to_string(kind);
  return 0;
}

std::string refusal(const sim::Program& program, const std::vector<sim::RankTimeline>& timelines) {
  try {
    check_order(program, timelines, readings());
    return "none";
  } catch (const sim::RunError& error) {
    return error.what();
  }
}

TEST(OneClock, TheEarliestRankIsAtZero) {
  const sim::Program program = program_of("ddp,dp=4");
  std::vector<sim::RankTimeline> timelines = timelines_of(program);
  put_on_one_clock(timelines, {0, 0, -30e-6, 10e-6});
  for (const auto& [rank, shift_s] : {std::pair{0, 30e-6}, {2, 0.0}, {3, 40e-6}}) {
    EXPECT_NEAR(timelines[rank].posted_s[0], 1e-3 + shift_s, 1e-15) << rank;
    EXPECT_NEAR(timelines[rank].end_s[0], 2e-3 + shift_s, 1e-15) << rank;
    EXPECT_NEAR(timelines[rank].end_of_step_s, 3e-3 + shift_s, 1e-15) << rank;
  }
}

TEST(OneClock, NothingComesFromAnotherHostBeforeItIsSentThere) {
  const sim::Program program = program_of("pipeline,pp=4,microbatches=2");
  std::vector<sim::RankTimeline> timelines = timelines_of(program);
  EXPECT_EQ(refusal(program, timelines), "none");
  const std::uint32_t recv = first_of(program, 2, sim::InstructionKind::recv);
  timelines[2].end_s[recv] = 1e-3 - 19e-6;
  EXPECT_EQ(refusal(program, timelines), "none") << "within the error";
  timelines[2].end_s[recv] = 1e-3 - 50e-6;
  EXPECT_EQ(refusal(program, timelines),
            fmt::format("rank 2 on b, instruction {} ({}): done 50 us before rank 1 on a had posted it, by clocks that "
                        "are known to within 20 us; a host's clock is wrong",
                        recv, program.label(program.roles[program.places()[2].role], recv)));
  // On one host there is one clock, and what seems so is the executor's own order of reading it.
  timelines = timelines_of(program);
  timelines[3].end_s[first_of(program, 3, sim::InstructionKind::recv)] = 0;
  EXPECT_EQ(refusal(program, timelines), "none");
  // A send is done when its bytes are on their way, whether or not somebody waits for them.
  timelines[1].end_s[first_of(program, 1, sim::InstructionKind::send)] = 0;
  EXPECT_EQ(refusal(program, timelines), "none");
}

TEST(OneClock, ASumNeedsEveryMember) {
  const sim::Program program = program_of("ddp,dp=4");
  const std::uint32_t sum = first_of(program, 0, sim::InstructionKind::collective);
  for (const std::uint32_t early : {0U, 3U}) {
    std::vector<sim::RankTimeline> timelines = timelines_of(program);
    timelines[early].end_s[sum] = 0.9e-3;
    EXPECT_NE(refusal(program, timelines).find("before"), std::string::npos) << early;
  }
}

/// Only the root's array moves: a member may have it before others have come.
TEST(OneClock, ABroadcastNeedsItsRoot) {
  const sim::Program program = program_of("data_parallel,dp=4");
  bool seen = false;
  for (std::uint32_t i = 0; i < program.roles[program.places()[3].role].size(); ++i) {
    const sim::Role& role = program.roles[program.places()[3].role];
    if (role.kind[i] != sim::InstructionKind::collective || role.collective[i] != sim::CollectiveKind::broadcast)
      continue;
    seen = true;
    std::vector<sim::RankTimeline> timelines = timelines_of(program);
    for (std::uint32_t rank : {1U, 2U}) timelines[rank].posted_s.assign(timelines[rank].posted_s.size(), 10e-3);
    timelines[3].end_s[i] = 1.5e-3;
    timelines[1].end_s.assign(timelines[1].end_s.size(), 20e-3);
    timelines[2].end_s.assign(timelines[2].end_s.size(), 20e-3);
    timelines[0].end_s.assign(timelines[0].end_s.size(), 20e-3);
    EXPECT_EQ(refusal(program, timelines), "none") << i;
    timelines[3].end_s[i] = 0.5e-3;  // before rank 0 had posted it
    EXPECT_NE(refusal(program, timelines).find("before rank 0 on a"), std::string::npos) << i;
    break;
  }
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace backend
