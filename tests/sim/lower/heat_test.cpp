#include <set>

#include "sim/cost/cost_model.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/program/unroll.hpp"
#include "sim/simulate/forecast.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

Program periodic(const Model& model, const std::string& strategy) {
  return lower_periodic(model, parse_strategy(strategy, model));
}

// Heat's forward hooks: a layer's sums are waited for, and it is updated, before its forward; nothing later is touched.
TEST(Heat, ALayerIsUpdatedJustBeforeItsForward) {
  const Model model = load_model("convnet,global_batch=8,optimizer=adam");
  const Program program = periodic(model, "heat");
  ASSERT_EQ(program.roles.size(), 1U);
  const Role& role = program.roles[0];
  ASSERT_TRUE(role.has_sections());
  std::set<std::uint32_t> waited, updated;  // tensors
  std::uint32_t updates = 0;
  for (std::uint32_t i = role.body_begin; i < role.body_end; ++i) {
    if (role.kind[i] == InstructionKind::wait) waited.insert(role.writes(role.awaits[i])[0]);
    if (role.kind[i] == InstructionKind::update) {
      ++updates;
      const std::size_t count = program.works[role.work[i]].op.inputs.size();
      for (std::size_t k = 0; k < count; ++k) {
        updated.insert(role.reads(i)[k]);
        EXPECT_TRUE(waited.contains(role.reads(i)[count + k])) << program.label(role, i);
      }
      EXPECT_EQ(role.kind[i + 1], InstructionKind::compute);
      EXPECT_EQ(program.label(role, i + 1).find("backward"), std::string::npos);
      EXPECT_EQ(role.node[i + 1], role.node[i]) << "the layer's own forward comes next";
    }
    if (role.kind[i] != InstructionKind::compute) continue;
    for (const std::uint32_t t : role.reads(i))
      if (role.storages[role.tensors[t].storage].tensor_class == TensorClass::weight) {
        EXPECT_TRUE(updated.contains(t)) << program.label(role, i);
      }
  }
  EXPECT_EQ(updates, 5U) << "one for each layer that has parameters";
  EXPECT_EQ(updated.size(), 10U);
}

// The sums of a step are those of ddp in bytes, but one collective per parameter, and all are on their way at its end.
TEST(Heat, EachParameterHasACollectiveOfItsOwn) {
  for (const char* name : {"convnet", "resnet18,image=64"}) {
    const Model model = load_model(std::string(name) + ",global_batch=8");
    for (const char* strategy : {"heat,dp=4", "heat_blocking,dp=4"}) {
      SCOPED_TRACE(strategy);
      const Program program = periodic(model, strategy);
      const Role& role = program.roles.at(0);
      std::int64_t collectives = 0, bytes = 0, parameters = 0;
      for (const OpInstance& op : model.instances(2))
        parameters += static_cast<std::int64_t>(op.signature().parameters.size());
      for (std::uint32_t i = role.body_begin; i < std::min(role.body_end, role.size()); ++i) {
        if (role.kind[i] != InstructionKind::collective) continue;
        ++collectives;
        bytes += program.transfer_bytes(role, i);
      }
      EXPECT_EQ(collectives, parameters);
      EXPECT_EQ(bytes, 4 * parameter_count(model));
      EXPECT_EQ(role.tickets(), parameters);
      EXPECT_EQ(program.is_periodic(), std::string(strategy) == "heat,dp=4");
    }
  }
}

// R2's loop reads the loss at the end of every step, also where the step's updates come later.
TEST(Heat, EveryStepReadsItsResult) {
  const Model model = load_model("convnet,global_batch=8,timing=epoch");
  for (const char* strategy : {"ddp,bodies=2", "heat,bodies=2", "daso,skips=2"}) {
    const Program program = lower(model, parse_strategy(strategy, model));
    for (const Role& role : program.roles) {
      std::int64_t losses = 0, results = 0;
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.work[i] == kNone) continue;
        losses += program.works[role.work[i]].is_loss() ? 1 : 0;
        results += program.works[role.work[i]].op.kind->name == "read_result" ? 1 : 0;
      }
      EXPECT_EQ(results, losses) << strategy;
      EXPECT_EQ(losses, program.steps_in_list()) << strategy;
    }
  }
}

TEST(Heat, WhatIsPlayedHasSeveralSteps) {
  const Model model = load_model("toy_mlp,global_batch=8");
  const Program program = lower(model, parse_strategy("heat", model));
  EXPECT_EQ(program.bodies(), 8U);
  EXPECT_EQ(program.steps_in_list(), 9) << "the prologue has a forward, the epilogue its update";
  EXPECT_EQ(lower(model, parse_strategy("heat,bodies=3", model)).steps_in_list(), 4);
  EXPECT_EQ(testing::message_of([&] { parse_strategy("heat,bodies=1", model); }),
            "strategy 'heat,bodies=1': bodies=1 must be a whole number from 2 to 64");
  EXPECT_EQ(lower(model, parse_strategy("heat_blocking", model)).steps_in_list(), 1);
}

// Any strategy's steps without a barrier between them: where they end together it costs nothing.
TEST(Bodies, StepsWithoutABarrierBetweenThem) {
  const Model model = load_model("convnet,global_batch=8");
  const Cluster cluster = testing::plain_cluster(2);
  const auto cost_model = make_cost_model("analytic", cluster);
  for (const char* text : {"ddp_blocking", "ddp", "zero3", "pipeline,pp=2,microbatches=4", "data_parallel", "hypar"}) {
    SCOPED_TRACE(text);
    const Program one = lower(model, parse_strategy(text, model));
    const Program four = lower(model, parse_strategy(std::string(text) + ",bodies=4", model));
    EXPECT_EQ(four.bodies(), 4U);
    EXPECT_EQ(four.steps_in_list(), 4);
    for (std::uint32_t role = 0; role < one.roles.size(); ++role) {
      EXPECT_EQ(four.roles[role].size(), 4 * one.roles[role].size());
      EXPECT_EQ(peak_memory(four.roles[role]).peak_bytes, peak_memory(one.roles[role]).peak_bytes);
    }
    const StepTime barrier = forecast(one, cluster, *cost_model).step,
                   period = forecast(four, cluster, *cost_model).step;
    EXPECT_LE(period.step_s, barrier.step_s * (1 + 1e-9));
    EXPECT_GT(period.step_s, 0.5 * barrier.step_s);
    EXPECT_NEAR(period.compute_s, barrier.compute_s, 0.02 * barrier.compute_s);
    if (std::string_view(text) == "ddp_blocking") {
      EXPECT_NEAR(period.step_s, barrier.step_s, 1e-9 * barrier.step_s);
    }
  }
}

/// The step's forecast on ranks whose link has so many bytes per second.
StepTime step_on(const Model& model, const std::string& strategy, double bandwidth_GBps) {
  Cluster cluster = testing::plain_cluster(2);
  cluster.levels[0].link.bandwidth = gigabytes_per_second(bandwidth_GBps);
  cluster.levels[0].link.latency = microseconds(1);
  return forecast(lower(model, parse_strategy(strategy, model)), cluster, *make_cost_model("analytic", cluster)).step;
}

// The period is what takes longer: computing, or sending all gradients one after the other. What stands still for each is
// their sum. Between them, the sums have a whole step to arrive.
TEST(Heat, ThePeriodIsTheLongerOfComputeAndSums) {
  const Model model = load_model("convnet,global_batch=64");
  const double compute_s = step_on(model, "heat_blocking", 1e9).compute_s;
  for (const double bandwidth : {100.0, 0.001}) {
    const StepTime late = step_on(model, "heat", bandwidth), blocking = step_on(model, "heat_blocking", bandwidth);
    const double sums_s = blocking.exposed_communication_s;
    EXPECT_NEAR(blocking.step_s, blocking.compute_s + sums_s + blocking.host_s, 1e-9) << bandwidth;
    EXPECT_NEAR(late.step_s, std::max(compute_s, sums_s), 0.15 * late.step_s) << bandwidth;
    EXPECT_LT(late.step_s, blocking.step_s);
  }
  EXPECT_GT(step_on(model, "heat_blocking", 0.001).exposed_communication_s, 2 * compute_s) << "the slow link counts";
}

// A sum lives from its gradient's copy to its layer's update; a list of several steps holds no more than one of two.
TEST(Heat, MemoryDoesNotGrowWithTheSteps) {
  const Model model = load_model("convnet,global_batch=8,optimizer=adam");
  const Program program = periodic(model, "heat");
  const std::int64_t peak = peak_memory(program.roles[0]).peak_bytes;
  EXPECT_EQ(peak_memory(unroll(program, 2).roles[0]).peak_bytes, peak);
  EXPECT_EQ(peak_memory(unroll(program, 7).roles[0]).peak_bytes, peak);
  // A foreach update's temporaries count once, however many steps are played.
  const Program played = lower(model, parse_strategy("heat", model)), ddp = lower(model, parse_strategy("ddp", model));
  EXPECT_GT(foreach_temporaries(ddp, ddp.roles[0]), 0);
  EXPECT_EQ(foreach_temporaries(played, played.roles[0]), foreach_temporaries(ddp, ddp.roles[0]));
  const Program daso = lower(model, parse_strategy("daso,nodes=2,local=2,skips=4", model));
  EXPECT_EQ(foreach_temporaries(daso, daso.roles[0]), foreach_temporaries(ddp, ddp.roles[0]));
  const auto blocking = peak_memory(periodic(model, "heat_blocking").roles[0]);
  EXPECT_EQ(blocking.persistent_bytes, peak_memory(program.roles[0]).persistent_bytes);
}

}  // namespace
}  // namespace sim
