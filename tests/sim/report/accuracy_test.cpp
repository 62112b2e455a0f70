#include "sim/report/accuracy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "sim/text/spec.hpp"

namespace sim {
namespace {

/// A cell with one measured step per round and forecasts of the cost model "m".
struct Numbers {
  std::string strategy;
  std::vector<double> predicted, measured, replayed = {};
};

Cell& add(Result& result, const Numbers& numbers, const std::string& world = "gloo", const std::string& model = "net",
          const std::string& executor = "paragauge") {
  Cell& cell = result.cell(model, numbers.strategy, world, executor);
  for (std::size_t i = 0; i < std::max(numbers.predicted.size(), numbers.measured.size()); ++i) {
    Round& round = cell.rounds.emplace_back();
    round.round = static_cast<int>(i);
    if (i < numbers.predicted.size()) round.predicted["m"].step_s = numbers.predicted[i];
    if (i < numbers.measured.size()) round.measured = {{numbers.measured[i], 0, 0, 0, 0}};
    if (i < numbers.replayed.size()) round.replayed_s = numbers.replayed[i];
  }
  return cell;
}

const std::vector<double> kSteady{1.000, 1.002, 0.998, 1.001, 0.999, 1.000, 1.003, 0.997};

std::vector<double> times(double factor, std::vector<double> values = kSteady) {
  for (double& value : values) value *= factor;
  return values;
}

const ForecastAccuracy& forecast(const Accuracy& accuracy, std::size_t cell) {
  return accuracy.cells[cell].forecasts.at("m");
}

TEST(Accuracy, ErrorsFollowTheirDefinitions) {
  // Rounds drift by a factor of two, and the forecasts follow: what is left is 10 % for single and −20 % for ddp.
  const std::vector<double> drift{1, 1.2, 1.4, 1.6, 1.8, 2.0};
  Result result;
  add(result, {"single", times(1.1, drift), drift, times(1.05, drift)});
  add(result, {"ddp,dp=2", times(0.6 * 0.8, drift), times(0.6, drift)});
  const Accuracy accuracy = assess(result);
  EXPECT_NEAR(forecast(accuracy, 0).predicted.step_s, 1.1 * 1.5, 1e-12);
  EXPECT_NEAR(accuracy.cells[0].measured->step_s, 1.5, 1e-12);
  EXPECT_NEAR(forecast(accuracy, 0).absolute->log_ratio, std::log(1.1), 1e-12);
  EXPECT_NEAR(forecast(accuracy, 1).absolute->log_ratio, std::log(0.8), 1e-12);
  EXPECT_FALSE(forecast(accuracy, 0).relative);
  EXPECT_NEAR(forecast(accuracy, 1).relative->log_ratio, std::log(0.8 / 1.1), 1e-12);
  EXPECT_NEAR(accuracy.cells[0].structure->log_ratio, std::log(1.05), 1e-12);
  EXPECT_FALSE(accuracy.cells[1].structure);
  // Both sides of a ratio are drawn together, so drift doesn't widen its interval; it does widen the measurement's.
  EXPECT_NEAR(forecast(accuracy, 1).absolute->interval->low, std::log(0.8), 1e-9);
  EXPECT_NEAR(forecast(accuracy, 1).absolute->interval->high, std::log(0.8), 1e-9);
  EXPECT_GT(accuracy.cells[0].interval->high - accuracy.cells[0].interval->low, 0.3);
  EXPECT_FALSE(accuracy.cells[0].conclusive);
}

TEST(Accuracy, IsTheRatioOfMeansNotOfMedians) {
  Result result;
  add(result, {"single", {1, 1, 1, 1}, {1, 1, 1, 3}});
  EXPECT_NEAR(forecast(assess(result), 0).absolute->log_ratio, std::log(1 / 1.5), 1e-12);
}

TEST(Accuracy, UsesOnlyRoundsThatHaveBoth) {
  Result result;
  add(result, {"single", {2, 4}, {1, 2, 900}});
  add(result, {"ddp,dp=2", {3, 5, 7}, {1}});
  const Accuracy accuracy = assess(result);
  EXPECT_NEAR(forecast(accuracy, 0).absolute->log_ratio, std::log(6.0 / 3), 1e-12);
  EXPECT_NEAR(forecast(accuracy, 1).absolute->log_ratio, std::log(3.0), 1e-12);
  EXPECT_NEAR(forecast(accuracy, 1).relative->log_ratio, std::log(3.0) - std::log(2.0), 1e-12);  // round 0 alone
  EXPECT_FALSE(forecast(accuracy, 0).absolute->interval);  // too few rounds: unavailable
}

TEST(Accuracy, RelativeNeedsSingleOfTheSameModelWorldAndExecutor) {
  Result result;
  add(result, {"single", times(1), kSteady}, "local");
  add(result, {"ddp,dp=2", times(1), kSteady}, "gloo");
  add(result, {"ddp,dp=2", times(1), kSteady}, "local", "other");
  add(result, {"ddp,dp=2", times(1), kSteady}, "local", "net", "pytorch");
  add(result, {"ddp,dp=2", times(1), kSteady}, "local");
  const Accuracy accuracy = assess(result);
  for (std::size_t i : {1U, 2U, 3U}) EXPECT_FALSE(forecast(accuracy, i).relative) << i;
  EXPECT_TRUE(forecast(accuracy, 4).relative);
}

// Ten cells of other models, off by ±4 % with a bias of +2 %: μ ± t s √(1 + 1/n), and none of its own errors in it.
TEST(Accuracy, ForecastIntervalsComeFromOtherModels) {
  Result result;
  std::vector<double> errors;
  for (int i = 0; i < 10; ++i) {
    errors.push_back(0.02 + (i % 2 == 0 ? 0.04 : -0.04));
    add(result, {fmt::format("pipeline,pp={}", i + 2), times(std::exp(errors.back())), kSteady}, "gloo",
        "other,image=32");
  }
  add(result, {"single", times(1.04), kSteady}, "gloo", "net,image=32");  // inside
  add(result, {"ddp,dp=2", times(3), kSteady}, "gloo",
      "net,image=64");  // far outside; the same family as the one above
  const Accuracy accuracy = assess(result);
  const double sd = 0.04 * std::sqrt(10.0 / 9), reach = student_t(kNormal95, 9) * sd * std::sqrt(1.1);
  ASSERT_TRUE(forecast(accuracy, 10).interval_90);
  EXPECT_NEAR(forecast(accuracy, 10).interval_90->low, 1.04 * std::exp(-0.02 - reach), 1e-12);
  EXPECT_NEAR(forecast(accuracy, 10).interval_90->high, 1.04 * std::exp(-0.02 + reach), 1e-12);
  EXPECT_NEAR(student_t(kNormal95, 9), 1.833, 0.002);  // a table's values
  EXPECT_NEAR(student_t(kNormal95, 1), 6.314, 0.002);
  EXPECT_NEAR(student_t(kNormal95, 2), 2.920, 0.001);
  EXPECT_TRUE(*forecast(accuracy, 10).covered);
  EXPECT_FALSE(*forecast(accuracy, 11).covered);
  EXPECT_FALSE(forecast(accuracy, 0).interval_90);  // only two cells of another model
  EXPECT_EQ(accuracy.summaries[0].with_interval, 2U);
  EXPECT_EQ(*accuracy.summaries[0].coverage, 0.5);
  // A record of earlier results stands in.
  EXPECT_EQ(forecast(accuracy, 10).interval_from, "how far 10 forecasts of other models here were off");
  for (Cell& cell : result.cells) cell.device = "A CPU";
  const TrackRecord record{{"A CPU", {{"m", record_of(errors)}}}};
  const ForecastAccuracy from_record = assess(result, &record).cells[0].forecasts.at("m");
  EXPECT_NEAR(from_record.interval_90->high, std::exp(errors[0]) * std::exp(-0.02 + reach), 1e-12);
  EXPECT_EQ(from_record.interval_from, "the track record of 10 forecasts on A CPU");
  // Another device's doesn't.
  const TrackRecord elsewhere{{"Another CPU", {{"m", record_of(errors)}}}};
  EXPECT_FALSE(assess(result, &elsewhere).cells[0].forecasts.at("m").interval_90);
}

TEST(Accuracy, WithoutOtherModelsTheWiderIntervalCounts) {
  Result result;
  Cell& cell = add(result, {"single", times(1.1), kSteady});
  cell.device = "A CPU";
  for (Round& round : cell.rounds) round.stated_90["m"] = {0.5, 2.5};
  const auto interval_with = [&](const TrackRecord* record) {
    return assess(result, record).cells[0].forecasts.at("m");
  };
  EXPECT_EQ(interval_with(nullptr).interval_90, (Interval{0.5, 2.5}));
  EXPECT_EQ(interval_with(nullptr).interval_from, "what the profile leaves open");
  EXPECT_TRUE(interval_with(nullptr).covered.value());
  const TrackRecord narrow{{"A CPU", {{"m", {100, 0, 0.01}}}}}, wide{{"A CPU", {{"m", {100, 0, 2}}}}};
  EXPECT_EQ(interval_with(&narrow).interval_from, "what the profile leaves open");
  EXPECT_EQ(interval_with(&wide).interval_from, "the track record of 100 forecasts on A CPU");
  // A data sheet, too, may say that it knows this network less well than those of the record.
  for (Round& round : cell.rounds) {
    round.predicted["analytic"] = round.predicted.at("m");
    round.stated_90["analytic"] = {0.5, 2.5};
  }
  const TrackRecord of_sheet{{"A CPU", {{"analytic", {100, 0, 0.01}}}}};
  EXPECT_EQ(assess(result, &of_sheet).cells[0].forecasts.at("analytic").interval_from,
            "what the data sheet leaves open");
}

TEST(Accuracy, AgainstThePeerInTheSameRounds) {
  const std::vector<double> drift{1, 1.2, 1.4, 1.6, 1.8, 2.0};
  Result result;
  add(result, {"single", {}, times(0.9, drift)});
  add(result, {"single", {}, drift}, "gloo", "net", "pytorch");
  add(result, {"ddp,dp=2", {}, drift});
  add(result, {"single", {}, times(0.75, drift)}, "gloo", "net", "pytorch_best");
  const Accuracy accuracy = assess(result);
  EXPECT_NEAR(accuracy.cells[0].against_peer.at("pytorch").log_ratio, std::log(0.9), 1e-12);
  EXPECT_NEAR(accuracy.cells[0].against_peer.at("pytorch").interval->high, std::log(0.9), 1e-9);  // drift cancels
  EXPECT_NEAR(accuracy.cells[0].against_peer.at("pytorch_best").log_ratio, std::log(1.2), 1e-12);
  for (const std::size_t i : {1, 2, 3}) EXPECT_TRUE(accuracy.cells[i].against_peer.empty()) << i;
}

TEST(Accuracy, TrackRecordsAreReadAsWritten) {
  const TrackRecord record{{"A CPU", {{"analytic", {9, -0.1, 0.2}}, {"fitted", {120, 0.01, 0.05, 0.03}}}},
                           {"A GPU", {{"analytic", {8, 0, 0.1}}}}};
  const std::filesystem::path path = std::filesystem::path(::testing::TempDir()) / "paragauge_track_record.json";
  write_text_file(path, to_json(record));
  const TrackRecord same = load_track_record(path);
  EXPECT_EQ(find(same, "A CPU", "fitted")->count, 120U);
  EXPECT_EQ(find(same, "A CPU", "fitted")->relative_sd, 0.03);
  EXPECT_EQ(find(same, "A CPU", "analytic")->mean, -0.1);
  EXPECT_EQ(find(same, "A CPU", "analytic")->sd, 0.2);
  EXPECT_FALSE(find(same, "A CPU", "analytic")->relative_sd);
  EXPECT_EQ(find(same, "A GPU", "fitted"), nullptr);
  EXPECT_EQ(find(same, "no such", "fitted"), nullptr);
  EXPECT_FALSE((ErrorRecord{7, 0, 0.1}).interval_90(1));  // too few
}

TEST(Accuracy, RatiosAreAsGoodAsWhereTheyWereWorstOnADeviceWithoutARecord) {
  const TrackRecord record{{"A CPU", {{"analytic", {9, 0, 0.2, 0.1}}, {"fitted", {9, 0, 0.05, 0.03}}}},
                           {"Another CPU", {{"analytic", {9, 0, 0.3, 0.2}}}},
                           {"A GPU", {{"analytic", {8, 0, 0.1}}}}};
  EXPECT_EQ(ratio_record(record, "A CPU", "analytic")->sd, 0.1);
  for (const char* device : {"A GPU", "A new GPU"}) {
    EXPECT_EQ(ratio_record(record, device, "analytic")->sd, 0.2) << device;
    EXPECT_EQ(ratio_record(record, device, "analytic")->device, "Another CPU") << device;
  }
  EXPECT_EQ(ratio_record(record, "A GPU", "fitted")->device, "A CPU");
  EXPECT_FALSE(ratio_record(record, "A CPU", "profiled"));
}

TEST(Accuracy, ATrackRecordIsByDevice) {
  Result result;
  for (const char* device : {"A CPU", "Another CPU"})
    for (int i = 0; i < 9; ++i) {
      const double error = device[1] == ' ' ? 1.1 : 1.3;
      add(result, {i == 0 ? "single" : fmt::format("ddp,dp={}", i + 1), times(error), kSteady}, device).device = device;
    }
  const TrackRecord record = track_record(result);
  EXPECT_EQ(record.size(), 2U);
  EXPECT_EQ(find(record, "A CPU", "m")->count, 9U);
  EXPECT_NEAR(find(record, "A CPU", "m")->mean, std::log(1.1), 1e-12);
  EXPECT_NEAR(find(record, "Another CPU", "m")->mean, std::log(1.3), 1e-12);
  EXPECT_NEAR(find(record, "A CPU", "m")->relative_sd.value(), 0, 1e-12);
}

// Forecasts of ratios that are all off alike are off; but not of each other's.
TEST(Accuracy, ATrackRecordOfRatiosCountsTheirMean) {
  Result result;
  for (int i = 0; i < 9; ++i)
    add(result, {i == 0 ? "single" : fmt::format("ddp,dp={}", i + 1), times(i == 0 ? 1 : 1.2), kSteady}, "A CPU")
        .device = "A CPU";
  const TrackRecord record = track_record(result);
  EXPECT_NEAR(find(record, "A CPU", "m")->relative_mean, std::log(1.2), 1e-12);
  EXPECT_NEAR(ratio_record(record, "A CPU", "m")->sd, 0, 1e-12);
  EXPECT_NEAR(ratio_record(record, "A CPU", "m")->from_0, std::log(1.2), 1e-12);
  const Accuracy accuracy = assess(result, &record);
  EXPECT_NEAR(*accuracy.cells[0].forecasts.at("m").compared.ratio_sd, std::log(1.2), 1e-12) << "single";
  EXPECT_NEAR(*accuracy.cells[1].forecasts.at("m").compared.ratio_sd, 0, 1e-12);
}

// Another device's errors say nothing.
TEST(Accuracy, IntervalsAreOfTheSameDevice) {
  Result result;
  for (const auto& [model, device] : {std::pair("net", "A CPU"), {"another", "A CPU"}, {"a third", "A GPU"}})
    for (int i = 0; i < 9; ++i) {
      const std::string strategy = i == 0 ? "single" : fmt::format("ddp,dp={}", i + 1);
      add(result, {strategy, times(1.1), kSteady}, "gloo", model).device = device;
    }
  const Accuracy accuracy = assess(result);
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    EXPECT_EQ(accuracy.cells[i].forecasts.at("m").interval_90.has_value(), result.cells[i].device == "A CPU");
}

TEST(Accuracy, ConclusiveMeansANoiseFloorOfAtMostTwoPercent) {
  const auto conclusive = [](double noise) {
    Result result;
    std::vector<double> measured;
    for (int i = 0; i < 8; ++i) measured.push_back(1 + (i % 2 == 0 ? noise : -noise));
    add(result, {"single", times(1), measured});
    return assess(result).cells[0];
  };
  // The expected |a − b| of halves with k and 4−k high values among 4: Σ |2k − 4|/4 · 2·noise/2 · C(4,k)²/C(8,4) =
  // noise · 0.5143.
  EXPECT_NEAR(*conclusive(0.01).noise_floor, 0.5143 * 0.01, 0.0005);
  EXPECT_TRUE(conclusive(0.035).conclusive);
  EXPECT_FALSE(conclusive(0.043).conclusive);
  Result short_run;
  add(short_run, {"single", {1, 1, 1}, {1, 1, 1}});
  EXPECT_FALSE(assess(short_run).cells[0].conclusive);  // unknown is not conclusive
}

TEST(Accuracy, SummaryCountsEveryError) {
  Result result;
  add(result, {"single", times(std::exp(0.10)), kSteady, times(1.01)});
  add(result, {"a", times(2 * std::exp(-0.02)), times(2), times(2 * 0.97)});
  add(result, {"b", times(3 * std::exp(0.06)), times(3), times(3)});
  add(result,
      {"noisy", std::vector<double>(8, 4 * std::exp(0.30)), {2, 6, 2, 6, 2, 6, 2, 6}, std::vector<double>(8, 40.0)});
  result.cell("net", "cannot", "gloo").skipped = "no";
  const Accuracy accuracy = assess(result);
  ASSERT_EQ(accuracy.summaries.size(), 1U);
  const ForecastSummary& summary = accuracy.summaries[0];
  EXPECT_EQ(summary.cost_model, "m");
  EXPECT_EQ(summary.cells, 4U);
  EXPECT_EQ(summary.skipped, 1U);
  EXPECT_EQ(summary.conclusive, 3U);
  EXPECT_DOUBLE_EQ(*summary.conclusive_share, 0.75);
  EXPECT_TRUE(summary.failed);
  EXPECT_NEAR(summary.absolute->median_absolute, (0.06 + 0.10) / 2, 1e-12);
  EXPECT_NEAR(summary.absolute->mean_absolute, (0.10 + 0.02 + 0.06 + 0.30) / 4, 1e-12);
  EXPECT_NEAR(summary.absolute->bias, (0.10 - 0.02 + 0.06 + 0.30) / 4, 1e-12);
  EXPECT_NEAR(summary.relative->bias, (-0.12 - 0.04 + 0.20) / 3, 1e-12);
  EXPECT_NEAR(summary.relative->median_absolute, 0.12, 1e-12);
  // The noisy cell's structure error doesn't count, the −3 % one does.
  EXPECT_NEAR(*summary.largest_structure_error, -std::log(0.97), 1e-12);
}

TEST(Accuracy, FailsBelowEightyPercent) {
  const auto failed = [](int conclusive, int noisy) {
    Result result;
    for (int i = 0; i < conclusive; ++i) add(result, {"c" + std::to_string(i), times(1), kSteady});
    for (int i = 0; i < noisy; ++i) add(result, {"n" + std::to_string(i), times(1), {1, 2, 1, 2, 1, 2, 1, 2}});
    return assess(result).summaries.at(0).failed;
  };
  EXPECT_FALSE(failed(4, 1));
  EXPECT_TRUE(failed(3, 1));
  EXPECT_FALSE(failed(1, 0));
  EXPECT_TRUE(failed(0, 1));
}

TEST(Accuracy, PairsAreJudgedWhereIntervalsSeparate) {
  const auto summary = [](double a, double b, double c) {
    Result result;
    add(result, {"a", times(a), kSteady});
    add(result, {"b", times(b), times(1.2)});
    add(result, {"c", times(c), times(1.2001)});        // can't be told from b
    add(result, {"b", times(9), times(1.5)}, "local");  // another world: no pair
    return assess(result).summaries.at(0);
  };
  const ForecastSummary right = summary(1, 1.1, 1.3);
  EXPECT_EQ(right.pairs_right, 2U);
  EXPECT_EQ(right.pairs_wrong, 0U);
  EXPECT_EQ(right.pairs_unresolved, 1U);
  const ForecastSummary swapped = summary(1.1, 1, 1.3);
  EXPECT_EQ(swapped.pairs_right, 1U);
  EXPECT_EQ(swapped.pairs_wrong, 1U);
  EXPECT_EQ(summary(1.4, 1, 1.3).pairs_wrong, 2U);
  EXPECT_EQ(summary(1, 1, 1.3).pairs_wrong, 1U);  // a tie is no order
}

TEST(Accuracy, ClassesAreMeansOverRoundsAndShares) {
  Result result;
  Cell& cell = add(result, {"single", {2, 2}, {1, 1}});
  cell.attribution["m"].add({{"y", 1, 1, -0.4}, {"x", 1, 0.5, 0.2}});
  cell.attribution["m"].add({{"x", 3, 0.5, 0.4}});
  EXPECT_EQ(cell.attribution["m"].rounds, 2U);
  Cell& other = add(result, {"b", {2, 2}, {4, 4}});
  other.attribution["m"].add({{"x", 0, 0, -2.0}});
  const Accuracy accuracy = assess(result);
  const std::vector<ClassError> expected{{.name = "x", .effect_s = 0.3}, {.name = "y", .effect_s = -0.2}};
  ASSERT_EQ(forecast(accuracy, 0).classes.size(), 2U);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(forecast(accuracy, 0).classes[i].name, expected[i].name);
    EXPECT_NEAR(forecast(accuracy, 0).classes[i].effect_s, expected[i].effect_s, 1e-12);
  }
  const std::vector<ClassShare>& shares = accuracy.summaries.at(0).classes;
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_EQ(shares[0].name, "x");
  EXPECT_NEAR(shares[0].bias, (0.3 / 1 - 2.0 / 4) / 2, 1e-12);
  EXPECT_NEAR(shares[0].mean_absolute, (0.3 / 1 + 2.0 / 4) / 2, 1e-12);
  EXPECT_EQ(shares[1].cells, 1U);
}

}  // namespace
}  // namespace sim
