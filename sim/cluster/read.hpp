// Numbers of device and cluster files, within the ranges that a machine can have.
//
//   device.launch = read_time_us(file, "launch_us");     // ConfigError with file, key and range
#pragma once

#include <optional>
#include <string_view>

#include "sim/text/spec.hpp"
#include "sim/units.hpp"

namespace sim {

// A rate or size in its unit, a share that something is divided by, and a time in microseconds: from far below to far
// above all machines, so that a step's time is finite and more than nothing.
constexpr double kLeastRate = 1e-9, kMostSize = 1e12, kLeastShare = 1e-6, kLongest_us = 1e12;

/// A rate or a size, in the unit that the key names, that is at most so much: more is a number in another unit (GFLOP/s,
/// bytes).
double read_rate_up_to(double most, JsonObject& json, std::string_view key);
/// A size that may be nothing.
Bytes read_size_MiB(JsonObject& json, std::string_view key, Bytes otherwise);
Seconds read_time_us(JsonObject& json, std::string_view key, std::optional<double> otherwise = std::nullopt);
/// Reads a share from `minimum` to 1.
double read_share(JsonObject& json, std::string_view key, double otherwise, double minimum = 0);

}  // namespace sim
