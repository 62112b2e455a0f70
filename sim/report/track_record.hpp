// How far the forecasts of each cost model have been off: what the intervals of new forecasts are made of.
//
//   const TrackRecord record = load_track_record("sim/catalog/track_record.json");
//   record.at("profiled").interval_90(predicted_s);
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
  double mean = 0, sd = 0;  // sd of the sample (n − 1)

  /// Where the measurement of a forecast should lie 90 times of 100; nothing below kFewestErrors.
  [[nodiscard]] std::optional<Interval> interval_90(double predicted_s) const;
};
ErrorRecord record_of(const std::vector<double>& log_errors);

/// By cost model. File format "paragauge-track-record-1": what `paragauge report --record` writes and `predict` reads.
using TrackRecord = std::map<std::string, ErrorRecord>;
std::string to_json(const TrackRecord& record);
TrackRecord load_track_record(const std::filesystem::path& path);

}  // namespace sim
