// How far the forecasts of each cost model have been off on a device: what the intervals of new forecasts for that
// device are made of. Another device's errors say nothing: a data sheet may be right for one and wrong for the other.
//
//   const TrackRecord record = load_track_record("bench/results/track_record.json");
//   const ErrorRecord* errors = find(record, "AMD EPYC, family 25, model 17", "profiled");
//   if (errors != nullptr) errors->interval_90(predicted_s);
#pragma once

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/report/measurement.hpp"

namespace sim {

/// Log errors of other models below which there's no forecast interval.
constexpr std::size_t kFewestErrors = 8;

/// The log errors ln(predicted / measured) of some forecasts.
struct ErrorRecord {
  std::size_t count = 0;
  double mean = 0, sd = 0;            // sd of the sample (n − 1)
  std::optional<double> relative_sd;  // of the errors relative to `single`
  double relative_mean = 0;           // which between two others cancels

  /// Where the measurement of a forecast should lie 90 times of 100; nothing below kFewestErrors.
  [[nodiscard]] std::optional<Interval> interval_90(double predicted_s) const;
};
ErrorRecord record_of(const std::vector<double>& log_errors);

/// The errors by device (Cluster::device_name()) and cost model. File format "paragauge-track-record-2": what
/// `paragauge report --record` writes and `predict` reads.
using TrackRecord = std::map<std::string, std::map<std::string, ErrorRecord>>;
/// Null where there's none.
const ErrorRecord* find(const TrackRecord& record, const std::string& device, const std::string& cost_model);
/// How much a cost model's ratios to `single` have been off.
struct RatioRecord {
  double sd = 0;       // of their log errors: between two strategies that aren't `single`
  double from_0 = 0;   // with their mean: between `single` and another
  std::string device;  // where
};
/// The record on this device, or, where it has none, on the one where they were off the most; nothing without any.
std::optional<RatioRecord> ratio_record(const TrackRecord& record, const std::string& device,
                                        const std::string& cost_model);
std::string to_json(const TrackRecord& record);
TrackRecord load_track_record(const std::filesystem::path& path);

}  // namespace sim
