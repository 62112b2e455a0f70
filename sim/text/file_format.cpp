#include "sim/text/file_format.hpp"

#include <charconv>

#include "sim/error.hpp"

namespace sim {

void check_format(JsonObject& file, std::string_view name, int version, std::string_view remedy) {
  check_format(file.text("format"), file.where(), name, version, remedy);
}

void check_format(std::string_view format, std::string_view where, std::string_view name, int version,
                  std::string_view remedy) {
  const std::string expected = fmt::format("{}-{}", name, version);
  if (format == expected) return;
  if (format.starts_with(fmt::format("{}-", name))) {
    int found = 0;
    const auto [end, error] = std::from_chars(format.data() + name.size() + 1, format.data() + format.size(), found);
    if (error == std::errc() && end == format.data() + format.size()) {
      if (found < version) throw ConfigError("{}: format '{}' is older than '{}'; {}", where, format, expected, remedy);
      throw ConfigError("{}: format '{}' is newer than '{}'; it needs a newer paragauge", where, format, expected);
    }
  }
  throw ConfigError("{}: format '{}' is not '{}'", where, format, expected);
}

}  // namespace sim
