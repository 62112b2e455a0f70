#include "sim/text/system_file.hpp"

#include <cstdlib>
#include <fstream>

namespace sim {

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

}  // namespace sim
