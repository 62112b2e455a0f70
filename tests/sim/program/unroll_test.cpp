#include "sim/program/unroll.hpp"

#include <gtest/gtest.h>

#include "sim/cost/cost_model.hpp"
#include "sim/program/memory.hpp"
#include "sim/simulate/forecast.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

/// A step computes `first`, then with the sum of the last step's `second` (so late) `second`, whose sum goes on its way.
Program delayed(std::int64_t first, std::int64_t second) {
  return program_from_text(fmt::format(R"(paragauge-program-2
model none
strategy none
mesh rank=2
partition global_batch=2 microbatches=1
group rank rank
work relu.forward f32[{0}] inplace=0
work relu.forward f32[{1}] inplace=0
role all ranks=0,1
tensor x f32[{0}] input persistent
tensor y f32[{1}] input persistent
tensor a f32[{0}] activation
tensor sum f32[{1}] communication
prologue
0 compute w1 : y -> sum
1 collective t0 kind=all_reduce group=rank : sum -> sum
body steps=1
2 compute w0 : x -> a ; free a
3 wait t0
4 compute w1 : sum -> y ; free sum
5 compute w1 : y -> sum
6 collective t0 kind=all_reduce group=rank : sum -> sum
epilogue
7 wait t0 : ; free sum
)",
                                       first, second));
}

TEST(Unroll, PlaysPrologueBodiesAndEpilogue) {
  const Program flat = unroll(delayed(4, 8), 3);
  validate(flat);
  EXPECT_FALSE(flat.is_periodic());
  EXPECT_EQ(flat.bodies(), 3U);
  EXPECT_EQ(to_text(program_from_text(to_text(flat))), to_text(flat));
  const Role& role = flat.roles[0];
  ASSERT_EQ(role.size(), 2U + 3 * 5 + 1);
  EXPECT_EQ(role.body_begin, 2U);
  EXPECT_EQ(role.next_bodies, (std::vector<std::uint32_t>{7, 12}));
  EXPECT_EQ(role.body_end, 17U);
  EXPECT_EQ(role.tensors.back().name, "sum'3") << "what is written anew is another tensor";
  std::vector<std::uint32_t> awaited;
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (role.kind[i] == InstructionKind::wait) awaited.push_back(role.awaits[i]);
  EXPECT_EQ(awaited, (std::vector<std::uint32_t>{1, 6, 11, 16})) << "each the sum of the body before";
}

// A message that is sent again and again is another one each time: both ends count.
TEST(Unroll, MessagesKeepTheirOrder) {
  const std::string ring = R"(paragauge-program-2
mesh rank=2
partition microbatches=1
role left ranks=0
tensor x f32[4] input persistent
prologue
0 send t0 to=rank+1 tag=0 : x
body steps=2
1 wait t0
2 send t0 to=rank+1 tag=0 : x
3 send t1 to=rank+1 tag=1 : x
4 wait t1
epilogue
5 wait t0
role right ranks=1
tensor y f32[4] input persistent
tensor z f32[4] input persistent
body steps=2
0 recv t0 from=rank-1 tag=0 : -> y
1 recv t1 from=rank-1 tag=1 : -> z
2 wait t0
3 wait t1
epilogue
4 recv t0 from=rank-1 tag=0 : -> y
5 wait t0
)";
  const Program program = program_from_text(ring);
  validate(program);
  EXPECT_EQ(program.steps, 2);
  const Program flat = unroll(program, 2);
  validate(flat);
  EXPECT_EQ(flat.roles[0].tag, (std::vector<std::uint32_t>{0, 0, 2, 1, 0, 0, 4, 3, 0, 0}));
  EXPECT_EQ(flat.roles[1].tag, (std::vector<std::uint32_t>{0, 1, 0, 0, 2, 3, 0, 0, 4, 0}));
}

// The steady state: a sum that takes no longer than the beginning of the next step costs nothing; else what is left of it.
TEST(Unroll, AStepIsThePeriod) {
  const Cluster cluster = testing::plain_cluster(2);
  for (const auto& [first, second] : {std::pair(40'000'000, 1'000'000), {1'000'000, 40'000'000}}) {
    const Program program = delayed(first, second);
    validate(program);
    const Forecast f = forecast(program, cluster, *make_cost_model("analytic", cluster));
    const double first_s = f.costs.work_s[0], second_s = f.costs.work_s[1];
    const TransferCost& sum = f.costs.transfers.at(0);
    const double sum_s = sum.latency_s + sum.wire_s, expected_s = std::max(first_s, sum_s) + 2 * second_s;
    EXPECT_NEAR(f.step.step_s, expected_s, 1e-3 * expected_s) << first << ", " << second;
    EXPECT_NEAR(f.step.exposed_communication_s, std::max(sum_s - first_s, 0.0), 1e-3 * expected_s);
    Program two_steps = program;  // a body may be several
    two_steps.steps = 2;
    EXPECT_NEAR(forecast(two_steps, cluster, *make_cost_model("analytic", cluster)).step.step_s, f.step.step_s / 2,
                1e-9 * expected_s);
  }
}

// What a body leaves for the next one counts once, however many there are.
TEST(Unroll, MemoryIsThatOfAnyBody) {
  const Program program = delayed(100, 200);
  const std::int64_t persistent = 4 * (100 + 200);
  EXPECT_EQ(peak_memory(program.roles[0]).peak_bytes, persistent + 4 * (200 + 100));
  EXPECT_EQ(peak_memory(unroll(program, 5).roles[0]).peak_bytes, persistent + 4 * (200 + 100));
}

}  // namespace
}  // namespace sim
