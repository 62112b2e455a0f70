// The accuracy that the README claims, from the result files it was read from (bench/results): bounds that can fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>

#include "sim/report/accuracy.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

const std::filesystem::path kResults = testing::tests_folder() / ".." / "bench" / "results";
/// Made by bench/accuracy.sh; bench/results/README.md says when, where and by which code.
constexpr const char* kAccuracyFiles[] = {"resnet18_64.json", "convnet.json", "resnet50.json", "vgg11.json",
                                          "resnet18_96.json"};
constexpr const char* kOtherCpu = "other_cpu_resnet18_64.json";

const ForecastSummary& summary_of(const Accuracy& accuracy, const std::string& cost_model) {
  for (const ForecastSummary& summary : accuracy.summaries)
    if (summary.executor == "paragauge" && summary.cost_model == cost_model) return summary;
  throw std::runtime_error("no forecasts of " + cost_model);
}

/// Of our own executor: a peer's cell has no timeline.
bool is_ours(const Cell& cell) { return cell.executor == "paragauge" && cell.skipped.empty(); }

/// Every forecast of a cost model times `factor`, but for `single`: a wrong relative forecast.
Result spoiled(Result result, const std::string& cost_model, double factor) {
  for (Cell& cell : result.cells)
    for (Round& round : cell.rounds)
      if (is_ours(cell) && cell.strategy != "single") round.predicted.at(cost_model).step_s *= factor;
  return result;
}

class CommittedResult : public ::testing::TestWithParam<const char*> {
 protected:
  Result result_ = load_result(kResults / GetParam());
};

// On every cell, conclusive or not: the replay takes the measured durations, so noise cancels.
TEST_P(CommittedResult, StructureIsRight) {
  const Accuracy accuracy = assess(result_);
  for (std::size_t i = 0; i < result_.cells.size(); ++i) {
    if (!is_ours(result_.cells[i])) continue;
    ASSERT_TRUE(accuracy.cells[i].structure.has_value());
    EXPECT_LE(std::abs(accuracy.cells[i].structure->log_ratio), 0.03) << result_.cells[i].strategy;
  }
}

TEST_P(CommittedResult, ProfiledForecastsHold) {
  const Accuracy accuracy = assess(result_);
  const ForecastSummary& summary = summary_of(accuracy, "profiled");
  EXPECT_EQ(summary.cells, static_cast<std::size_t>(std::ranges::count_if(result_.cells, is_ours)));
  EXPECT_LE(summary.absolute->median_absolute, 0.10);
  EXPECT_LE(summary.relative->median_absolute, 0.10);
  EXPECT_EQ(summary.pairs_wrong, 0U);
  EXPECT_GT(summary.pairs_right, 0U);
}

TEST_P(CommittedResult, AWrongForecastBreaksTheBounds) {
  const Accuracy accuracy = assess(spoiled(result_, "profiled", 1.5));
  EXPECT_GT(summary_of(accuracy, "profiled").relative->median_absolute, 0.10);
}

TEST_P(CommittedResult, ProgramBytesAreExact) {
  for (const Cell& cell : result_.cells) {
    if (!is_ours(cell)) continue;
    ASSERT_TRUE(cell.memory.measured_peak_bytes.has_value());
    EXPECT_EQ(cell.memory.predicted_peak_bytes, cell.memory.measured_peak_bytes) << cell.model << " " << cell.strategy;
  }
}

/// kAccuracyFiles as one.
Result all_results() {
  Result all;
  for (const char* name : kAccuracyFiles) {
    Result one = load_result(kResults / name);
    std::ranges::move(one.cells, std::back_inserter(all.cells));
  }
  return all;
}

void expect_that_forecasts_hold(const Accuracy& accuracy) {
  const ForecastSummary &profiled = summary_of(accuracy, "profiled"), &fitted = summary_of(accuracy, "fitted");
  EXPECT_LE(profiled.absolute->median_absolute, 0.06);
  EXPECT_LE(profiled.relative->median_absolute, 0.03);
  EXPECT_LE(std::abs(profiled.absolute->bias), 0.02);
  EXPECT_EQ(profiled.pairs_wrong, 0U);
  EXPECT_GE(profiled.pairs_right, 40U);
  EXPECT_LE(fitted.absolute->median_absolute, 0.12);
  EXPECT_LE(fitted.relative->median_absolute, 0.06);
}

// What the README's table says of all models together.
TEST(CommittedResults, TogetherTheyHold) {
  const Accuracy accuracy = assess(all_results());
  expect_that_forecasts_hold(accuracy);
  const ForecastSummary &profiled = summary_of(accuracy, "profiled"), &fitted = summary_of(accuracy, "fitted");
  EXPECT_FALSE(profiled.failed);  // as a measurement
  EXPECT_LE(*profiled.largest_structure_error, 0.02);
  for (const double coverage : {profiled.coverage.value(), fitted.coverage.value()}) {
    EXPECT_GE(coverage, 0.85);
    EXPECT_LE(coverage, 0.95);
  }
}

/// By the upper end of the interval. Returns how many were compared.
std::size_t expect_no_slower_than_plain_pytorch(const Result& result, const Accuracy& accuracy) {
  std::size_t compared = 0;
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    if (!is_ours(result.cells[i]) || !accuracy.cells[i].against_peer) continue;
    ++compared;
    EXPECT_LE(accuracy.cells[i].against_peer->interval->high, std::log(1.05))
        << result.cells[i].model << " " << result.cells[i].strategy << " " << result.cells[i].world;
  }
  return compared;
}

TEST(CommittedResults, NoStepIsSlowerThanPlainPyTorchs) {
  const Result result = all_results();
  EXPECT_EQ(expect_no_slower_than_plain_pytorch(result, assess(result)), 44U);
}

TEST(CommittedResults, AnotherCpuIsForecastAsWell) {
  const Result result = load_result(kResults / kOtherCpu);
  const Accuracy accuracy = assess(result);
  expect_that_forecasts_hold(accuracy);
  EXPECT_EQ(expect_no_slower_than_plain_pytorch(result, accuracy), 10U);
}

bool within_five_percent(std::optional<std::int64_t> predicted, std::optional<std::int64_t> measured) {
  return std::abs(std::log(static_cast<double>(predicted.value()) / static_cast<double>(measured.value()))) <= 0.05;
}

TEST(CommittedResults, TheAllocatorsPeakIsForecastWithinFivePercent) {
  for (const Cell& cell : all_results().cells) {
    if (!is_ours(cell)) continue;
    EXPECT_TRUE(within_five_percent(cell.memory.predicted_allocator_peak_bytes, cell.memory.allocator_peak_bytes))
        << cell.model << " " << cell.strategy << " " << cell.world;
  }
}

TEST(CommittedResults, TheResidentPeakIsForecastWithinFivePercent) {
  Result result = all_results();
  std::ranges::move(load_result(kResults / kOtherCpu).cells, std::back_inserter(result.cells));
  EXPECT_EQ(std::ranges::count_if(result.cells, is_ours), 132);
  for (const Cell& cell : result.cells) {
    if (!is_ours(cell)) continue;
    EXPECT_TRUE(within_five_percent(cell.memory.predicted_resident_peak_bytes, cell.memory.resident_peak_bytes))
        << cell.model << " " << cell.strategy << " " << cell.world;
  }
}

// Its linear layers of one to eight rows, far larger than any in the profile but for other batch sizes.
TEST(CommittedResults, FittedForecastsVgg11) {
  const Accuracy accuracy = assess(load_result(kResults / "vgg11.json"));
  const ForecastSummary& fitted = summary_of(accuracy, "fitted");
  EXPECT_EQ(fitted.cells, 18U);
  EXPECT_LE(fitted.absolute->median_absolute, 0.12);
  EXPECT_LE(fitted.relative->median_absolute, 0.06);
}

TEST(CommittedResults, AForecastThatIsSlightlyWrongBreaksTheBounds) {
  EXPECT_GT(summary_of(assess(spoiled(all_results(), "profiled", 1.06)), "profiled").relative->median_absolute, 0.03);
}

std::string name_of(const ::testing::TestParamInfo<const char*>& test) {
  return std::filesystem::path(test.param).stem().string();
}
INSTANTIATE_TEST_SUITE_P(Files, CommittedResult, ::testing::ValuesIn(kAccuracyFiles), name_of);
INSTANTIATE_TEST_SUITE_P(Others, CommittedResult,
                         ::testing::Values(kOtherCpu, "tutorial_resnet50.json", "tutorial_convnet.json"), name_of);

}  // namespace
}  // namespace sim
