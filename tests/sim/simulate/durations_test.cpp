#include "sim/simulate/durations.hpp"

#include "tests/sim/simulate/sketch.hpp"

namespace sim {
namespace {

using namespace testing;

// gloo's sender learns from its wait, much later, that the message is gone.
TEST(Durations, ASendThatNobodyWaitedForTookUntilItWasReceived) {
  Sketch sketch(2);
  const std::uint32_t sent = sketch.send(0, 1, {.latency_s = 1});
  sketch.compute(0, 5);
  sketch.wait(0, sent);
  sketch.compute(0, 1);
  sketch.wait(1, sketch.recv(1, 0, {.latency_s = 1}));
  const Cluster cluster = plain_cluster(2);
  Timeline timeline = sketch.run(cluster);
  RankTimeline& sender = timeline.ranks[0];
  constexpr double kWait_s = 0.125;  // of a transfer that is done
  sender.end_s[sent] = sender.end_s[2] += kWait_s;
  sender.start_s[3] += kWait_s, sender.end_s[3] += kWait_s;
  const Durations durations = durations_of(sketch.program, timeline, cluster);
  EXPECT_DOUBLE_EQ(durations.seconds[0][sent], 1);
  EXPECT_DOUBLE_EQ(durations.host_s[0][3], kWait_s);
  EXPECT_DOUBLE_EQ(end_of(replay(sketch.program, durations, cluster), 0), 6 + kWait_s);
}

// A rank that copies something else, or whose core another rank has, goes on later than its transfer is done: a duration
// is until the rank goes on.
Timeline as_waiting_ranks_saw_it(const Program& program, Timeline timeline) {
  const std::vector<Program::Place> places = program.places();
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    const Role& role = program.roles[places[rank].role];
    RankTimeline& times = timeline.ranks[rank];
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::wait && times.start_s[i] < times.end_s[role.awaits[i]])
        times.end_s[role.awaits[i]] = times.end_s[i];
  }
  return timeline;
}

TEST(DurationsGrid, ReplayReproducesTheTimeline) {
  for_each_case(true, [](const Program& program, const Costs& costs, const Cluster& cluster) {
    const Timeline timeline = simulate(program, costs, cluster);
    expect_equal(replay(program, durations_of(program, timeline, cluster), cluster),
                 as_waiting_ranks_saw_it(program, timeline));
  });
}

}  // namespace
}  // namespace sim
