#include "sim/model/initial.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ranges>

#include "sim/dtype.hpp"
#include "sim/error.hpp"

namespace sim {

std::shared_ptr<const Runs> part_of(const Runs& runs, std::int64_t begin, std::int64_t count) {
  auto part = std::make_shared<Runs>();
  for (const Run& run : runs) {
    const std::int64_t skipped = std::min(begin, run.count), taken = std::min(count, run.count - skipped);
    if (taken > 0) part->push_back({run.first + run.step * static_cast<double>(skipped), run.step, taken});
    begin -= skipped;
    count -= taken;
  }
  return part;
}

std::int64_t count_of(const Runs& runs) {
  std::int64_t count = 0;
  for (const Run& run : runs) count = std::min(count + run.count, kMostElements + 1);
  return count;
}

std::string to_string(const Runs& runs) {
  std::string text;
  for (const Run& run : runs) {
    text += fmt::format("{}{}", text.empty() ? "" : ",", run.first);
    if (run.step != 0) text += fmt::format("+{}", run.step);
    if (run.count != 1) text += fmt::format("x{}", run.count);
  }
  return text;
}

std::shared_ptr<const Runs> runs_from(std::string_view text) {
  auto runs = std::make_shared<Runs>();
  if (text.empty()) throw ConfigError("'' are no values; expected e.g. 0+1x64,7x3");
  for (const auto part : std::views::split(text, ',')) {
    const char *at = &*part.begin(), *const end = at + std::ranges::distance(part);
    Run& run = runs->emplace_back();
    const auto read = [&](auto& number) {
      const auto [next, error] = std::from_chars(at, end, number);
      if (error != std::errc()) throw ConfigError("'{}' are no values; expected e.g. 0+1x64,7x3", text);
      at = next;
    };
    read(run.first);
    if (at != end && *at == '+') read(*++at == '+' ? run.first : run.step);
    if (at != end && *at == 'x') {
      ++at;
      read(run.count);
    }
    if (at != end || run.count < 1 || run.count > kMostElements || std::isnan(run.first) || !std::isfinite(run.step))
      throw ConfigError("'{}' are no values; expected e.g. 0+1x64,7x3", text);
  }
  return runs;
}

}  // namespace sim
