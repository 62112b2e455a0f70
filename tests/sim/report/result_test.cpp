#include "sim/report/result.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "sim/error.hpp"
#include "sim/report/report.hpp"
#include "sim/text/spec.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::replaced;

Result sample_result() {
  Result result;
  result.context["device"] = "cpu";
  Cell& cell = result.cell("toy_mlp,global_batch=20", "ddp,dp=2", "gloo");
  cell.ranks = cell.replicas = 2;
  cell.global_batch = 20;
  cell.verify_error = 1e-15;
  cell.memory.predicted_peak_bytes = 4096;
  cell.memory.predicted_at_peak_bytes["weight"] = 1024;
  for (int round = 0; round < 2; ++round) {
    Round& r = cell.rounds.emplace_back();
    r.round = round;
    r.predicted["profiled"] = {1.5, 1, 0.25, 0.125, 0.125};
    r.replayed_s = 1.25;
    r.measured = {{1.25, 1, 0.25, 0, 0}, {1.5, 1, 0.5, 0, 0}};
    r.attribution["profiled"] = {{"linear.forward", 1, 0.5, 0.5}, {"rest", 0, 0, -0.25}};
  }
  result.cell("toy_mlp,global_batch=20", "single", "gloo").skipped = "no such world";
  return result;
}

std::string message_of(const std::string& text) {
  try {
    result_from_json(text, "r.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Result, RoundTripsThroughItsFile) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / ("result_test_" + std::to_string(::getpid()) + ".json");
  const Result result = sample_result();
  EXPECT_EQ(resume_or_new(path, {{"device", "cpu"}}).cells.size(), 0U);
  save_result(path, result);
  const Result same = resume_or_new(path, {});
  std::filesystem::remove(path);
  EXPECT_EQ(same.cells, result.cells);
  EXPECT_EQ(same.context, result.context);
  EXPECT_EQ(to_json(same), to_json(result));
}

TEST(Result, KnowsWhereToGoOn) {
  Result result;
  EXPECT_EQ(result.next_round(), 0);
  result.cell("m", "ddp,dp=2", "gloo").skipped = "why";
  EXPECT_EQ(result.next_round(), 0);
  result.cell("m", "single", "gloo").rounds.push_back({});
  EXPECT_EQ(result.next_round(), 1);
  result.cell("m", "pipeline", "gloo");  // a cell that joined later needs round 0
  EXPECT_EQ(result.next_round(), 0);
  Round third;
  third.round = 2;
  result.cell("m", "pipeline", "gloo").rounds = {Round{}, third};
  EXPECT_EQ(result.next_round(), 1);
  EXPECT_EQ(result.cells.size(), 3U);
  EXPECT_EQ(result.cell("m", "single", "gloo", "pytorch").rounds.size(), 0U);  // a peer is a cell of its own
  EXPECT_EQ(result.cells.size(), 4U);
}

TEST(Result, CellOfAProgramHasItsNumbers) {
  Program program;
  program.model = "m,global_batch=24";
  program.strategy = "mesh";
  program.global_batch = 24;
  program.replicas = 2;
  program.microbatches = 3;
  for (std::uint32_t r = 0; r < 2; ++r) {
    Role& role = program.roles.emplace_back();
    role.ranks = {r};
    role.add_tensor("w", {Dtype::f32, {64 + r}}, TensorClass::weight, true);
  }
  Result result;
  Cell& cell = result.cell(program, "local");
  EXPECT_EQ(cell.ranks, 2);
  EXPECT_EQ(cell.replicas, 2);
  EXPECT_EQ(cell.microbatches, 3);
  EXPECT_EQ(cell.global_batch, 24);
  EXPECT_FALSE(cell.memory.predicted_peak_bytes);  // a lookup doesn't compute
  Cluster cluster = testing::plain_cluster(2);
  cluster.device.memory_capacity = bytes(259);
  place(cell, program, cluster);
  EXPECT_EQ(cell.device, "core");
  EXPECT_EQ(cell.devices, 2);
  EXPECT_EQ(cell.memory.needed(), 65 * 4);
  EXPECT_EQ(cell.memory.capacity_bytes, 259);
  EXPECT_FALSE(cell.memory.fits().value());
  EXPECT_EQ(cell.memory.predicted_peak_bytes, 65 * 4);  // the fuller rank
  EXPECT_EQ(cell.memory.predicted_at_peak_bytes.at("weight"), 65 * 4);
  EXPECT_EQ(&result.cell(program, "local"), &cell);
}

TEST(Result, StepTimeIsTheMeanOverRanks) {
  Timeline timeline;
  timeline.step_s = 10;
  timeline.ranks.resize(2);
  timeline.ranks[0].compute_s = 10;
  timeline.ranks[1].compute_s = 4;
  timeline.ranks[1].exposed_communication_s = 1;
  timeline.ranks[1].bubble_s = 3;
  timeline.ranks[1].host_s = 2;
  EXPECT_EQ(step_time(timeline), (StepTime{10, 7, 0.5, 1.5, 1}));
  EXPECT_EQ(mean({{1, 2, 3, 4, 5}, {3, 4, 5, 6, 7}}), (StepTime{2, 3, 4, 5, 6}));
}

TEST(Result, SaysWhatIsWrongWithAFile) {
  const std::string good = to_json(sample_result());
  EXPECT_EQ(message_of(good), "no error");
  EXPECT_EQ(message_of(replaced(good, "paragauge-result-1", "paragauge-result-0")),
            "r.json: format 'paragauge-result-0' is older than 'paragauge-result-1'; measure again into a new file");
  EXPECT_EQ(message_of(replaced(good, "paragauge-result-1", "paragauge-result-2")),
            "r.json: format 'paragauge-result-2' is newer than 'paragauge-result-1'; it needs a newer paragauge");
  EXPECT_EQ(message_of(replaced(good, "paragauge-result-1", "paragauge-profile-2")),
            "r.json: format 'paragauge-profile-2' is not 'paragauge-result-1'");
  const std::string half = good.substr(0, good.size() / 2);
  EXPECT_EQ(message_of(half), "r.json: not valid JSON at byte " + std::to_string(half.size() + 1) + " of " +
                                  std::to_string(half.size()) + " (the file is truncated)");
  EXPECT_EQ(message_of(replaced(good, "\"replayed_s\": 1.25", "\"replayed_s\": -1.25")),
            "r.json: cells[0]: rounds[0]: 'replayed_s' must be positive, found -1.25");
  EXPECT_EQ(message_of(replaced(good, "\"round\": 1", "\"round\": 0")),
            "r.json: cells[0]: rounds[1]: round 0 is there twice");
  EXPECT_EQ(message_of(
                replaced(good, "\"strategy\": \"ddp,dp=2\",\n   \"world\"", "\"strategy\": \"single\",\n   \"world\"")),
            "r.json: cells[1]: the cell toy_mlp,global_batch=20 × single × gloo × paragauge is there twice");
  EXPECT_EQ(message_of(replaced(good, "\"bubble_s\": [\n       0.0,", "\"bubble_s\": [")),
            "r.json: cells[0]: rounds[0]: measured: 'bubble_s' has 1 values, 'step_s' has 2");
  EXPECT_EQ(message_of(replaced(good, "\"microbatches\": 1", "\"microbatches\": 0")),
            "r.json: cells[0]: 'microbatches' must be at least 1, found 0");
  EXPECT_EQ(message_of(replaced(good, "\"skipped\": null,\n   \"verify_error\": 1e-15",
                                "\"skipped\": null, \"verify_error\": \"no\"")),
            "r.json: cells[0]: 'verify_error' must be a number, found \"no\"");
  EXPECT_EQ(message_of(replaced(good, "\"strategy\": \"single\",\n   \"world\"",
                                "\"strategy\": \"single,dp\",\n   \"world\"")),
            "r.json: cells[1]: strategy 'single,dp': 'dp' has no '='; expected key=value");
  EXPECT_EQ(message_of(replaced(good, "\"skipped\": null", "\"skiped\": null")),
            "r.json: cells[0]: 'skipped' is missing");
}

}  // namespace
}  // namespace sim
