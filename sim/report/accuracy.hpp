// How far the forecasts of a Result can be trusted.
//
//   Accuracy accuracy = assess(result);
//   accuracy.cells[0].forecasts.at("profiled").absolute->log_ratio;    // ln(predicted / measured)
//   accuracy.summaries[0].failed;                                      // under 80 % of the cells are conclusive
//
// Definitions. P and M are means over the rounds that have both a forecast and a measurement; a round's
// measurement is the mean of its steps.
//
//   absolute           ln(P / M)
//   relative           ln(P / M) − the same of `single` (same model, world and executor), over the rounds that both
//                      cells have; drift cancels
//   structure          ln(R / M), R the step time with the measured durations replayed in the predicted dependencies
//   noise floor        split-half difference of the cell's own measurement (sim/report/measurement.hpp)
//   conclusive         the noise floor is known and at most 2 %
//   forecast interval  90 %: how far the forecasts of *other* models by the same cost model were off, in this result or
//                      in a track record of earlier ones on the same device: μ ± t₀.₉₅ s √(1 + 1/n) of their log errors.
//                      No error of the model itself is in it, nor of ranks with other numbers of threads. Without
//                      other models in this result: the wider one of the track record's and the forecast's own
//                      (sim/simulate/forecast.hpp). None of these: no interval
//   coverage           the share of cells whose measured step lies inside; should be 85–95 %
//
// The other intervals are 95 % bootstrap intervals over rounds; both sides of a ratio are drawn together. Noise excuses
// nothing: the errors of inconclusive cells count in the summary like all others.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/report/measurement.hpp"
#include "sim/report/result.hpp"
#include "sim/report/told_apart.hpp"
#include "sim/report/track_record.hpp"

namespace sim {

constexpr double kConclusiveNoiseFloor = 0.02;
constexpr double kConclusiveShare = 0.8;

/// A natural logarithm of a ratio: +0.02 is 2 % too slow a forecast.
struct LogError {
  double log_ratio = 0;
  std::optional<Interval> interval;
};

struct ForecastAccuracy {
  StepTime predicted;                   // mean over rounds
  std::optional<Interval> interval_90;  // of the step
  std::string interval_from;            // whose errors it is made of, or what leaves it open, in words
  ComparedForecast compared;            // with what is known of its errors
  std::optional<RatioRecord> ratios;    // the track record that `compared` has
  /// Whether it is told apart from the fastest forecast of what fits of its model (sim/report/told_apart.hpp); nothing
  /// for that one itself, and where nothing fits.
  std::optional<bool> told_from_fastest;
  std::optional<bool> covered;  // the measured mean lies in it
  std::optional<double> predicted_population_deviation_s;
  std::optional<LogError> absolute, relative;
  std::vector<ClassError> classes;  // means over rounds, the largest effect first
};

struct CellAccuracy {
  Measurement measured_step;         // by round
  std::optional<StepTime> measured;  // mean over rounds
  std::optional<Interval> interval;  // of the mean step
  std::optional<double> median_s;    // of a round's steps, mean over rounds
  std::optional<double> noise_floor;
  bool conclusive = false;
  std::optional<LogError> structure;
  std::map<std::string, LogError, std::less<>> against_peer;  // by peer: ln(measured / its step), same rounds
  std::map<std::string, ForecastAccuracy> forecasts;          // by cost model
};
/// Beyond noise: the whole interval of its measured step is below the other's. Not where one has none.
bool is_faster(const CellAccuracy& cell, const CellAccuracy& other);

/// Errors of many cells.
struct ErrorSummary {
  double median_absolute = 0, mean_absolute = 0, bias = 0;  // of |e|, |e|, e
};

struct ClassShare {
  std::string name;
  double bias = 0, mean_absolute = 0;  // effect relative to the measured step, over the cells that have the class
  std::size_t cells = 0;
};

/// One executor × cost model.
struct ForecastSummary {
  std::string executor, cost_model;
  std::size_t cells = 0, conclusive = 0,
              skipped = 0;  // with both forecast and measurement; of these; that could not run
  std::optional<double> conclusive_share;
  bool failed = true;  // as a measurement: unless at least 80 % of the cells are conclusive
  std::optional<ErrorSummary> absolute, relative;
  std::optional<double> largest_structure_error;  // |·|, conclusive cells only
  std::size_t with_interval = 0;
  std::optional<double> coverage;  // of those with a forecast interval
  /// Pairs of strategies (same model and world) whose measured intervals don't overlap, ordered as predicted or not.
  /// Equal forecasts are wrong.
  std::size_t pairs_right = 0, pairs_wrong = 0, pairs_unresolved = 0;
  std::vector<ClassShare> classes;  // what carries the error, the most first
};

struct Accuracy {
  std::vector<CellAccuracy> cells;  // like Result::cells
  std::vector<ForecastSummary> summaries;
};
/// `record`: for models whose result has too few others; null: their forecasts' own interval is all there is.
Accuracy assess(const Result& result, const TrackRecord* record = nullptr);
/// The errors of our own executor's cells by device, all models together, of ranks with a thread each.
TrackRecord track_record(const Result& result);

}  // namespace sim
