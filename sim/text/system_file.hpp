// What Linux says in its text files (/proc, /sys).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace sim {

/// None where there is no such file, or it's empty.
std::optional<std::string> first_line(const std::string& path);
/// "model name : AMD EPYC" → "AMD EPYC", of the first line that begins with the key; none where there is none.
std::optional<std::string> field(const std::string& path, std::string_view key);
/// The value of a field like "VmHWM: 1024 kB", in bytes.
std::optional<double> field_bytes(const std::string& path, std::string_view key);

}  // namespace sim
