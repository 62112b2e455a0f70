#include "sim/report/knowledge.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "sim/report/console.hpp"

namespace sim {

std::string describe_knowledge(const Forecast& forecast, const CostModelKind& by) {
  constexpr std::size_t kMostNamed = 4;
  if (!(forecast.low_s < forecast.high_s)) return "";
  std::string text = fmt::format("by what {} leaves open from {} to {}", by.knows_from,
                                 readable_seconds(forecast.low_s), readable_seconds(forecast.high_s));
  double share = 0;
  std::vector<std::string> names;
  for (const NewKind& kind : forecast.new_kinds) {
    share += kind.share;
    if (names.size() < kMostNamed) names.push_back(fmt::format("{} ({:.0f} %)", kind.kind, 100 * kind.share));
  }
  if (names.size() < forecast.new_kinds.size()) names.emplace_back("…");
  if (!names.empty())
    text += fmt::format("; {:.0f} % of its compute is of kinds that {} has never seen: {}", 100 * share, by.knows_from,
                        fmt::join(names, "; "));
  names.assign(forecast.guesses.begin(),
               forecast.guesses.begin() + static_cast<std::ptrdiff_t>(std::min(kMostNamed, forecast.guesses.size())));
  if (names.size() < forecast.guesses.size()) names.emplace_back("…");
  if (!names.empty()) text += fmt::format("; not in the profile: {}", fmt::join(names, "; "));
  return text;
}

}  // namespace sim
