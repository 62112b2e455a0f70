#include "sim/strategy/option/option.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {

bool read_switch(const StrategyReading& r, std::string_view key, bool usual) {
  return r.text.integer(key, static_cast<std::int64_t>(r.kind.otherwise(key, usual ? 1 : 0)), 0, 1) == 1;
}

std::string unless_usual(double value, const StrategyKind& kind, std::string_view key, double usual) {
  return value == kind.otherwise(key, usual) ? "" : fmt::format("{}", value);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

const Table<StrategyOption>& strategy_option_table() {
  static const std::vector<StrategyOption> rows = [] {
    std::vector<StrategyOption> all;
    for (const auto& options : {daso_options, degree_options, sequence_options, pipeline_options, recompute_options,
                                zero_options, bucket_options, hypar_options}) {
      const std::vector<StrategyOption> more = options();
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }();
  static const Table<StrategyOption> table("strategy key", rows);
  return table;
}

}  // namespace sim
