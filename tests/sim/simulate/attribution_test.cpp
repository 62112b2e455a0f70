#include "sim/simulate/attribution.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "sim/model/op/op.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

Work work(const std::string& name, Pass pass, std::int64_t size) {
  const OpKind& kind = op_table().at(name);
  Work result;
  result.op = {&kind, complete_attributes(kind, {}, "test"), {{Dtype::f32, {size, size}}}};
  result.pass = pass;
  return result;
}

/// Stage 0: relu forward, sends to stage 1, which waits, then runs a softmax and a relu backward.
struct TwoStages {
  TwoStages() {
    program.mesh.axes = {{"rank", 2}};
    program.works = {work("relu", Pass::forward, 8), work("softmax", Pass::forward, 8),
                     work("relu", Pass::backward, 8)};
    for (std::uint32_t r = 0; r < 2; ++r) {
      Role& role = program.roles.emplace_back();
      role.name = r == 0 ? "stage0" : "stage1";
      role.ranks = {r};
      const std::uint32_t x = role.add_tensor("x", {Dtype::f32, {8, 8}}, TensorClass::activation);
      Instruction transfer;
      transfer.kind = r == 0 ? InstructionKind::send : InstructionKind::recv;
      transfer.peer = 0;
      transfer.by = r == 0 ? 1 : -1;
      (r == 0 ? transfer.reads : transfer.writes) = {x};
      Instruction wait;
      wait.kind = InstructionKind::wait;
      const auto compute = [&](std::uint32_t w) {
        Instruction instruction;
        instruction.work = w;
        instruction.reads = {x};
        instruction.writes = {x};
        role.add(instruction);
      };
      if (r == 0) compute(0);
      wait.ticket = role.ticket[role.add(transfer)];
      role.add(wait);
      if (r == 1) compute(1), compute(2);
    }
    cluster.name = "test";
    cluster.world = "gloo";
    cluster.levels[0].size = 2;
    cluster.place = {{0}, {1}};
    costs.work_s = {3e-3, 2e-3, 1e-3};
    costs.transfers = {{.latency_s = 1e-4, .wire_s = 4e-4}};
    costs.transfer_of = {0};
    costs.launch_s = 1e-5;
  }
  Program program;
  Cluster cluster;
  Costs costs;
};

CostAttribution attribute(const TwoStages& setup, const Timeline& predicted, double expected_s,
                          const std::vector<Timeline>& timelines) {
  MeasuredSteps measured;
  for (const Timeline& step : timelines)
    measured.add(setup.program, step, durations_of(setup.program, step, setup.cluster));
  return attribute_cost_error(setup.program, setup.cluster, predicted, expected_s, measured);
}

double effect(const CostAttribution& attribution, const std::string& name) {
  for (const ClassError& c : attribution.classes)
    if (c.name == name) return c.effect_s;
  return NAN;
}

TEST(Attribution, FindsTheClassThatIsWrong) {
  const TwoStages setup;
  const Timeline predicted = simulate(setup.program, setup.costs, setup.cluster);
  struct Case {
    const char* name;
    void (*change)(Costs&);
  };
  const Case cases[] = {{"relu.forward", [](Costs& p) { p.work_s[0] *= 2; }},
                        {"softmax.forward", [](Costs& p) { p.work_s[1] *= 0.5; }},
                        {"relu.backward", [](Costs& p) { p.work_s[2] *= 3; }},
                        {"send", [](Costs& p) { p.transfers[0].latency_s *= 2; }},  // a doubled α
                        {"host", [](Costs& p) { p.launch_s *= 4; }}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Costs real = setup.costs;
    c.change(real);
    const Timeline measured = simulate(setup.program, real, setup.cluster);
    const CostAttribution attribution = attribute(setup, predicted, predicted.step_s, {measured});
    const double difference = predicted.step_s - measured.step_s;
    ASSERT_GT(std::abs(difference), 2e-5);
    EXPECT_NEAR(attribution.difference_s, difference, 1e-12);
    EXPECT_EQ(attribution.critical_rank, 1U);
    EXPECT_EQ(attribution.classes.front().name, c.name);
    EXPECT_NEAR(attribution.classes.front().effect_s, difference, 1e-9);
    EXPECT_EQ(attribution.classes.back().name, "rest");
    double sum = 0;
    for (const ClassError& error : attribution.classes) sum += error.effect_s;
    EXPECT_NEAR(sum, difference, 1e-12);
  }
}

TEST(Attribution, SeparatesClassesAndAveragesSteps) {
  const TwoStages setup;
  const Timeline predicted = simulate(setup.program, setup.costs, setup.cluster);
  Costs slow = setup.costs, slower = setup.costs;
  slow.work_s[0] += 1e-3, slow.work_s[2] += 4e-4;
  slower.work_s[0] += 3e-3, slower.work_s[2] += 4e-4;
  const CostAttribution attribution =
      attribute(setup, predicted, predicted.step_s + 1e-3,
                {simulate(setup.program, slow, setup.cluster), simulate(setup.program, slower, setup.cluster)});
  EXPECT_NEAR(attribution.difference_s, -1.4e-3, 1e-9);
  EXPECT_NEAR(effect(attribution, "jitter"), 1e-3, 1e-9);
  EXPECT_NEAR(effect(attribution, "relu.forward"), -2e-3, 1e-9);
  EXPECT_NEAR(effect(attribution, "relu.backward"), -4e-4, 1e-9);
  EXPECT_NEAR(effect(attribution, "softmax.forward"), 0, 1e-9);
  EXPECT_NEAR(effect(attribution, "rest"), 0, 1e-9);
  // Durations are those of the critical rank, which runs no relu forward and has one instruction more than the other.
  const auto expect_durations = [&](const char* name, double predicted_s, double measured_s) {
    const auto found = std::ranges::find(attribution.classes, name, &ClassError::name);
    ASSERT_NE(found, attribution.classes.end()) << name;
    EXPECT_NEAR(found->predicted_s, predicted_s, 1e-12) << name;
    EXPECT_NEAR(found->measured_s, measured_s, 1e-12) << name;
  };
  expect_durations("relu.backward", 1e-3, 1.4e-3);
  expect_durations("relu.forward", 0, 0);
  expect_durations("host", 4e-5, 4e-5);
  expect_durations("send", 5e-4, 5e-4);
}

TEST(Attribution, WhatNothingExplainsIsRest) {
  // The measured step is longer than its instructions: the last rank stood still before the end.
  const TwoStages setup;
  const Timeline predicted = simulate(setup.program, setup.costs, setup.cluster);
  Timeline measured = predicted;
  measured.step_s += 5e-3;
  const CostAttribution attribution = attribute(setup, predicted, predicted.step_s, {measured});
  EXPECT_NEAR(effect(attribution, "rest"), -5e-3, 1e-9);
  EXPECT_NEAR(effect(attribution, "relu.forward"), 0, 1e-9);
}

}  // namespace
}  // namespace sim
