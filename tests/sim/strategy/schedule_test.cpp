#include "sim/strategy/schedule/schedule.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

TEST(Schedule, GpipeIsAllForwardsThenAllBackwards) {
  const ScheduleKind& gpipe = schedule_table().at("gpipe");
  for (std::uint32_t stage = 0; stage < 3; ++stage) {
    EXPECT_EQ(to_text(gpipe.stage(stage, 3, 4)), "F0 F1 F2 F3 B0 B1 B2 B3");
    EXPECT_EQ(to_text(gpipe.stage(stage, 3, 1)), "F0 B0");
  }
}

TEST(Schedule, OneForwardOneBackward) {
  const ScheduleKind& schedule = schedule_table().at("1f1b");
  EXPECT_EQ(to_text(schedule.stage(0, 3, 5)), "F0 F1 F2 B0 F3 B1 F4 B2 B3 B4");
  EXPECT_EQ(to_text(schedule.stage(1, 3, 5)), "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4");
  EXPECT_EQ(to_text(schedule.stage(2, 3, 5)), "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4");
  EXPECT_EQ(to_text(schedule.stage(0, 4, 2)), "F0 F1 B0 B1");  // fewer microbatches than stages: GPipe
}

TEST(Schedule, ForwardOnlyComesBackInReverse) {
  const ScheduleKind& schedule = schedule_table().at("forward_only");
  EXPECT_TRUE(schedule.one_loss);
  for (std::uint32_t stage = 0; stage < 3; ++stage)
    EXPECT_EQ(to_text(schedule.stage(stage, 3, 3)), "F0 F1 F2 B2 B1 B0");
}

// For whatever is in the table.
TEST(Schedule, EveryScheduleIsComplete) {
  for (const ScheduleKind& schedule : schedule_table()) {
    EXPECT_FALSE(schedule.equation.empty()) << schedule.name;
    for (std::uint32_t stages = 1; stages <= 5; ++stages)
      for (std::int32_t microbatches = 1; microbatches <= 9; ++microbatches)
        for (std::uint32_t stage = 0; stage < stages; ++stage) {
          const std::vector<Action> actions = schedule.stage(stage, stages, microbatches, schedule.chunks);
          SCOPED_TRACE(fmt::format("{}, stage {} of {}: {}", schedule.name, stage, stages, to_text(actions)));
          EXPECT_EQ(std::ssize(actions), (schedule.splits ? 3 : 2) * microbatches * schedule.chunks);
          for (std::int32_t chunk = 0; chunk < schedule.chunks; ++chunk)
            for (std::int32_t m = 0; m < microbatches; ++m) {
              const auto find = [&](Action::Kind kind) { return std::ranges::find(actions, Action{kind, m, chunk}); };
              const auto forward = find(Action::Kind::forward), backward = find(Action::Kind::backward),
                         weights = find(Action::Kind::weights);
              ASSERT_NE(forward, actions.end());
              ASSERT_NE(backward, actions.end());
              EXPECT_LT(forward, backward);
              EXPECT_LT(backward, weights);  // or there is none
              EXPECT_EQ(weights != actions.end(), schedule.splits);
              EXPECT_EQ(std::ranges::count(actions, *forward) + std::ranges::count(actions, *backward), 2);
            }
          EXPECT_EQ(actions_from_text(to_text(actions)), actions);
        }
  }
}

// tests/golden/pipeline_schedules.json holds what torch.distributed.pipelining 2.11 makes: the pipeline_order of
// ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble (also with one stage for each rank) and ScheduleZBVZeroBubble.
TEST(Schedule, OrdersArePyTorchs) {
  std::set<std::string> tested;
  for (const nlohmann::json& golden : nlohmann::json::parse(testing::golden_text("pipeline_schedules.json"))) {
    const auto name = golden.at("schedule").get<std::string>();
    const ScheduleKind& schedule = schedule_table().at(name);
    const auto ranks = golden.at("ranks").get<std::uint32_t>();
    const auto microbatches = golden.at("microbatches").get<std::int32_t>(),
               chunks = golden.at("chunks").get<std::int32_t>();
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(to_text(schedule.stage(rank, ranks, microbatches, chunks)), golden.at("actions").at(rank))
          << name << ", rank " << rank << " of " << ranks << ", microbatches " << microbatches;
    tested.insert(name);
  }
  EXPECT_EQ(tested, (std::set<std::string>{"interleaved", "zb_h1", "interleaved_zb", "zbv"}));
}

// Of how many microbatches a rank keeps the activations at most, in all its stages together: from the forward to what
// computes the parameters' gradients.
TEST(Schedule, WhatARankKeeps) {
  constexpr std::uint32_t kRanks = 4;
  for (const std::int32_t microbatches : {8, 12})
    for (std::uint32_t rank = 0; rank < kRanks; ++rank) {
      const double behind = kRanks - 1.0 - rank;
      const std::map<std::string_view, double> expected{{"gpipe", microbatches},
                                                        {"1f1b", behind + 1},
                                                        {"1f1b_split", behind + 1},
                                                        {"interleaved", (kRanks + 2 * behind + 1) / 2},
                                                        {"zb_h1", kRanks},
                                                        {"interleaved_zb", kRanks},
                                                        {"zbv", kRanks}};
      for (const auto& [name, most] : expected) {
        const ScheduleKind& schedule = schedule_table().at(name);
        std::int32_t alive = 0, peak = 0;
        for (const Action& action : schedule.stage(rank, kRanks, microbatches, schedule.chunks)) {
          if (action.kind == Action::Kind::forward) ++alive;
          if (action.kind == (schedule.splits ? Action::Kind::weights : Action::Kind::backward)) --alive;
          peak = std::max(peak, alive);
        }
        EXPECT_LE(peak, most * schedule.chunks) << name << ", rank " << rank;
        EXPECT_GE(peak, (most - 1) * schedule.chunks) << name << ", rank " << rank;
      }
    }
}

TEST(Schedule, PartsOfRanks) {
  std::vector<std::uint32_t> loop, turn;
  for (std::uint32_t part = 0; part < 6; ++part) {
    loop.push_back(rank_of_part(part, 3, PartOrder::loop).stage);
    turn.push_back(rank_of_part(part, 3, PartOrder::turn).stage);
    EXPECT_EQ(rank_of_part(part, 3, PartOrder::turn).chunk, part < 3 ? 0 : 1);
  }
  EXPECT_EQ(loop, (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(turn, (std::vector<std::uint32_t>{0, 1, 2, 2, 1, 0}));
}

TEST(Schedule, TextForm) {
  const std::vector<Action> actions{{Action::Kind::forward, 0}, {Action::Kind::backward, 12}};
  EXPECT_EQ(to_text(actions), "F0 B12");
  const std::vector<Action> in_chunks{{Action::Kind::forward, 3}, {Action::Kind::weights, 0, 1}};
  EXPECT_EQ(to_text(in_chunks), "F3.0 W0.1");
  EXPECT_EQ(actions_from_text("F3.0 W0.1"), in_chunks);
  EXPECT_EQ(actions_from_text("F0 B12"), actions);
  EXPECT_TRUE(actions_from_text("").empty());
  for (const char* word : {"G0", "F", "Fx", "F-1", "F0B0", "f0", "F99999999999", "F1.", "F1.x", "F1.-1", "F.1"})
    EXPECT_EQ(message_of([&] { actions_from_text(fmt::format("F0 {} B0", word)); }),
              fmt::format("schedule text: '{}' is not an action; expected F0, B0, W0, F0.1, …", word));
  EXPECT_EQ(message_of([] { actions_from_text("F0  B0"); }),
            "schedule text: '' is not an action; expected F0, B0, W0, F0.1, …");
}

TEST(Schedule, UnknownNameListsTheKnownOnes) {
  EXPECT_EQ(message_of([] { (void)schedule_table().at("1f2b"); }),
            fmt::format("unknown schedule '1f2b'; known: {}; did you mean '1f1b'?", schedule_table().names()));
}

}  // namespace
}  // namespace sim
