#include "sim/strategy/daso.hpp"

#include <gtest/gtest.h>

#include "sim/lower/lower.hpp"
#include "sim/strategy/daso_phases.hpp"
#include "sim/strategy/strategy.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

/// "g send@0": gradients are summed, rank 0 sends.
std::vector<std::string> text_of(const std::vector<DasoStep>& steps) {
  std::vector<std::string> texts;
  for (const DasoStep& step : steps) {
    std::string text = step.sums_gradients ? "g" : "-";
    for (const NodeSync& sync : step.syncs) {
      static constexpr std::array kNames{"send", "blend", "mean", "broadcast"};
      text += fmt::format(" {}{}@{}", kNames.at(static_cast<std::size_t>(sync.kind)),
                          sync.kind == NodeSync::Kind::blend ? fmt::to_string(sync.waited) : "", sync.rank);
    }
    texts.push_back(text);
  }
  return texts;
}

using Steps = std::vector<std::string>;

// heat/optim/dp_optimizer.py, `step` and `_global_sync`, played by hand: what its code does, which isn't all that the paper
// says (gradients aren't summed on the steps 3, 5 and 7 of 8; the rank that sent before broadcasts again).
TEST(Daso, StepsAreTheReferences) {
  const DasoEpoch cycling = epoch_of({.local = 2, .skips = 4, .wait = 1, .local_skips = 1});
  EXPECT_EQ(text_of({cycling.first}), Steps{"g send@0"});
  EXPECT_EQ(text_of(cycling.body), (Steps{"g blend1@0 broadcast@0", "g", "g", "g send@1 broadcast@0",
                                          "g blend1@1 broadcast@1", "g", "g", "g send@0 broadcast@1"}));
  EXPECT_EQ(text_of(cycling.end), Steps{"g send@1 blend1@0 broadcast@0 mean@1 broadcast@1"});

  const DasoEpoch longest = epoch_of({.local = 2, .skips = 8, .wait = 2, .local_skips = 2});
  EXPECT_EQ(text_of(longest.body),
            (Steps{"g", "g blend2@0 broadcast@0", "-", "g", "-", "g", "-", "g send@1 broadcast@0",  //
                   "g", "g blend2@1 broadcast@1", "-", "g", "-", "g", "-", "g send@0 broadcast@1"}));

  const DasoEpoch warm_up = epoch_of({.local = 3, .skips = 0, .wait = 0, .local_skips = 0});
  EXPECT_EQ(text_of({warm_up.first}), Steps{"g send@0 mean@0 broadcast@0"});
  EXPECT_EQ(text_of(warm_up.body),
            (Steps{"g send@1 mean@1 broadcast@1", "g send@2 mean@2 broadcast@2", "g send@0 mean@0 broadcast@0"}));
}

// Where the receiving step is one that sends, what was sent is received after that: one cycle late.
TEST(Daso, WhatIsReceivedLate) {
  EXPECT_EQ(text_of(epoch_of({.local = 2, .skips = 2, .wait = 1, .local_skips = 1}).body),
            (Steps{"g", "g send@1 blend1@0 broadcast@0", "g", "g send@0 blend1@1 broadcast@1"}));
  EXPECT_EQ(text_of(epoch_of({.local = 2, .skips = 1, .wait = 1, .local_skips = 1}).body),
            (Steps{"g send@1 blend1@0 broadcast@0", "g send@0 blend1@1 broadcast@1"}));
}

/// "0 0 0 0 4:1:1": skips, wait and local skips of each epoch.
std::string phases_text(std::int64_t epochs, const std::vector<double>& losses) {
  DasoPhases phases(epochs, 2);
  std::string text;
  for (const double loss : losses) {
    const Daso& now = phases.now();
    text += now.skips == 0 ? "0 " : fmt::format("{}:{}:{} ", now.skips, now.wait, now.local_skips);
    phases.end_epoch(loss);
  }
  return text;
}

// epoch_loss_logic, played by hand. The first loss that counts is that of the last epoch of the warm-up.
TEST(DasoPhases, AreTheReferences) {
  const std::vector<double> falling{9, 8, 7, 6, 5, 4, 3, 2, 1.5, 1.1};
  EXPECT_EQ(phases_text(10, falling), "0 0 0 0 4:1:1 4:1:1 0 0 0 0 ");
  // Stable from the fifth epoch on: the loss is no better three times, and then skips are halved; at 1 they begin at 8.
  EXPECT_EQ(phases_text(30, std::vector<double>(26, 1.0)),
            "0 0 0 0 4:1:1 4:1:1 4:1:1 2:1:1 2:1:1 2:1:1 1:1:1 1:1:1 1:1:1 8:2:2 8:2:2 8:2:2 4:1:1 4:1:1 4:1:1 2:1:1 "
            "2:1:1 2:1:1 1:1:1 1:1:1 1:1:1 8:2:2 ");
  // 4 % better isn't better, 6 % is.
  EXPECT_EQ(phases_text(30, {9, 9, 9, 1, 0.96, 0.955, 0.951, 1, 1}), "0 0 0 0 4:1:1 4:1:1 4:1:1 2:1:1 2:1:1 ");
  EXPECT_EQ(phases_text(30, {9, 9, 9, 1, 0.96, 0.94, 0.94, 1, 1}), "0 0 0 0 4:1:1 4:1:1 4:1:1 4:1:1 4:1:1 ");
}

// Near its end an epoch waits less; whatever the rule, all that was sent is received, and a body is any other one.
TEST(Daso, EveryRuleHasAPeriod) {
  for (std::uint32_t local : {2U, 3U})
    for (std::int64_t skips = 1; skips <= 9; ++skips)
      for (std::int64_t wait = 1; wait < std::max<std::int64_t>(2, skips); ++wait)
        for (std::int64_t local_skips = 1; local_skips <= skips; ++local_skips) {
          if (skips % local_skips != 0) continue;
          const Daso daso{local, skips, wait, local_skips};
          const DasoEpoch epoch = epoch_of(daso);
          EXPECT_EQ(std::ssize(epoch.body), steps_of_body(daso));
          std::int64_t sent = 0, received = 0;
          for (const DasoStep& step : epoch.body)
            for (const NodeSync& sync : step.syncs) {
              sent += sync.kind == NodeSync::Kind::send ? 1 : 0;
              received += sync.kind == NodeSync::Kind::blend ? 1 : 0;
            }
          EXPECT_EQ(sent, local) << "skips=" << skips << " wait=" << wait << " local_skips=" << local_skips;
          EXPECT_EQ(received, local);
          EXPECT_EQ(text_of(epoch.end).back().find("-"), std::string::npos);
        }
}

TEST(Daso, BadKeys) {
  const Model model = load_model("toy_mlp,global_batch=12");
  const auto message = [&](const std::string& text) {
    return testing::message_of([&] { static_cast<void>(parse_strategy(text, model)); });
  };
  EXPECT_EQ(message("daso,nodes=1,local=2"),
            "strategy 'daso,nodes=1,local=2': nodes=1 must be a whole number from 2 to "
            "1048576");
  EXPECT_EQ(message("daso,nodes=5"),
            "strategy 'daso,nodes=5': nodes=5 times local=2 must divide global_batch=12 of model "
            "'toy_mlp'; near: dp=6 or 12, or global_batch=10 or 20");
  EXPECT_EQ(message("daso,skips=2,wait=3"),
            "strategy 'daso,skips=2,wait=3': wait=3 must be less than skips=2, or 1 with "
            "skips=1");
  EXPECT_EQ(message("daso,skips=4,local_skips=3"),
            "strategy 'daso,skips=4,local_skips=3': local_skips=3 must divide skips=4");
  EXPECT_EQ(message("daso,skips=0,wait=1"),
            "strategy 'daso,skips=0,wait=1': wait needs skips of at least 1, found "
            "skips=0");
  EXPECT_EQ(message("daso,downcast=f8"), "strategy 'daso,downcast=f8': downcast=f8 must be bf16, f16 or f32");
  EXPECT_EQ(message("daso,chunk=1.5"), "strategy 'daso,chunk=1.5': chunk=1.5 must be a whole number");
  EXPECT_EQ(message("daso,chunk=0.5"), "strategy 'daso,chunk=0.5': chunk=0.5 must be a number from 1 to 1000000000000");
  EXPECT_EQ(
      testing::message_of([&] {
        const Model tutorial = load_model("toy_mlp,global_batch=12,timing=tutorial");
        static_cast<void>(lower(tutorial, parse_strategy("daso", tutorial)));
      }),
      "strategy 'daso,nodes=2,local=2': timing=tutorial makes new samples in every step, and those of a body are the "
      "same; allowed: timing=step, timing=epoch");
}

TEST(Daso, TooManyPieces) {
  const Model model = load_model("vgg16,global_batch=8");
  EXPECT_EQ(
      testing::message_of([&] { static_cast<void>(lower(model, parse_strategy("daso,chunk=1000", model))); }),
      "strategy 'daso,nodes=2,local=2,chunk=1000': chunk=1000 cuts the 138357544 parameters of model 'vgg16' into "
      "138358 pieces; allowed: 10000");
}

}  // namespace
}  // namespace sim
