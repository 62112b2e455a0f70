// Under which conditions a file was measured, and whether what is measured is still under the same.
//
//   const std::string id = content_id(to_text(program));      // is it still the same program?
//   check_same_conditions(profile.environment, context_of_today, "cpu.json");     // ConfigError, nothing is lost
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace sim {

/// A hash of the text: 16 hexadecimal digits.
std::string content_id(std::string_view text);

/// Both are what the programs write about machine, build and options into their files. Times of other devices, another
/// scheduling, number of cores, CPU, LibTorch or code can't be merged. ConfigError names the first that differs; what a
/// file doesn't tell isn't compared.
void check_same_conditions(const nlohmann::json& then, const nlohmann::json& now, const std::string& file);

}  // namespace sim
