// The accuracy that README and the NOTEBOOK's claims state, from the result files (bench/results): every bound is at
// most 1.5 times the figure (tests/readme_test.py computes the figures themselves). The NOTEBOOK says how the files
// were made.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>

#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/plan/candidates.hpp"
#include "sim/report/accuracy.hpp"
#include "sim/simulate/forecast.hpp"
#include "tests/sim/cost/measured.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

const std::filesystem::path kResults = testing::tests_folder() / ".." / "bench" / "results";

/// What the NOTEBOOK's claims say of a file made by bench/accuracy.sh, `profiled`.
struct Claim {
  const char* file;
  double error_percent, bias_percent, relative_percent, noise_percent;
  std::size_t conclusive, cells;
};
constexpr Claim kClaims[] = {{"resnet18_64", 1.0, -0.4, 0.8, 1.6, 23, 26},
                             {"convnet", 0.7, -0.1, 0.7, 1.9, 14, 26},
                             {"resnet50", 1.0, -0.3, 1.7, 1.7, 11, 18},
                             {"vgg11", 0.7, 0.3, 1.2, 2.4, 6, 18},
                             {"resnet18_96", 0.8, -0.9, 0.5, 1.4, 15, 18}};
constexpr double kRoom = 1.5;

const ForecastSummary& summary_of(const Accuracy& accuracy, const std::string& cost_model) {
  for (const ForecastSummary& summary : accuracy.summaries)
    if (summary.executor == kOurs && summary.cost_model == cost_model) return summary;
  throw std::runtime_error("no forecasts of " + cost_model);
}

/// Of our own executor: a peer's cell has no timeline.
bool is_ours(const Cell& cell) { return cell.executor == kOurs && cell.skipped.empty(); }

/// Every forecast of a cost model times `factor`, but for `single`: a wrong relative forecast.
Result spoiled(Result result, const std::string& cost_model, double factor) {
  for (Cell& cell : result.cells)
    for (Round& round : cell.rounds)
      if (is_ours(cell) && cell.strategy != "single") round.predicted.at(cost_model).step_s *= factor;
  return result;
}

void expect_within(double value, double claimed_percent, const char* what) {
  EXPECT_LE(100 * std::abs(value), kRoom * std::abs(claimed_percent)) << what;
}

class CommittedResult : public ::testing::TestWithParam<const char*> {
 protected:
  Result result_ = load_result(kResults / (std::string(GetParam()) + ".json"));
};

// On every cell, conclusive or not: the replay takes the measured durations, so noise cancels. 1.8 % for overlapped ddp
// on gloo, 0.3 % elsewhere.
TEST_P(CommittedResult, StructureIsRight) {
  const Accuracy accuracy = assess(result_);
  for (std::size_t i = 0; i < result_.cells.size(); ++i) {
    const Cell& cell = result_.cells[i];
    if (!is_ours(cell)) continue;
    ASSERT_TRUE(accuracy.cells[i].structure.has_value());
    const bool overlaps = cell.strategy == "ddp,dp=2" && cell.world != "local";
    const bool is_short = std::string(GetParam()) == "hypar_pair";  // steps of 0.2 to 1 ms
    expect_within(accuracy.cells[i].structure->log_ratio, overlaps ? 1.8 : is_short ? 0.9 : 0.3, cell.strategy.c_str());
  }
}

TEST_P(CommittedResult, ProgramBytesAreExact) {
  for (const Cell& cell : result_.cells) {
    if (!is_ours(cell)) continue;
    ASSERT_TRUE(cell.memory.measured_peak_bytes.has_value());
    // What the allocator had, which is a step's kept losses more.
    EXPECT_GE(*cell.memory.measured_peak_bytes, cell.memory.predicted_peak_bytes) << cell.model << " " << cell.strategy;
    EXPECT_LE(*cell.memory.measured_peak_bytes, *cell.memory.predicted_peak_bytes + 1024) << cell.model;
  }
}

std::string name_of(const ::testing::TestParamInfo<const char*>& test) { return test.param; }
INSTANTIATE_TEST_SUITE_P(Files, CommittedResult,
                         ::testing::Values("resnet18_64", "convnet", "resnet50", "vgg11", "resnet18_96", "uneven",
                                           "grouped", "placements", "hypar_pair"),
                         name_of);

TEST(CommittedResults, EachHoldsItsLine) {
  for (const Claim& claim : kClaims) {
    SCOPED_TRACE(claim.file);
    const Accuracy accuracy = assess(load_result(kResults / (std::string(claim.file) + ".json")));
    const ForecastSummary& summary = summary_of(accuracy, "profiled");
    EXPECT_EQ(summary.cells, claim.cells);
    EXPECT_GE(summary.conclusive, claim.conclusive);
    expect_within(summary.absolute->median_absolute, claim.error_percent, "error");
    expect_within(summary.absolute->bias, claim.bias_percent, "bias");
    expect_within(summary.relative->median_absolute, claim.relative_percent, "relative to single");
    std::vector<double> floors;
    for (const CellAccuracy& cell : accuracy.cells)
      if (cell.noise_floor && cell.forecasts.contains("profiled") && cell.structure)
        floors.push_back(*cell.noise_floor);
    std::ranges::sort(floors);
    expect_within(floors.at(floors.size() / 2), claim.noise_percent, "noise floor");
  }
}

/// All files of kClaims as one.
Result all_results() {
  Result all;
  for (const Claim& claim : kClaims) {
    Result one = load_result(kResults / (std::string(claim.file) + ".json"));
    std::ranges::move(one.cells, std::back_inserter(all.cells));
  }
  return all;
}

// What the README's table says of all models together.
TEST(CommittedResults, TogetherTheyHold) {
  const Result result = all_results();
  const Accuracy accuracy = assess(result);
  const ForecastSummary &profiled = summary_of(accuracy, "profiled"), &fitted = summary_of(accuracy, "fitted"),
                        &analytic = summary_of(accuracy, "analytic");
  EXPECT_EQ(profiled.cells, 106U);
  EXPECT_GE(profiled.conclusive, 69U);  // under 80 %: the report calls it failed as a measurement
  expect_within(profiled.absolute->median_absolute, 0.8, "profiled");
  expect_within(fitted.absolute->median_absolute, 2.8, "fitted");
  expect_within(analytic.absolute->median_absolute, 55, "analytic");
  expect_within(fitted.absolute->bias, 1.7, "fitted, bias");
  expect_within(analytic.absolute->bias, 46, "analytic, bias");
  expect_within(profiled.relative->median_absolute, 0.9, "profiled, relative");
  expect_within(fitted.relative->median_absolute, 2.5, "fitted, relative");
  expect_within(analytic.relative->median_absolute, 19, "analytic, relative");
  for (const ForecastSummary* summary : {&profiled, &fitted}) {
    EXPECT_EQ(summary->pairs_wrong, 0U);
    EXPECT_GE(summary->pairs_right, 432U);
    EXPECT_GE(*summary->coverage, summary == &profiled ? 0.92 : 0.85);
    EXPECT_LE(*summary->coverage, 0.95);
  }
  EXPECT_GE(analytic.pairs_right, 363U);
  expect_within(*profiled.largest_structure_error, 1.8, "structure");
  for (const auto& [world, error, bias] : {std::tuple("local", 0.8, -0.1), {"gloo", 0.9, -0.5}}) {
    Result one = result;
    std::erase_if(one.cells, [&, name = std::string(world)](const Cell& cell) { return cell.world != name; });
    const Accuracy of_world = assess(one);
    expect_within(summary_of(of_world, "profiled").absolute->median_absolute, error, world);
    expect_within(summary_of(of_world, "profiled").absolute->bias, bias, world);
  }
}

// Two networks that nothing was made for, also with four ranks on the two cores.
TEST(CommittedResults, UnseenNetworksAreForecast) {
  for (const char* file : {"uneven", "grouped"}) {
    SCOPED_TRACE(file);
    const Result result = load_result(kResults / (std::string(file) + ".json"));
    const Accuracy accuracy = assess(result);
    const ForecastSummary& summary = summary_of(accuracy, "profiled");
    EXPECT_EQ(summary.cells, 14U);
    EXPECT_EQ(summary.pairs_wrong, 0U);
    expect_within(summary.absolute->median_absolute, 1.4, "error");
    expect_within(summary.absolute->bias, 0.8, "bias");
    for (std::size_t i = 0; i < result.cells.size(); ++i)
      if (result.cells[i].ranks == 4) {
        EXPECT_LE(std::abs(accuracy.cells[i].forecasts.at("profiled").absolute.value().log_ratio), 0.05)
            << result.cells[i].strategy;
      }
  }
}

// ZeRO, FSDP and tensor parallel on two ranks, measured beside neighbours: the noise floors reach 14 %.
TEST(CommittedResults, TheSpaceOfStrategiesIsForecast) {
  const Result result = load_result(kResults / "space.json");
  const Accuracy accuracy = assess(result);
  const ForecastSummary& summary = summary_of(accuracy, "profiled");
  EXPECT_EQ(summary.cells, 40U);
  EXPECT_GE(summary.pairs_right, 59U);
  EXPECT_EQ(summary.pairs_wrong, 0U);
  expect_within(summary.absolute->median_absolute, 2.4, "error");
  expect_within(summary.absolute->bias, 0.5, "bias");
  expect_within(summary.relative->median_absolute, 2.7, "relative to single");
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    const Cell& cell = result.cells[i];
    if (!is_ours(cell)) continue;
    SCOPED_TRACE(cell.model + " " + cell.strategy + " " + cell.world);
    const double error = accuracy.cells[i].forecasts.at("profiled").absolute.value().log_ratio;
    EXPECT_LE(std::abs(error), std::max(0.08, accuracy.cells[i].noise_floor.value()));
    const bool overlaps = cell.strategy == "ddp,dp=2" && cell.world == "gloo";
    expect_within(accuracy.cells[i].structure->log_ratio, overlaps ? 2.1 : 0.5, "structure");
    EXPECT_LE(*cell.memory.measured_peak_bytes - *cell.memory.predicted_peak_bytes, 1024);
  }
}

/// What was measured beside neighbours: hardly a cell is conclusive, but pairs that noise doesn't hide are in order, all
/// but one (four ranks of daso on gloo, and two of zero_bubble).
struct Disturbed {
  const char* file;
  std::size_t cells, pairs, wrong;
  double error_percent, worst_percent, structure_percent;
};
constexpr Disturbed kDisturbed[] = {{"family.json", 84, 440, 0, 3.1, 8.1, 1.0},
                                    {"own_models.json", 42, 55, 0, 1.6, 7.9, 0.9},
                                    {"hosts.json", 21, 53, 0, 2.8, 10.9, 0.3}};

TEST(CommittedResults, WhatNeighboursDisturbedIsForecast) {
  for (const Disturbed& claim : kDisturbed) {
    SCOPED_TRACE(claim.file);
    const Result result = load_result(kResults / claim.file);
    const Accuracy accuracy = assess(result);
    const ForecastSummary& summary = summary_of(accuracy, "profiled");
    EXPECT_EQ(summary.cells, claim.cells);
    EXPECT_GE(summary.pairs_right, claim.pairs);
    EXPECT_EQ(summary.pairs_wrong, claim.wrong);
    expect_within(summary.absolute->median_absolute, claim.error_percent, "error");
    for (std::size_t i = 0; i < result.cells.size(); ++i) {
      const Cell& cell = result.cells[i];
      if (!is_ours(cell)) continue;
      SCOPED_TRACE(cell.model + " " + cell.strategy + " " + cell.world);
      EXPECT_LE(100 * std::abs(accuracy.cells[i].forecasts.at("profiled").absolute.value().log_ratio),
                1.01 * claim.worst_percent);
      expect_within(accuracy.cells[i].structure->log_ratio, claim.structure_percent, "structure");
      EXPECT_LE(*cell.memory.measured_peak_bytes - *cell.memory.predicted_peak_bytes, 1024);
    }
  }
}

// Nine networks on one GPU. Where the host is too slow for it, steps vary by 5 to 17 % from round to round.
TEST(CommittedResults, AnH100IsForecast) {
  const Result result = load_result(kResults / "h100.json");
  const Accuracy accuracy = assess(result);
  const ForecastSummary &profiled = summary_of(accuracy, "profiled"), &fitted = summary_of(accuracy, "fitted");
  EXPECT_EQ(profiled.cells, 9U);
  expect_within(profiled.absolute->median_absolute, 0.6, "profiled");
  expect_within(fitted.absolute->median_absolute, 4.8, "fitted");
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    const Cell& cell = result.cells[i];
    SCOPED_TRACE(cell.model);
    const double error = accuracy.cells[i].forecasts.at("profiled").absolute.value().log_ratio;
    EXPECT_LE(std::abs(error), std::max(0.02, accuracy.cells[i].noise_floor.value()));
    expect_within(accuracy.cells[i].structure->log_ratio, 0.15, "structure");
    EXPECT_LE(*cell.memory.measured_peak_bytes - *cell.memory.predicted_peak_bytes, 4);  // the loss
    // By today's code. A data sheet knows little of how well kernels use the device.
    const Model model = load_model(cell.model);
    const Cluster cluster = load_cluster("dgx_h100", 1);
    const Forecast sheet =
        forecast(lower(model, parse_strategy(cell.strategy, model)), cluster, *make_cost_model("analytic", cluster));
    const double measured_s = accuracy.cells[i].forecasts.at("profiled").predicted.step_s / std::exp(error);
    EXPECT_GT(sheet.step.step_s, 0.45 * measured_s);
    EXPECT_LT(sheet.step.step_s, measured_s);
    std::printf("%s: data sheet %+.0f %%\n", cell.model.c_str(), 100 * (sheet.step.step_s / measured_s - 1));
  }
}

// Imported networks on one GPU, in f32 and under autocast.
TEST(CommittedResults, AnH200sTransformersAreForecast) {
  const Result result = load_result(kResults / "h200_transformers.json");
  const Accuracy accuracy = assess(result);
  const ForecastSummary& profiled = summary_of(accuracy, "profiled");
  EXPECT_EQ(profiled.cells, 6U);
  expect_within(profiled.absolute->median_absolute, 0.4, "profiled");
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    const Cell& cell = result.cells[i];
    if (!is_ours(cell)) continue;
    SCOPED_TRACE(cell.model);
    const double error = accuracy.cells[i].forecasts.at("profiled").absolute.value().log_ratio;
    expect_within(error, 0.5, "profiled");
    EXPECT_LE(*cell.memory.measured_peak_bytes - *cell.memory.predicted_peak_bytes, 4);  // the loss
    EXPECT_GE(*cell.memory.measured_peak_bytes, *cell.memory.predicted_peak_bytes);
    expect_within(std::log(static_cast<double>(*cell.memory.predicted_allocator_peak_bytes) /
                           static_cast<double>(*cell.memory.allocator_peak_bytes)),
                  1.7, "allocator");
    // By today's code: what GPT-2's and BERT's classifiers take was learnt from these (sim/cost/roofline.cpp).
    const Model model = load_model(cell.model);
    const Cluster cluster = load_cluster("h200_local", 1);
    const Forecast sheet =
        forecast(lower(model, parse_strategy(cell.strategy, model)), cluster, *make_cost_model("analytic", cluster));
    const double measured_s = accuracy.cells[i].forecasts.at("profiled").predicted.step_s / std::exp(error);
    std::printf("%s: data sheet %+.0f %%\n", cell.model.c_str(), 100 * (sheet.step.step_s / measured_s - 1));
    EXPECT_GT(sheet.step.step_s, 0.7 * measured_s);
    EXPECT_LT(sheet.step.step_s, 1.3 * measured_s);
    EXPECT_LT(sheet.low_s, measured_s);
    EXPECT_GT(sheet.high_s, measured_s);
  }
}

// HyPar and DataParallel, two ranks and four on the two cores.
TEST(CommittedResults, EveryPlacementIsForecast) {
  constexpr double kLargest = 0.09;
  const Result result = load_result(kResults / "placements.json");
  const Accuracy accuracy = assess(result);
  const ForecastSummary& summary = summary_of(accuracy, "profiled");
  EXPECT_EQ(summary.cells, 22U);
  EXPECT_GE(summary.pairs_right, 88U);
  EXPECT_LE(summary.pairs_wrong, 1U);  // the README's exception, before HyPar's two ranks
  expect_within(summary.relative->median_absolute, 3.8, "relative to single");
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    const Cell& cell = result.cells[i];
    if (!is_ours(cell)) continue;
    const double error = accuracy.cells[i].forecasts.at("profiled").absolute.value().log_ratio;
    if (cell.world == "gloo" && cell.strategy == "data_parallel,dp=4")
      expect_within(error, 15.7, "the README's exception");
    else
      EXPECT_LE(std::abs(error), kLargest) << cell.strategy << " " << cell.world;
  }
}

// R3's pair: everything in it takes microseconds.
TEST(CommittedResults, EveryTransitionOfHyParsPairIsForecast) {
  const ForecastSummary& summary = summary_of(assess(load_result(kResults / "hypar_pair.json")), "profiled");
  EXPECT_EQ(summary.cells, 18U);
  EXPECT_EQ(summary.pairs_wrong, 0U);
  EXPECT_GE(summary.pairs_right, 13U);
  expect_within(summary.absolute->median_absolute, 5.0, "error");
}

// Its upper end, of the default and of PyTorch at its best (`single` on gloo beside the latter, in four rounds: 5.4 %).
TEST(CommittedResults, NoPlacementIsSlowerThanPlainPyTorchs) {
  std::size_t compared = 0;
  for (const char* file : {"placements", "hypar_pair"}) {
    const Result result = load_result(kResults / (std::string(file) + ".json"));
    const Accuracy accuracy = assess(result);
    for (std::size_t i = 0; i < result.cells.size(); ++i) {
      if (!is_ours(result.cells[i])) continue;
      for (const auto& [peer, ratio] : accuracy.cells[i].against_peer) {
        ++compared;
        EXPECT_LE(ratio.interval.value().high, std::log(1.055))
            << file << " " << peer << " " << result.cells[i].strategy << " " << result.cells[i].world;
      }
    }
  }
  EXPECT_EQ(compared, 2 * (20U + 18U));
}

// Not beyond noise: of 44 steps 43 are faster, the other is slower by 0.6 %.
TEST(CommittedResults, NoStepIsSlowerThanPlainPyTorchs) {
  const Result result = all_results();
  const Accuracy accuracy = assess(result);
  std::size_t compared = 0;
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    if (!is_ours(result.cells[i]) || !accuracy.cells[i].against_peer.contains("pytorch")) continue;
    ++compared;
    EXPECT_LE(accuracy.cells[i].against_peer.at("pytorch").log_ratio, 0.009)
        << result.cells[i].model << " " << result.cells[i].strategy << " " << result.cells[i].world;
  }
  EXPECT_EQ(compared, 44U);
}

double error_of(std::optional<std::int64_t> predicted, std::optional<std::int64_t> measured) {
  return std::log(static_cast<double>(predicted.value()) / static_cast<double>(measured.value()));
}

// 0.1 % and 2.5 %.
TEST(CommittedResults, MemoryIsForecast) {
  std::size_t cells = 0;
  for (const Cell& cell : all_results().cells) {
    if (!is_ours(cell)) continue;
    ++cells;
    const CellMemory& memory = cell.memory;
    EXPECT_LE(std::abs(error_of(memory.predicted_allocator_peak_bytes, memory.allocator_peak_bytes)), 0.0015)
        << cell.model << " " << cell.strategy << " " << cell.world;
    EXPECT_LE(std::abs(error_of(memory.predicted_resident_peak_bytes, memory.resident_peak_bytes)), 0.037)
        << cell.model << " " << cell.strategy << " " << cell.world;
  }
  EXPECT_EQ(cells, 106U);
}

TEST(CommittedResults, AForecastThatIsSlightlyWrongBreaksTheBounds) {
  const Accuracy accuracy = assess(spoiled(all_results(), "profiled", 1.03));
  EXPECT_GT(summary_of(accuracy, "profiled").relative->median_absolute, kRoom * 0.009);
  EXPECT_GT(summary_of(accuracy, "profiled").absolute->median_absolute, kRoom * 0.009);
}

// Today's code on the calibration that was kept with the results, the mean of all rounds: NAME.profile.json for
// `profiled`, NAME.fit_profile.json for `fitted`. A file is tested by being there.
TEST(CommittedResults, ForecastAnewTheyHold) {
  std::filesystem::current_path(kResults / ".." / "..");  // models that aren't of the catalog are named from there
  std::size_t files = 0;
  for (const auto& [name, profile] : testing::committed_profiles()) {
    const bool is_fitted = name.ends_with(".fit_profile.json");
    const std::string cost_model = is_fitted ? "fitted" : "profiled";
    SCOPED_TRACE(name);
    ++files;
    const Result result = load_result(kResults / (name.substr(0, name.find('.')) + ".json"));
    std::vector<double> errors;
    double bias = 0;
    for (const Cell& cell : result.cells) {
      if (!is_ours(cell)) continue;
      const Model model = load_model(cell.model);
      const Program program = lower(model, parse_strategy(cell.strategy, model));
      const Cluster cluster = testing::measured_cluster(cell.world, program.ranks(), profile);
      std::vector<StepTime> steps;
      for (const Round& round : cell.rounds) steps.push_back(round.measured.mean);
      const double error = std::log(
          forecast(program, cluster, *make_cost_model(cost_model, cluster, &profile)).step.step_s / mean(steps).step_s);
      errors.push_back(std::abs(error));
      bias += error;
    }
    ASSERT_FALSE(errors.empty());
    bias /= static_cast<double>(errors.size());
    std::ranges::sort(errors);
    std::printf("%s: %zu cells, median error %.2f %%, bias %+.2f %%, largest %.2f %%\n", name.c_str(), errors.size(),
                100 * errors[errors.size() / 2], 100 * bias, 100 * errors.back());
    // VGG-11 by `fitted`, grouped by `profiled`: where the machine changes from round to round, the mean profile of all
    // rounds, which forecasts the mean of all rounds, is further off than each round's own (the ConvNet 1.6, not 0.7 %).
    const auto [error_percent, bias_percent] = is_fitted                        ? std::pair(7.0, 6.4)
                                               : name.starts_with("placements") ? std::pair(5.5, 1.0)
                                               : name.starts_with("hypar_pair") ? std::pair(7.5, 7.0)
                                                                                : std::pair(2.0, 1.9);
    EXPECT_LE(100 * errors[errors.size() / 2], kRoom * error_percent);
    EXPECT_LE(100 * std::abs(bias), kRoom * bias_percent);
  }
  EXPECT_EQ(files, 16U);
}

// No profile has all transfers of all candidates, and most lack the ConvNet's ops: what is missing is answered from the
// rest, and said.
TEST(CommittedResults, EveryProfilePricesEveryCandidate) {
  const Model model = load_model("convnet");
  std::vector<Program> programs;
  for (const Strategy& strategy : candidate_strategies(model, 2).strategies) programs.push_back(lower(model, strategy));
  std::size_t guessed = 0, known = 0;
  for (const auto& [name, profile] : testing::profiles_of_cores()) {
    for (const char* world : {"local", "gloo"}) {
      const Cluster cluster = testing::measured_cluster(world, 2, profile);
      const auto profiled = make_cost_model("profiled", cluster, &profile);
      for (const Program& program : programs) {
        const Forecast f = forecast(program, cluster, *profiled);
        EXPECT_TRUE(std::isfinite(f.step.step_s) && f.step.step_s > 0);
        (f.guesses.empty() ? known : guessed) += 1;
        EXPECT_EQ(f.guesses.empty(), f.low_s == f.high_s) << name << " " << program.strategy;
        EXPECT_EQ(f.guesses.empty(), f.novelty == 0) << name << " " << program.strategy;
      }
    }
  }
  EXPECT_GT(known, 0U);
  EXPECT_GT(guessed, known);
}

/// Pairs of strategies of a model on a world whose order was measured, how many of them forecasts tell apart, and how many of
/// those are in that order.
struct ToldPairs {
  std::size_t all = 0, told = 0, right = 0;
  void add(const Result& result, const TrackRecord& record, const std::string& cost_model) {
    struct One {
      const Cell* cell;
      ComparedForecast forecast;
      const CellAccuracy* measured;
    };
    const Accuracy accuracy = assess(result, &record);
    std::vector<One> ones;
    for (std::size_t i = 0; i < result.cells.size(); ++i) {
      const auto found = accuracy.cells[i].forecasts.find(cost_model);
      if (!is_ours(result.cells[i]) || found == accuracy.cells[i].forecasts.end()) continue;
      ComparedForecast forecast = found->second.compared;
      forecast.stated_sd = 0;  // the record alone
      ones.push_back({&result.cells[i], forecast, &accuracy.cells[i]});
    }
    for (std::size_t a = 0; a < ones.size(); ++a)
      for (std::size_t b = a + 1; b < ones.size(); ++b) {
        if (ones[a].cell->model != ones[b].cell->model || ones[a].cell->world != ones[b].cell->world) continue;
        const bool first_is_faster = is_faster(*ones[a].measured, *ones[b].measured);
        if (!first_is_faster && !is_faster(*ones[b].measured, *ones[a].measured)) continue;
        ++all;
        if (!told_apart(ones[a].forecast, ones[b].forecast)) continue;
        ++told;
        right += (ones[a].forecast.step_s < ones[b].forecast.step_s) == first_is_faster;
      }
  }
};

// "Fastest" has ground: of the pairs that a forecast tells apart 95 % are in the measured order, where the record is
// from and on another machine, which has none.
TEST(CommittedResults, WhatIsToldApartIsInTheMeasuredOrder) {
  const TrackRecord record = load_track_record(kResults / "track_record.json");
  for (const CostModelKind& kind : cost_model_table()) {
    const std::string cost_model(kind.name);
    ToldPairs here, elsewhere;
    for (const Claim& claim : kClaims) {
      const Result result = load_result(kResults / (std::string(claim.file) + ".json"));
      EXPECT_TRUE(record.contains(result.cells[0].device)) << claim.file;
      here.add(result, record, cost_model);
    }
    for (const auto& file : {kResults / "placements.json", kResults / "hypar_pair.json",
                             testing::tests_folder() / "golden" / "crossing.json"}) {
      Result result = load_result(file);
      for (Cell& cell : result.cells) cell.device = "one without a record";
      elsewhere.add(result, record, cost_model);
    }
    for (const auto& [where, pairs] : {std::pair("here", here), {"elsewhere", elsewhere}}) {
      std::printf("%s %s: of %zu pairs %zu are told apart, %zu of them right\n", where, cost_model.c_str(), pairs.all,
                  pairs.told, pairs.right);
      EXPECT_GE(static_cast<double>(pairs.right), 0.95 * static_cast<double>(pairs.told)) << where << " " << cost_model;
      // A data sheet is allowed what it was off the most: it takes a Zen 5 core for half as fast as it is.
      const double least = cost_model == "analytic" ? 0.15 : 0.3;
      EXPECT_GE(static_cast<double>(pairs.told), least * static_cast<double>(pairs.all)) << where << " " << cost_model;
    }
  }
}

}  // namespace
}  // namespace sim
