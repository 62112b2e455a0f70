#include "sim/calibrate/speed_model.hpp"

#include <random>

#include "sim/calibrate/samples.hpp"
#include "sim/cost/roofline.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

constexpr double kCompute_s = 1.5e-3, kMemory_s = 3.5e-3;
/// What slower memory and a slower core really do.
constexpr double kOfMemory = 0.9, kOfCompute = 0.6;

MachineSpeed slower_by(double memory, double compute) {
  return {.compute_s = kCompute_s * (1 + compute),
          .memory_alone_s = kMemory_s * (1 + memory),
          .memory_together_s = kMemory_s * (1 + memory)};
}

double traffic_share(const Work& work, const Device& device) {
  double traffic_s = 0, sum_s = 0;
  for (const KernelTime& kernel : kernels_of(work, device)) {
    traffic_s += kernel.traffic_s + kernel.reorder_s;
    sum_s += kernel.traffic_s + kernel.reorder_s + kernel.arithmetic_s;
  }
  return traffic_s / sum_s;
}

struct SpeedModelTest : ::testing::Test {
  CalibrationTask task =
      calibration_tasks({make_job(load_model("convnet"), "single", load_cluster("cpu_local", 1, 1, 1))})[0];

  /// A visit whose works take a millisecond each on a machine that is as fast as ever.
  [[nodiscard]] CalibrationSamples visit(double memory, double compute) const {
    CalibrationSamples samples;
    for (const Work& work : task.program.works) {
      const double traffic = traffic_share(work, task.cluster.device);
      samples.works[work_key(work)] = {1e-3 *
                                       (1 + kOfMemory * traffic * memory + kOfCompute * (1 - traffic) * compute)};
    }
    samples.speed = slower_by(memory, compute);
    return samples;
  }
};

TEST_F(SpeedModelTest, WhatReadsMemoryIsAsIfTheMemoryWereAsFastAsElsewhere) {
  SpeedModel model;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> some(0, 0.3);
  for (int i = 0; i < 200; ++i) model.add(task, visit(some(random), some(random)));
  model.fit();
  const CalibrationSamples quiet = visit(0, 0), slow = visit(0.25, 0.1);
  const CalibrationSamples moved = model.moved(slow, task, quiet.speed);
  double largest = 0, largest_before = 0;
  for (const auto& [key, seconds] : quiet.works) {
    largest = std::max(largest, std::abs(std::log(moved.works.at(key)[0] / seconds[0])));
    largest_before = std::max(largest_before, std::abs(std::log(slow.works.at(key)[0] / seconds[0])));
  }
  EXPECT_LT(largest, 0.02);
  EXPECT_GT(largest_before, 0.1);
}

TEST_F(SpeedModelTest, ProbesThatHaveNothingToDoWithTheTimesChangeNothing) {
  SpeedModel model;
  std::mt19937 random(1);
  std::uniform_real_distribution<double> some(0, 0.3);
  for (int i = 0; i < 200; ++i) {
    CalibrationSamples samples = visit(some(random), some(random));
    samples.speed = slower_by(some(random), some(random));
    model.add(task, samples);
  }
  model.fit();
  CalibrationSamples samples = visit(0, 0);
  samples.speed = slower_by(0.3, 0);
  const CalibrationSamples moved = model.moved(samples, task, slower_by(0, 0));
  for (const auto& [key, seconds] : samples.works) EXPECT_NEAR(moved.works.at(key)[0] / seconds[0], 1, 0.03) << key;
}

TEST_F(SpeedModelTest, VisitsWithoutASpeedStayAsTheyAre) {
  SpeedModel model;
  for (int i = 0; i < 20; ++i) model.add(task, visit(0.01 * i, 0));
  model.fit();
  CalibrationSamples samples = visit(0.2, 0);
  samples.speed.reset();
  EXPECT_EQ(model.moved(samples, task, slower_by(0, 0)).works, samples.works);
  EXPECT_EQ(SpeedModel().moved(visit(0.2, 0), task, slower_by(0, 0)).works, visit(0.2, 0).works);
}

TEST_F(SpeedModelTest, TransfersMoveWithTheMemoryThatAllRead) {
  CalibrationTask transfer = task;
  transfer.kind = CalibrationTask::Kind::transfers;
  const auto sent = [](double memory) {
    CalibrationSamples samples;
    samples.link.transfers = {1e-3 * (1 + kOfMemory * memory)};
    samples.link.send_overheads = {1e-5 * (1 + kOfMemory * memory)};
    samples.speed = slower_by(memory, 0);
    samples.speed->memory_alone_s = kMemory_s;  // nothing follows from it
    return samples;
  };
  SpeedModel model;
  for (int i = 0; i < 100; ++i) model.add(transfer, sent(0.003 * i));
  model.fit();
  const CalibrationSamples moved = model.moved(sent(0.25), transfer, slower_by(0, 0));
  EXPECT_NEAR(moved.link.transfers[0], 1e-3, 2e-5);
  EXPECT_NEAR(moved.link.send_overheads[0], 1e-5, 2e-7);
}

TEST_F(SpeedModelTest, TransfersMoveWithTheWayBetweenCoresAndOpsDont) {
  CalibrationTask transfer = task;
  transfer.kind = CalibrationTask::Kind::transfers;
  const auto apart = [](CalibrationSamples samples, bool is_apart) {
    samples.speed->core_to_core_s = is_apart ? 3.3e-7 : 1e-7;
    return samples;
  };
  const auto sent = [&](bool is_apart) {
    CalibrationSamples samples;
    samples.link.transfers = {is_apart ? 1.5e-3 : 1e-3};
    samples.speed = slower_by(0, 0);
    return apart(samples, is_apart);
  };
  SpeedModel model;
  for (int i = 0; i < 50; ++i) model.add(transfer, sent(i % 3 == 0)), model.add(task, apart(visit(0, 0), i % 3 == 0));
  model.fit();
  EXPECT_NEAR(model.moved(sent(true), transfer, sent(false).speed).link.transfers[0], 1e-3, 1e-5);
  EXPECT_NEAR(model.moved(sent(false), transfer, sent(true).speed).link.transfers[0], 1.5e-3, 1e-5);
  CalibrationSamples unknown = sent(false);
  unknown.speed->core_to_core_s = 0;
  EXPECT_GT(model.moved(unknown, transfer, sent(false).speed).link.transfers[0], 0.8e-3);
  const CalibrationSamples ops = apart(visit(0, 0), true);
  EXPECT_EQ(model.moved(ops, task, apart(ops, false).speed).works, ops.works);
}

// 0.3 MB: 0.1 us longer where the cores share a cache, 110 where the host keeps them apart.
TEST_F(SpeedModelTest, RewritingsMoveByWhatARoundTripTakesLonger) {
  CalibrationTask transfer = task;
  transfer.kind = CalibrationTask::Kind::transfers;
  const auto sent = [](double trip_s) {
    CalibrationSamples samples;
    samples.link.transfers = {1e-5};
    samples.link.rewritings.assign(2, {0.1e-6 + 250 * (trip_s - 120e-9)});
    samples.speed = slower_by(0, 0);
    samples.speed->core_to_core_s = trip_s;
    return samples;
  };
  SpeedModel model;
  for (int i = 0; i < 9; ++i) model.add(transfer, sent(i % 3 == 0 ? 560e-9 : 120e-9));
  model.fit();
  const auto moved = [&](double from_s, double to_s) {
    return rewriting_s(model.moved(sent(from_s), transfer, sent(to_s).speed).link);
  };
  for (const auto& [from_s, to_s] : {std::pair(120e-9, 560e-9), {560e-9, 120e-9}, {340e-9, 560e-9}})
    EXPECT_NEAR(moved(from_s, to_s), rewriting_s(sent(to_s).link), 1e-6) << from_s << " " << to_s;
  CalibrationTask unknown = transfer;  // no visit of it
  unknown.id = "unknown";
  EXPECT_EQ(model.moved(sent(120e-9), unknown, sent(560e-9).speed).link.rewritings, sent(120e-9).link.rewritings);
  CalibrationSamples without = sent(120e-9);
  without.speed->core_to_core_s = 0;
  EXPECT_EQ(model.moved(without, transfer, sent(560e-9).speed).link.rewritings, without.link.rewritings);
}

// Sixteen linear layers by two threads of a rank: 8.0 ms, and 14.4 while the host keeps their cores apart.
TEST_F(SpeedModelTest, OpsOfSeveralThreadsMoveWithTheWayBetweenCores) {
  task.program.set_threads(2);
  const auto visited = [&](bool is_apart) {
    CalibrationSamples samples = visit(0, 0);
    samples.speed->core_to_core_s = is_apart ? 5.6e-7 : 1.25e-7;
    for (auto& [key, seconds] : samples.works)
      if (is_apart) seconds[0] *= 1.8;
    return samples;
  };
  SpeedModel model;
  for (int i = 0; i < 50; ++i) model.add(task, visited(i % 3 == 0));
  model.fit();
  const CalibrationSamples near = visited(false), moved = model.moved(visited(true), task, near.speed);
  for (const auto& [key, seconds] : near.works) EXPECT_NEAR(moved.works.at(key)[0] / seconds[0], 1, 0.01) << key;
}

TEST(MachineSpeed, IsTheMeanOfBeforeAndAfterAndSaysHowMuchItChanged) {
  const MachineSpeed speed = between(slower_by(0, 0), slower_by(0.2, 0.1));
  EXPECT_DOUBLE_EQ(speed.compute_s, kCompute_s * 1.05);
  EXPECT_DOUBLE_EQ(speed.memory_alone_s, kMemory_s * 1.1);
  EXPECT_NEAR(speed.change, 0.2 / 1.1, 1e-12);
  EXPECT_EQ(speed.core_to_core_s, 0);
  MachineSpeed known = slower_by(0, 0);
  known.core_to_core_s = 1e-7;
  EXPECT_EQ(between(known, slower_by(0, 0)).core_to_core_s, 1e-7) << "the one that is known";
}

// One of vgg11's probes took 30 ms in place of 1.1: its forecast came out three times too long.
TEST(MachineSpeed, AnInterruptedPartIsNone) {
  std::vector<double> parts_s(16, 7e-5);
  EXPECT_DOUBLE_EQ(uninterrupted_s(parts_s), 16 * 7e-5);
  parts_s[3] = 0.03;
  EXPECT_DOUBLE_EQ(uninterrupted_s(parts_s), 16 * 7e-5);
  parts_s[3] = 1.4e-4;  // slower, as memory is at times
  EXPECT_DOUBLE_EQ(uninterrupted_s(parts_s), 17 * 7e-5);
  EXPECT_DOUBLE_EQ(uninterrupted_s(std::vector{0.5}), 0.5);
}

TEST(MachineSpeed, InWords) {
  EXPECT_EQ(describe_speeds({}), "");
  EXPECT_EQ(describe_speeds({{0, {slower_by(0, 0)}}, {1, {slower_by(0.02, 0.01)}}}), "");
  EXPECT_EQ(
      describe_speeds({{0, {slower_by(0, 0.09)}}, {1, {slower_by(0.1, 0)}}, {4, {slower_by(0.18, 0)}}}),
      "reading memory was 18 % slower in round 5 than in round 1, computing was 9 % slower in round 1 than in round 2");
  MachineSpeed unsteady = slower_by(0, 0);
  unsteady.change = 0.12;
  EXPECT_EQ(describe_speeds({{0, {unsteady}}}), "the memory's speed changed by 12 % within a visit");
  MachineSpeed near = slower_by(0, 0), apart = near, alone = near;
  near.core_to_core_s = 1e-7, apart.core_to_core_s = 3.4e-7;
  EXPECT_EQ(describe_speeds({{0, {alone}}, {1, {near}}, {2, {apart}}, {3, {near}}}),
            "data took 3.4 times as long from core to core in round 3 as in round 2: the host had moved them apart");
  apart.core_to_core_s = 1.5e-7;
  EXPECT_EQ(describe_speeds({{0, {near}}, {1, {apart}}}), "");
}

}  // namespace
}  // namespace sim
