#include "sim/simulate/timeline.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/sim/simulate/sketch.hpp"

namespace sim {
namespace {

using namespace testing;

/// Rank 0 computes and sends, rank 1 computes, waits and computes.
Sketch small_step() {
  Sketch sketch(2);
  sketch.compute(0, 1);
  const std::uint32_t sent = sketch.send(0, 1, {.wire_s = 1});
  const std::uint32_t received = sketch.recv(1, 0, {.wire_s = 1});
  sketch.compute(1, 0.5);
  sketch.wait(0, sent);
  sketch.wait(1, received);
  sketch.compute(1, 1);
  return sketch;
}

TEST(Timeline, BreakDownByHand) {
  const Timeline timeline = small_step().run();
  EXPECT_DOUBLE_EQ(timeline.step_s, 3);
  const RankTimeline &left = timeline.ranks[0], &right = timeline.ranks[1];
  EXPECT_DOUBLE_EQ(left.compute_s, 1);
  EXPECT_DOUBLE_EQ(left.exposed_communication_s, 1);
  EXPECT_DOUBLE_EQ(left.bubble_s, 1);  // waits for the slowest at the end
  EXPECT_DOUBLE_EQ(right.compute_s, 1.5);
  EXPECT_DOUBLE_EQ(right.exposed_communication_s, 1);
  EXPECT_DOUBLE_EQ(right.bubble_s, 0.5);  // the sender computes for longer
  EXPECT_DOUBLE_EQ(right.host_s, 0);
}

TEST(Timeline, CheckRefusesWhatCantBe) {
  const Sketch sketch = small_step();
  const Timeline good = sketch.run();
  EXPECT_NO_THROW(check(sketch.program, good));
  const auto refuses = [&](const char* what, auto edit) {
    Timeline bad = good;
    edit(bad);
    EXPECT_THROW(check(sketch.program, bad), InternalError) << what;
  };
  // Instructions of rank 1: 0 recv, 1 compute, 2 wait, 3 compute.
  refuses("a rank is missing", [](Timeline& t) { t.ranks.pop_back(); });
  refuses("no number", [](Timeline& t) { t.ranks[1].end_s[1] = NAN; });
  refuses("infinite", [](Timeline& t) { t.ranks[1].end_s[3] = t.step_s = HUGE_VAL; });
  refuses("before the step", [](Timeline& t) { t.ranks[1].start_s[1] = -0.1; });
  refuses("ends before it starts", [](Timeline& t) { t.ranks[1].end_s[1] = -0.1; });
  refuses("ends after the step", [](Timeline& t) { t.ranks[1].end_s[3] = 3.1; });
  refuses("the lane overlaps", [](Timeline& t) { t.ranks[1].start_s[3] = 1.9; });
  refuses("ready before posted", [](Timeline& t) { t.ranks[0].posted_s[1] = 1.1; });
  refuses("posted never", [](Timeline& t) { t.ranks[0].posted_s[1] = NAN; });
  refuses("the wait is over too early", [](Timeline& t) { t.ranks[0].end_s[2] = 1.9; });
  refuses("a rank ends after the step", [](Timeline& t) { t.ranks[0].end_of_step_s = 3.1; });
  refuses("the step is too short", [](Timeline& t) { t.step_s = 2.9; });
  refuses("the breakdown lacks something", [](Timeline& t) { t.ranks[0].compute_s -= 0.1; });
  refuses("negative host time", [](Timeline& t) {
    t.ranks[0].compute_s += 0.1;
    t.ranks[0].host_s -= 0.1;
  });
}

TEST(Timeline, ChromeTraceHasEveryInstruction) {
  const Model model = small_model("convnet");
  for (const char* text : {"single", "ddp_blocking,dp=2", "pipeline,pp=3,microbatches=2"}) {
    const Program program = lower(model, parse_strategy(text, model));
    const Cluster cluster = plain_cluster(program.ranks());
    const Timeline timeline = simulate(program, analytic_costs(program, cluster), cluster);
    const auto trace = nlohmann::json::parse(chrome_trace(program, {{"predicted", &timeline}, {"again", &timeline}}));
    std::size_t instructions = 0, complete = 0, processes = 0;
    for (const Role& role : program.roles) instructions += role.size() * role.ranks.size();
    std::map<std::pair<int, int>, double> lane_end;  // by process and thread
    double last = 0;
    for (const auto& event : trace.at("traceEvents")) {
      if (event.at("ph") == "M" && event.at("name") == "process_name") ++processes;
      if (event.at("ph") != "X") continue;
      ++complete;
      EXPECT_FALSE(event.at("name").get<std::string>().empty());
      const double begin = event.at("ts"), duration = event.at("dur");
      EXPECT_GE(begin, 0);
      EXPECT_GE(duration, 0);
      last = std::max(last, begin + duration);
      const int lane = event.at("tid");
      if (lane != 2) {  // transfers may overlap
        double& end = lane_end[{event.at("pid"), lane}];
        EXPECT_GE(begin, end - 1e-6);
        end = begin + duration;
      }
    }
    EXPECT_EQ(complete, 2 * instructions) << text;
    EXPECT_EQ(processes, 2 * program.ranks()) << text;
    EXPECT_NEAR(last, timeline.step_s * 1e6, 1e-6 * timeline.step_s * 1e6) << text;
    EXPECT_EQ(trace.at("otherData").at("strategy"), program.strategy);
  }
}

TEST(Trace, HasTheHostOfAnAsynchronousDevice) {
  const Model model = load_model("toy_mlp");
  const Program program = lower(model, parse_strategy("single", model));
  Cluster cluster = plain_cluster(1);
  cluster.device.asynchronous = true;
  const Timeline timeline = simulate(program, analytic_costs(program, cluster), cluster);
  const auto trace = nlohmann::json::parse(chrome_trace(program, {{"predicted", &timeline}}));
  double issued = 0, begin_s = 0;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.value("cat", "") != "issue") continue;
    EXPECT_NEAR(event.at("ts").get<double>(), begin_s, 1e-6);
    begin_s += event.at("dur").get<double>();
    ++issued;
  }
  EXPECT_EQ(issued, program.roles[0].size());
}

}  // namespace
}  // namespace sim
