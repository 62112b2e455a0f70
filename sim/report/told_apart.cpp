#include "sim/report/told_apart.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "sim/report/measurement.hpp"

namespace sim {

std::optional<double> ratio_sd(const ComparedForecast& a, const ComparedForecast& b) {
  struct Pair {
    double a = 0, b = 0;
    std::size_t works_a = 0, works_b = 0;
  };
  std::map<std::pair<std::string, bool>, Pair> kinds;  // by name, and whether it is a guess
  for (const KindSpread& kind : a.spreads) {
    Pair& pair = kinds[{kind.kind, kind.is_guess}];
    pair.a += kind.sd, pair.works_a += kind.works;
  }
  for (const KindSpread& kind : b.spreads) {
    Pair& pair = kinds[{kind.kind, kind.is_guess}];
    pair.b += kind.sd, pair.works_b += kind.works;
  }
  double variance = 0, guesses = 0, at_other_shapes = 0;
  for (const auto& [kind, pair] : kinds) {
    if (!kind.second) {
      variance += std::pow(pair.b - pair.a, 2);
      continue;
    }
    guesses += pair.b - pair.a;
    if (pair.works_a != pair.works_b) at_other_shapes += (pair.a + pair.b) / 2;
  }
  variance += std::pow(guesses, 2) + std::pow(kGuessAtOtherShapes * at_other_shapes, 2);
  for (const ComparedForecast* one : {&a, &b})
    if (one->spreads.empty()) variance += std::pow(one->stated_sd, 2);
  const bool is_known = a.ratio_sd || b.ratio_sd || !kinds.empty() || variance > 0;
  if (!is_known) return std::nullopt;
  variance += std::pow(std::max(a.ratio_sd.value_or(0), b.ratio_sd.value_or(0)), 2);
  return std::sqrt(variance);
}

bool told_apart(const ComparedForecast& a, const ComparedForecast& b) {
  const std::optional<double> sd = ratio_sd(a, b);
  return sd && std::abs(std::log(b.step_s / a.step_s)) > kNormal95 * *sd;
}

}  // namespace sim
