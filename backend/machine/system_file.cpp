#include "backend/machine/system_file.hpp"

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace backend {

std::optional<std::string> first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) return std::nullopt;
  return line;
}

std::optional<std::string> field(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(key)) continue;
    const std::size_t value = line.find_first_not_of(" \t", line.find(':') + 1);
    if (value == std::string::npos) return std::nullopt;
    return line.substr(value);
  }
  return std::nullopt;
}

std::optional<double> field_bytes(const std::string& path, std::string_view key) {
  const std::optional<std::string> value = field(path, key);
  if (!value) return std::nullopt;
  return std::strtod(value->c_str(), nullptr) * 1024;
}

std::optional<double> group_available(const std::string& folder) {
  const auto number = [](const std::optional<std::string>& text) {
    return std::strtod(text.value_or("").c_str(), nullptr);
  };
  const double limit = number(first_line(folder + "/memory.max"));  // "max", that is 0, where there is none
  if (limit <= 0) return std::nullopt;
  double used = number(first_line(folder + "/memory.current"));
  // "inactive_file 4096": without a colon.
  std::ifstream statistic(folder + "/memory.stat");
  double bytes = 0;
  for (std::string name; statistic >> name >> bytes;)
    if (name == "inactive_file" || name == "active_file") used -= bytes;
  return std::max(0.0, limit - std::max(0.0, used));
}

std::optional<double> free_host_memory() {
  const std::optional<double> machine = field_bytes("/proc/meminfo", "MemAvailable:"),
                              group = group_available("/sys/fs/cgroup");
  if (!machine || !group) return machine ? machine : group;
  return std::min(*machine, *group);
}

}  // namespace backend
