#include "sim/report/result.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/report/report.hpp"
#include "sim/text/spec.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::replaced;

Result sample_result() {
  Result result;
  result.kind = "compare";
  result.begin_session({{"device", "cpu"}}, "r.json");
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
    r.stated_90["profiled"] = {1.25, 1.75};
    if (round == 0) r.novelty["profiled"] = 0.25, r.guesses["profiled"] = {"broadcast among 2 (data sheet)"};
    if (round == 0) r.speed = {0.0015, 0.0035, 0.004, 0.125};
    r.replayed_s = 1.25;
    r.measured = {{1.25, 1, 0.25, 0, 0}, {1.5, 1, 0.5, 0, 0}};
    cell.attribution["profiled"].add({{"linear.forward", 1, 0.5, 0.5}, {"rest", 0, 0, -0.25}});
  }
  result.cell("toy_mlp,global_batch=20", "single", "gloo").skipped = "no such world";
  return result;
}

/// The sample in an older format, but for its rounds.
nlohmann::ordered_json without_rounds(int format) {
  nlohmann::ordered_json file = nlohmann::ordered_json::parse(to_json(sample_result()));
  file["format"] = fmt::format("paragauge-result-{}", format);
  for (nlohmann::ordered_json& cell : file["cells"]) cell["rounds"] = nlohmann::ordered_json::array();
  return file;
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
  const testing::TemporaryFolder folder;
  Result result = sample_result();
  result.cell("toy_mlp,global_batch=20", "single", "gloo", kPeers[1]).settings = "fused updates, channels_last";
  EXPECT_EQ(resume_or_new(folder / "r.json", "compare").cells.size(), 0U);
  save_result(folder / "r.json", result, /*with_samples=*/true);
  const Result same = resume_or_new(folder / "r.json", "compare");
  EXPECT_EQ(same.cells, result.cells);
  EXPECT_EQ(same.kind, "compare");
  ASSERT_EQ(same.sessions.size(), 1U);
  EXPECT_EQ(same.sessions[0].context, result.sessions[0].context);
  EXPECT_EQ(to_json(same, true), to_json(result, true));
}

// Without the samples: a line per value, and everything that the report says of the rounds.
TEST(Result, IsCompactUnlessAskedForSamples) {
  const Result result = sample_result();
  const std::string text = to_json(result);
  EXPECT_NE(text.find(R"x("rounds":{
   "round":[0,1],
   "predicted":{"profiled":[[1.5,1.0,0.25,0.125,0.125],[1.5,1.0,0.25,0.125,0.125]]},
   "stated_90":{"profiled":[[1.25,1.75],[1.25,1.75]]},
   "novelty":{"profiled":[0.25,null]},
   "guesses":{"profiled":[["broadcast among 2 (data sheet)"],null]},
   "speed":[[0.0015,0.0035,0.004,0.125],null],
   "replayed_s":[1.25,1.25],
   "measured":{"count":[2,2],"mean":[[1.375,1.0,0.375,0.0,0.0],[1.375,1.0,0.375,0.0,0.0]],"sd_s":[0.177,0.177],"median_s":[1.375,1.375]}
  }})x"),
            std::string::npos)
      << text;
  for (const char* absent : {"\"samples\":", "\"columns\":", "\"rows\":", "\"summary\":", "\"measured_peak_bytes\":"})
    EXPECT_EQ(text.find(absent), std::string::npos) << absent;
  const Result same = result_from_json(text, "r.json");
  const RoundSteps& steps = same.cells[0].rounds[0].measured;
  EXPECT_EQ(steps.count, 2U);
  EXPECT_EQ(steps.mean, (StepTime{1.375, 1, 0.375, 0, 0}));
  EXPECT_NEAR(steps.sd_s, 0.125 * std::sqrt(2.0), 1e-3);
  EXPECT_TRUE(steps.samples.empty());
  EXPECT_EQ(same.cells[0].attribution, result.cells[0].attribution);
  const auto cells = [](const std::string& json) { return nlohmann::json::parse(json)["cells"]; };
  EXPECT_EQ(cells(to_json(same)), cells(text));
}

TEST(Result, AForecastThatStaysIsWrittenOnce) {
  Result result = sample_result();
  std::vector<Round>& rounds = result.cells[0].rounds;
  rounds[1].novelty = rounds[0].novelty;
  rounds[1].guesses = rounds[0].guesses;
  for (Round& round : rounds) round.predicted["analytic"] = {1, 1, 0, 0, 0};
  rounds[1].predicted["analytic"].step_s = 2;
  const std::string text = to_json(result, /*with_samples=*/true);
  EXPECT_NE(text.find(R"("profiled":[[1.5,1.0,0.25,0.125,0.125],null])"), std::string::npos) << text;
  EXPECT_NE(text.find(R"("as_before":[null,["profiled"]])"), std::string::npos) << text;
  EXPECT_EQ(result_from_json(text, "r.json").cells, result.cells);
  EXPECT_EQ(message_of(replaced(text, R"("as_before":[null,)", R"("as_before":[["fitted"],)")),
            "r.json: cells[0]: rounds[0]: 'as_before' names 'fitted', of which the round before has no forecast");
}

// A peer has our forecasts, and the machine was as fast: the file says so once.
TEST(Result, APeersRoundsSayOnlyWhatItMeasured) {
  Result result = sample_result();
  Cell& peer = result.cell("toy_mlp,global_batch=20", "ddp,dp=2", "gloo", kPeers[0]);
  for (Round round : result.cells[0].rounds) {
    round.replayed_s.reset();
    round.measured = {{2, 2, 0, 0, 0}};
    peer.rounds.push_back(round);
  }
  const std::string text = to_json(result, /*with_samples=*/true);
  EXPECT_NE(text.find(R"("as_ours":true,"rounds":{
   "round":[0,1],
   "measured":)"),
            std::string::npos)
      << text;
  EXPECT_EQ(result_from_json(text, "r.json").cells, result.cells);
  EXPECT_EQ(message_of(replaced(text, "\"round\":[0,1],\n   \"measured\"", "\"round\":[0,2],\n   \"measured\"")),
            "r.json: cells[2]: 'as_ours', but no cell of ours before it has round 2");
  EXPECT_EQ(message_of(replaced(text, "\"round\":[0,1],\n   \"measured\"",
                                "\"round\":[0,1],\n   \"speed\":[null,[1,1,1,1]],\n   \"measured\"")),
            "r.json: cells[2]: 'as_ours', but round 1 has forecasts or a speed of its own");

  peer.rounds[1].speed = {0.002, 0.004, 0.004, 0.1, 2.5e-7};  // or else it says all by itself
  const std::string alone = to_json(result, /*with_samples=*/true);
  EXPECT_EQ(alone.find("as_ours"), std::string::npos);
  EXPECT_EQ(result_from_json(alone, "r.json").cells, result.cells);
}

// Until format 3 there was an object for each round.
TEST(Result, RoundsOfObjectsAreRead) {
  const Result result = sample_result();
  nlohmann::ordered_json file = without_rounds(3);
  file["cells"][0]["rounds"] = nlohmann::ordered_json::parse(R"x([
    {"round": 0, "predicted": {"profiled": [1.5, 1, 0.25, 0.125, 0.125]}, "stated_90": {"profiled": [1.25, 1.75]},
     "novelty": {"profiled": 0.25}, "guesses": {"profiled": ["broadcast among 2 (data sheet)"]}, "replayed_s": 1.25,
     "speed": [0.0015, 0.0035, 0.004, 0.125],
     "measured": {"count": 2, "mean": [1.375, 1, 0.375, 0, 0], "sd_s": 0.177, "median_s": 1.375}},
    {"round": 1, "predicted": {"profiled": [1.5, 1, 0.25, 0.125, 0.125]}, "stated_90": {"profiled": [1.25, 1.75]},
     "replayed_s": 1.25, "measured": {"count": 2, "mean": [1.375, 1, 0.375, 0, 0], "sd_s": 0.177, "median_s": 1.375}}])x");
  EXPECT_EQ(to_json(result_from_json(file.dump(), "r.json")), to_json(result));
}

TEST(Result, StepsOfARoundByHand) {
  RoundSteps steps{{4, 1, 0, 0, 0}, {1, 1, 0, 0, 0}, {2, 4, 0, 0, 0}};
  EXPECT_NEAR(steps.mean.step_s, 7.0 / 3, 1e-15);
  EXPECT_NEAR(steps.sd_s, std::sqrt((16.0 / 9 + 1.0 / 9 + 25.0 / 9) / 2), 1e-15);
  EXPECT_EQ(steps.median_s, 2);
  steps.add(std::vector<StepTime>{{8, 0, 0, 0, 0}});
  EXPECT_EQ(steps.median_s, 3);
  EXPECT_EQ(steps.count, 4U);
  EXPECT_EQ(RoundSteps({{5, 0, 0, 0, 0}}).sd_s, 0);
}

// A round that says nothing of what carries the error isn't counted as one where nothing did.
TEST(Result, AttributionIsTheMeanOverTheRoundsThatHaveOne) {
  const std::string file =
      R"({"format": "paragauge-result-1", "context": {}, "columns": [], "rows": [], "summary": [], "cells": [
      {"model": "m", "strategy": "single", "world": "local", "executor": "paragauge", "ranks": 1, "replicas": 1,
       "microbatches": 1, "global_batch": 1, "skipped": null, "verify_error": null,
       "memory": {"predicted_at_peak_bytes": {}}, "rounds": [ROUNDS]}]})";
  std::string rounds;
  for (int i = 0; i < 3; ++i)
    rounds += fmt::format(
        "{}{{\"round\": {}, \"predicted\": {{}}, \"replayed_s\": null, \"measured\": {{\"step_s\": [1], \"compute_s\": "
        "[1], "
        "\"exposed_communication_s\": [0], \"bubble_s\": [0], \"host_s\": [0]}}, \"attribution\": {}}}",
        i > 0 ? "," : "", i,
        i == 1 ? "{}" : R"({"m": [{"class": "x", "predicted_s": 2, "measured_s": 1, "effect_s": 0.5}]})");
  const Result result = result_from_json(replaced(file, "ROUNDS", rounds), "r.json");
  const Attribution& attribution = result.cells[0].attribution.at("m");
  EXPECT_EQ(attribution.rounds, 2U);
  EXPECT_EQ(attribution.effects_s, (std::map<std::string, double>{{"x", 0.5}}));
}

// The same file by hand in both formats.
TEST(Result, OldFilesAreRead) {
  const Result old = load_result(testing::tests_folder() / "golden" / "old_result.json"),
               today = load_result(testing::tests_folder() / "golden" / "result_synthetic.json");
  const auto cells = [](const Result& result) { return nlohmann::json::parse(to_json(result))["cells"]; };
  EXPECT_FALSE(old.cells.empty());
  EXPECT_EQ(cells(old), cells(today));
}

// Until format 2 the buckets of `ddp` and `mesh` waited for the end of the backward, unless they said overlap=1.
TEST(Result, OldStrategiesHaveTodaysNames) {
  const std::string good = without_rounds(2).dump();
  const auto read = [&](const std::string& strategy) {
    const std::string renamed =
        replaced(good, "\"strategy\":\"ddp,dp=2\",\"world\":\"gloo\",\"executor\":\"paragauge\",\"ranks\"",
                 "\"strategy\":\"" + strategy + "\",\"world\":\"gloo\",\"executor\":\"paragauge\",\"ranks\"");
    return result_from_json(replaced(renamed, "\"program\":\"\"", "\"program\":\"abc\""), "r.json").cells[0];
  };
  EXPECT_EQ(read("ddp,dp=2").strategy, "ddp_blocking,dp=2");
  EXPECT_EQ(read("ddp,dp=2,bucket_MiB=1,overlap=1,broadcast_buffers=0").strategy,
            "ddp,dp=2,bucket_MiB=1,broadcast_buffers=0");
  EXPECT_EQ(read("mesh,dp=2,pp=2,broadcast_buffers=0").strategy, "mesh,dp=2,pp=2,overlap=0,broadcast_buffers=0");
  EXPECT_EQ(read("mesh,dp=2,pp=2").strategy, "mesh,dp=2,pp=2,overlap=0");
  EXPECT_EQ(read("mesh,dp=2,overlap=1").strategy, "mesh,dp=2");
  EXPECT_EQ(read("mesh,pp=2").strategy, "mesh,pp=2");
  EXPECT_EQ(read("data_parallel,dp=2").strategy, "data_parallel,dp=2");
  EXPECT_EQ(read("data_parallel,dp=2").program, "abc");
  EXPECT_EQ(read("ddp,dp=2").program, "");  // the hash of a text with the old name
  const Result again = result_from_json(to_json(sample_result()), "r.json");
  EXPECT_EQ(again.cells[0].strategy, "ddp,dp=2");
}

TEST(Result, OldFilesKnowTheirKindAndCpu) {
  const std::string file =
      R"({"format": "paragauge-result-1", "columns": [], "rows": [], "summary": [], "cells": [
      {"model": "m", "strategy": "single", "world": "local", "executor": "paragauge", "ranks": 1, "replicas": 1,
       "microbatches": 1, "global_batch": 1, "skipped": "why", "verify_error": null,
       "memory": {"predicted_at_peak_bytes": {}}, "rounds": []}], "context": {"device": "cpu",
       "command": "build/bin/paragauge compare -m m", "environment": {"cpu": {"model": "A CPU"}}}})";
  const Result result = result_from_json(file, "r.json");
  EXPECT_EQ(result.kind, "compare");
  EXPECT_EQ(result.cells[0].device, "A CPU");
}

TEST(Result, RefusesWhatItCannotGoOnWith) {
  using testing::message_of;
  const testing::TemporaryFolder folder;
  const std::string path = (folder / "r.json").string();
  save_result(path, sample_result());
  EXPECT_EQ(message_of([&] { resume_or_new(path, "compare"); }), "no error");
  const std::string expected =
      path +
      ": is a result of 'compare' (2 rounds), which 'predict' neither goes on with nor replaces: choose another file";
  EXPECT_EQ(message_of([&] { resume_or_new(path, "predict"); }), expected);
  EXPECT_EQ(message_of([&] { check_replaceable(path, "predict"); }), expected);
  EXPECT_EQ(message_of([&] { check_replaceable(path, "compare"); }), "no error");
  EXPECT_EQ(message_of([&] { check_replaceable(folder / "none.json", "predict"); }), "no error");
  EXPECT_EQ(message_of([&] { check_replaceable(folder.file("empty.json", ""), "predict"); }), "no error");
  EXPECT_EQ(message_of([&] { check_replaceable("/dev/null", "predict"); }), "no error");
  const std::string profile = folder.file("p.json", R"({"format": "paragauge-profile-2"})");
  EXPECT_EQ(message_of([&] { check_replaceable(profile, "predict"); }),
            profile + ": format 'paragauge-profile-2' is not 'paragauge-result-4'");
}

TEST(Result, RefusesRoundsOfOtherConditions) {
  using testing::message_of;
  const nlohmann::json context{{"device", "cpu"},
                               {"scheduling", "SCHED_FIFO"},
                               {"network", ""},
                               {"environment", {{"cpu", {{"model", "A CPU"}, {"MHz", 1}}}, {"commit", "a"}}},
                               {"options", {{"steps", 2}}}};
  Result result;
  result.begin_session(context, "r.json");
  result.cell("m", "single", "local").rounds.push_back({});
  const auto message = [&](const char* key, const nlohmann::json& value) {
    nlohmann::json other = context;
    other[nlohmann::json::json_pointer(key)] = value;
    return message_of([&] { result.check_conditions(other, "r.json"); });
  };
  EXPECT_EQ(message("/scheduling", "time-shared"),
            "r.json: its rounds were taken with scheduling \"SCHED_FIFO\", not \"time-shared\": choose another file");
  EXPECT_EQ(message("/options/steps", 3),
            "r.json: its rounds were taken with options/steps 2, not 3: choose another file");
  for (const char* key : {"/device", "/network", "/environment/cpu/model"})
    EXPECT_NE(message(key, "other"), "no error") << key;
  for (const char* key : {"/environment/commit", "/environment/cpu/MHz", "/command"})  // kept, not compared
    EXPECT_EQ(message(key, "other"), "no error") << key;
  nlohmann::json later = context;
  later["environment"]["commit"] = "b";
  result.begin_session(later, "r.json");
  const Result same = result_from_json(to_json(result), "r.json");
  ASSERT_EQ(same.sessions.size(), 2U);
  EXPECT_EQ(same.sessions[0].context, context);
  EXPECT_EQ(same.sessions[1].context, later);
  EXPECT_EQ(same.sessions[1].first_round, 1);
}

// The model's file changes between two runs, its name doesn't.
TEST(Result, RefusesRoundsOfAnotherProgram) {
  const auto program = [](int rows) {
    return program_from_text(
        fmt::format("paragauge-program-2\nwork relu.forward f32[{0}] inplace=0\nrole one ranks=0\ntensor x f32[{0}] "
                    "input persistent\n"
                    "0 compute w0 : x -> x\n",
                    rows));
  };
  Result result;
  Cell& cell = result.cell("m.json", "single", "local");
  check_program(cell, program(4), "r.json");
  cell.rounds.push_back({});
  EXPECT_EQ(cell.program.size(), 16U);
  Result same = result_from_json(to_json(result), "r.json");
  check_program(same.cells[0], program(4), "r.json");
  EXPECT_EQ(
      testing::message_of([&] { check_program(same.cells[0], program(8), "r.json"); }),
      "r.json: m.json × single × local was another program when its rounds were taken: the model's file, or the code "
      "that lowers it, has changed; choose another file");
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
  EXPECT_EQ(result.next_round(), 1);  // what a peer lacks can't be made up for without ours in the same round
}

TEST(Result, CellOfAProgramHasItsNumbers) {
  Program program;
  program.model = "m,global_batch=24";
  program.strategy = "mesh";
  program.global_batch = 24;
  program.mesh.axes = {{"dp", 2}};
  program.rows = {shard(0)};
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

TEST(Result, KeepsWhatEachDeviceNeeds) {
  const Model model = load_model("toy_mlp,global_batch=64");
  const Program program = lower(model, parse_strategy("data_parallel,dp=8", model));
  Result result;
  place(result.cell(program, "dgx_a100"), program, load_cluster("dgx_a100", 8));
  const CellMemory& memory = result.cells[0].memory;
  ASSERT_EQ(memory.by_device.size(), 2U);
  EXPECT_EQ(memory.by_device[0].ranks, "0");
  EXPECT_EQ(memory.by_device[0].needed_bytes, memory.needed_bytes);
  EXPECT_EQ(memory.by_device[1].ranks, "1-7");
  EXPECT_EQ(memory.by_device[1].devices, 7);
  EXPECT_EQ(memory.least_needed(), memory.by_device[1].needed());
  EXPECT_EQ(result_from_json(to_json(result), "r.json").cells[0].memory, memory);
  EXPECT_EQ(CellMemory{}.least_needed(), std::nullopt);  // of an older file
  // A stage's replicas lie apart: of many the first and the last are named.
  const Program stages = lower(model, parse_strategy("dp=8,pp=3,order=dp-pp-tp", model));
  Cell cell;
  place(cell, stages, load_cluster("dgx_a100", 24, 24));
  ASSERT_EQ(cell.memory.by_device.size(), 3U);
  EXPECT_EQ(cell.memory.by_device[0].ranks, "0,3,6,…,21");
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
  EXPECT_EQ(step_time(Program{}, timeline), (StepTime{10, 7, 0.5, 1.5, 1}));
  EXPECT_EQ(mean({{1, 2, 3, 4, 5}, {3, 4, 5, 6, 7}}), (StepTime{2, 3, 4, 5, 6}));
}

TEST(Result, SaysWhatIsWrongWithAFile) {
  const std::string good = to_json(sample_result());
  EXPECT_EQ(message_of(good), "no error");
  EXPECT_EQ(message_of(replaced(good, "paragauge-result-4", "paragauge-result-0")),
            "r.json: format 'paragauge-result-0' is older than 'paragauge-result-4'; measure again into a new file");
  EXPECT_EQ(message_of(replaced(good, "paragauge-result-4", "paragauge-result-5")),
            "r.json: format 'paragauge-result-5' is newer than 'paragauge-result-4'; it needs a newer paragauge");
  EXPECT_EQ(message_of(replaced(good, "paragauge-result-4", "paragauge-profile-2")),
            "r.json: format 'paragauge-profile-2' is not 'paragauge-result-4'");
  const std::string half = good.substr(0, good.size() / 2);
  EXPECT_TRUE(message_of(half).ends_with(" (the file is truncated)")) << message_of(half);
  EXPECT_EQ(message_of(replaced(good, "\"replayed_s\":[1.25,", "\"replayed_s\":[-1.25,")),
            "r.json: cells[0]: rounds[0]: 'replayed_s' must be positive, found -1.25");
  EXPECT_EQ(message_of(replaced(good, "[[1.25,1.75]", "[[1.75,1.25]")),
            "r.json: cells[0]: rounds[0]: stated_90: 'profiled' must be [low_s, high_s], found [1.75, 1.25]");
  EXPECT_EQ(message_of(replaced(good, "\"novelty\":{\"profiled\":[0.25", "\"novelty\":{\"profiled\":[1.25")),
            "r.json: cells[0]: rounds[0]: novelty: 'profiled' must be from 0 to 1, found 1.25");
  EXPECT_EQ(message_of(replaced(good, "\"speed\":[[0.0015,", "\"speed\":[[")),
            "r.json: cells[0]: rounds[0]: 'speed' must have 4 or 5 values, found 3");
  EXPECT_EQ(message_of(replaced(good, "\"round\":[0,1]", "\"round\":[0,0]")),
            "r.json: cells[0]: rounds[1]: round 0 is there twice");
  EXPECT_EQ(message_of(replaced(good, "\"round\":[0,1]", "\"round\":[0,null]")),
            "r.json: cells[0]: rounds[1]: 'round' is missing");
  EXPECT_EQ(message_of(replaced(good, "\"round\":[0,1]", "\"round\":2")),
            "r.json: cells[0]: rounds: 'round' must be a list");
  EXPECT_EQ(message_of(replaced(good, "\"sd_s\":[0.177,", "\"sd_s\":[0.177,0.2,")),
            "r.json: cells[0]: rounds: measured: 'sd_s' must be a list of 2, a value for each round");
  EXPECT_EQ(message_of(replaced(good, "\"round\":[0,1],", "")), "r.json: cells[0]: rounds: 'round' is missing");
  EXPECT_EQ(message_of(replaced(good, "\"strategy\":\"ddp,dp=2\",\"world\"", "\"strategy\":\"single\",\"world\"")),
            "r.json: cells[1]: the cell toy_mlp,global_batch=20 × single × gloo × paragauge is there twice");
  EXPECT_EQ(message_of(replaced(good, "[[1.5,1.0,0.25,0.125,0.125]", "[[1.5,1.0,0.25]")),
            "r.json: cells[0]: rounds[0]: predicted: 'profiled' must have 5 values, found 3");
  EXPECT_EQ(message_of(replaced(good, "\"count\":[2", "\"count\":[0")),
            "r.json: cells[0]: rounds[0]: measured: 'count' must be at least 1, found 0");
  EXPECT_EQ(message_of(replaced(good, "\"sd_s\":[0.177,", "\"sd_s\":[-0.177,")),
            "r.json: cells[0]: rounds[0]: measured: 'sd_s' must be from 0 to 2000000000 s, found -0.177");
  EXPECT_EQ(message_of(replaced(good, "\"sd_s\":[0.177,0.177]", "\"sd\":[[0.177,0.1],[0.1,0.1]]")),
            "r.json: cells[0]: rounds[0]: measured: 'sd' must have 5 values, found 2");
  const std::string sd = "[0.25,0.1,0.2,0.3,0.4]";
  const Result older =
      result_from_json(replaced(good, "\"sd_s\":[0.177,0.177]", "\"sd\":[" + sd + "," + sd + "]"), "r.json");
  EXPECT_EQ(older.cells[0].rounds[0].measured.sd_s, 0.25);
  EXPECT_EQ(message_of(replaced(to_json(sample_result(), true), "\"count\":[2", "\"count\":[3")),
            "r.json: cells[0]: rounds[0]: measured: 'samples' has 2 steps, 'count' says 3");
  EXPECT_EQ(message_of(replaced(good, "\"microbatches\":1", "\"microbatches\":0")),
            "r.json: cells[0]: 'microbatches' must be at least 1, found 0");
  EXPECT_EQ(message_of(replaced(good, "\"verify_error\":1e-15,\"memory\"", "\"verify_error\":\"no\",\"memory\"")),
            "r.json: cells[0]: 'verify_error' must be a number, found \"no\"");
  EXPECT_EQ(message_of(replaced(good, "\"skipped\":null", "\"skiped\":null")),
            "r.json: cells[0]: 'skipped' is missing");
}

}  // namespace
}  // namespace sim
