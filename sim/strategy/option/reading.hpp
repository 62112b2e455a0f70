// What the rows of this folder's files share.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/strategy/option/option.hpp"

namespace sim {

/// The rows, a function per file.
std::vector<StrategyOption> degree_options();
std::vector<StrategyOption> sequence_options();
std::vector<StrategyOption> pipeline_options();
std::vector<StrategyOption> recompute_options();
std::vector<StrategyOption> zero_options();
std::vector<StrategyOption> bucket_options();
std::vector<StrategyOption> hypar_options();
std::vector<StrategyOption> daso_options();

constexpr std::int64_t kMostRanks = 1 << 20;

/// The parts of "a-b".
std::vector<std::string> split(std::string_view text, char separator);

/// 0 or 1; without being given what the preset has, else `usual`.
bool read_switch(const StrategyReading& reading, std::string_view key, bool usual);

/// Two degrees, 2 without being given, whose product must divide the batch.
std::pair<std::uint32_t, std::uint32_t> read_two_degrees(const StrategyReading& reading, std::string_view outer,
                                                         std::string_view inner);

/// The number's text; empty where the preset has it anyway.
std::string unless_usual(double value, const StrategyKind& kind, std::string_view key, double usual);

}  // namespace sim
