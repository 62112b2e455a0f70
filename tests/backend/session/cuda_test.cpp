#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "sim/error.hpp"
#include "sim/model/model.hpp"
#include "tests/backend/session/cases.hpp"

namespace backend {
namespace {

TEST(CudaSession, EveryStrategyAndReplayIsRight) {
  std::unique_ptr<Session> session;
  try {
    session = open_session({.ranks = 2, .device = "cuda"});
  } catch (const sim::ConfigError& error) {
    GTEST_SKIP() << error.what();
  }
  for (const auto& [model, strategy] : kCases) {
    const sim::Program program = lowered(model, strategy);
    const bool is_captured = program.ranks() == 1 && sim::load_model(model).timing == sim::Timing::step;
    for (const bool graph : std::set{false, is_captured}) {
      SCOPED_TRACE(fmt::format("{} {}{}", model, strategy, graph ? " replayed" : ""));
      const RunResult result =
          session->run({.program = program, .warmup_steps = 2, .steps = 2, .seed = 3, .verify = true, .graph = graph});
      for (const VerifiedTensor& tensor : result.verified) EXPECT_LE(tensor.relative_error, 1e-9) << tensor.name;
    }
  }
}

// What calibration relies on: events around an op that was issued long before enclose nothing of the host's time.
TEST(CudaSession, AHeldDeviceFindsItsOpsIssued) {
  std::unique_ptr<Session> session;
  try {
    session = open_session({.device = "cuda"});
  } catch (const sim::ConfigError& error) {
    GTEST_SKIP() << error.what();
  }
  const sim::Program program = lowered("resnet18,image=32,global_batch=8", "single");  // its host takes longer
  const auto issued_before = [&](std::uint32_t host_leads_every) {
    const RunResult result =
        session->run({.program = program, .warmup_steps = 3, .steps = 1, .host_leads_every = host_leads_every});
    const sim::RankTimeline& times = result.steps[0].timeline.ranks[0];
    double count = 0;
    for (std::size_t i = 0; i < times.start_s.size(); ++i) count += times.issued_s[i] <= times.start_s[i];
    return count / static_cast<double>(times.start_s.size());
  };
  EXPECT_LT(issued_before(0), 0.5);
  EXPECT_GT(issued_before(1), 0.95);
}

}  // namespace
}  // namespace backend
