#include "sim/calibrate/machine_speed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace sim {
namespace {

double difference(double before, double after) {
  return before + after > 0 ? 2 * std::abs(after - before) / (before + after) : 0;
}

}  // namespace

MachineSpeed between(const MachineSpeed& before, const MachineSpeed& after) {
  MachineSpeed speed = mean(std::array{before, after});
  speed.change = std::max(difference(before.memory_alone_s, after.memory_alone_s),
                          difference(before.memory_together_s, after.memory_together_s));
  return speed;
}

MachineSpeed mean(std::span<const MachineSpeed> speeds) {
  MachineSpeed sum;
  const double share = 1 / static_cast<double>(speeds.size());
  for (const MachineSpeed& speed : speeds) {
    sum.compute_s += speed.compute_s * share;
    sum.memory_alone_s += speed.memory_alone_s * share;
    sum.memory_together_s += speed.memory_together_s * share;
    sum.change += speed.change * share;
  }
  return sum;
}

double excess(double seconds, double reference) { return reference > 0 && seconds > 0 ? seconds / reference - 1 : 0; }

std::string describe_speeds(const std::map<int, std::vector<MachineSpeed>>& of_rounds) {
  constexpr double kWorthSaying = 0.05;
  struct Slowest {
    int round = 0, fastest = 0;
    double by = 0;
  };
  std::map<int, MachineSpeed> by_round;
  for (const auto& [round, speeds] : of_rounds) by_round[round] = mean(speeds);
  const auto slowest_of = [&](double MachineSpeed::*seconds) {
    const auto [low, high] =
        std::ranges::minmax_element(by_round, {}, [&](const auto& round) { return round.second.*seconds; });
    return Slowest{high->first + 1, low->first + 1, excess(high->second.*seconds, low->second.*seconds)};
  };
  if (by_round.empty()) return "";
  std::string text;
  const auto add = [&](const char* what, const Slowest& slowest) {
    if (slowest.by < kWorthSaying) return;
    text += fmt::format("{}{} was {:.0f} % slower in round {} than in round {}", text.empty() ? "" : ", ", what,
                        100 * slowest.by, slowest.round, slowest.fastest);
  };
  add("reading memory", slowest_of(&MachineSpeed::memory_alone_s));
  add("computing", slowest_of(&MachineSpeed::compute_s));
  double change = 0;
  for (const auto& [round, speed] : by_round) change += speed.change / static_cast<double>(by_round.size());
  if (change >= kWorthSaying)
    text +=
        fmt::format("{}the memory's speed changed by {:.0f} % within a visit", text.empty() ? "" : ", ", 100 * change);
  return text;
}

}  // namespace sim
