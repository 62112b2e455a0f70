// The accuracy that the README claims, from the result files it was read from (bench/results): bounds that can fail.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>

#include "sim/accuracy.hpp"

namespace sim {
namespace {

const std::filesystem::path kResults = std::filesystem::path(PARAGAUGE_TESTS_DIR) / ".." / "bench" / "results";

const ForecastSummary& summary_of(const Accuracy& accuracy, const std::string& cost_model) {
  for (const ForecastSummary& summary : accuracy.summaries)
    if (summary.cost_model == cost_model) return summary;
  throw std::runtime_error("no forecasts of " + cost_model);
}

/// Every forecast of a cost model times `factor`, but for `single`: a wrong relative forecast.
Result spoiled(Result result, const std::string& cost_model, double factor) {
  for (Cell& cell : result.cells)
    for (Round& round : cell.rounds)
      if (cell.strategy != "single") round.predicted.at(cost_model).step_s *= factor;
  return result;
}

class CommittedResult : public testing::TestWithParam<const char*> {
 protected:
  Result result_ = load_result(kResults / GetParam());
};

TEST_P(CommittedResult, StructureIsRight) {
  const Accuracy accuracy = assess(result_);
  std::size_t conclusive = 0;
  for (const CellAccuracy& cell : accuracy.cells) {
    ASSERT_TRUE(cell.structure.has_value());
    if (!cell.conclusive) continue;
    ++conclusive;
    EXPECT_LE(std::abs(cell.structure->log_ratio), 0.03);
  }
  EXPECT_GT(conclusive, 0U);
}

TEST_P(CommittedResult, ProfiledForecastsHold) {
  const Accuracy accuracy = assess(result_);
  const ForecastSummary& summary = summary_of(accuracy, "profiled");
  EXPECT_EQ(summary.cells, result_.cells.size());
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
    ASSERT_TRUE(cell.memory.measured_peak_bytes.has_value());
    EXPECT_EQ(cell.memory.predicted_peak_bytes, cell.memory.measured_peak_bytes) << cell.model << " " << cell.strategy;
  }
}

INSTANTIATE_TEST_SUITE_P(Files, CommittedResult, testing::Values("resnet50.json", "convnet.json"),
                         [](const auto& test) {
                           return std::string(test.param, std::string_view(test.param).find('.'));
                         });

}  // namespace
}  // namespace sim
