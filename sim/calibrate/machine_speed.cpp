#include "sim/calibrate/machine_speed.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "sim/cost/statistic.hpp"

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
  const auto between_cores = std::ranges::count_if(speeds, [](const auto& speed) { return speed.core_to_core_s > 0; });
  for (const MachineSpeed& speed : speeds) {
    if (between_cores > 0) sum.core_to_core_s += speed.core_to_core_s / static_cast<double>(between_cores);
    sum.compute_s += speed.compute_s * share;
    sum.memory_alone_s += speed.memory_alone_s * share;
    sum.memory_together_s += speed.memory_together_s * share;
    sum.change += speed.change * share;
  }
  return sum;
}

double uninterrupted_s(std::span<const double> parts_s) {
  std::vector<double> parts(parts_s.begin(), parts_s.end());
  without_interruptions(parts);
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

double excess(double seconds, double reference) { return reference > 0 && seconds > 0 ? seconds / reference - 1 : 0; }

std::string describe_speeds(std::span<const NamedSpeed> speeds, double worth_saying) {
  constexpr double kApart = 1;  // about 0.3 in either place, 2 to 3 from one to the other
  std::vector<std::string> parts;
  const auto add = [&](double MachineSpeed::*seconds, double least, const auto& describe) {
    std::vector<NamedSpeed> known(speeds.begin(), speeds.end());
    std::erase_if(known, [&](const NamedSpeed& speed) { return speed.second.*seconds <= 0; });
    if (known.empty()) return;
    const auto [low, high] =
        std::ranges::minmax_element(known, {}, [&](const NamedSpeed& speed) { return speed.second.*seconds; });
    const double slower = excess(high->second.*seconds, low->second.*seconds);
    if (slower >= least) parts.push_back(describe(slower, high->first, low->first));
  };
  for (const auto& [what, seconds] :
       {std::pair("reading memory", &MachineSpeed::memory_alone_s), std::pair("computing", &MachineSpeed::compute_s)})
    add(seconds, worth_saying, [what](double slower, const std::string& there, const std::string& here) {
      return fmt::format("{} was {:.0f} % slower {} than {}", what, 100 * slower, there, here);
    });
  add(&MachineSpeed::core_to_core_s, kApart, [](double slower, const std::string& there, const std::string& here) {
    return fmt::format("data took {:.1f} times as long from core to core {} as {}: the host had moved them apart",
                       1 + slower, there, here);
  });
  return fmt::to_string(fmt::join(parts, ", "));
}

std::string describe_speeds(const std::map<int, std::vector<MachineSpeed>>& of_rounds) {
  constexpr double kWorthSaying = 0.05;
  std::vector<NamedSpeed> by_round;
  double change = 0;
  for (const auto& [round, speeds] : of_rounds) {
    by_round.emplace_back(fmt::format("in round {}", round + 1), mean(speeds));
    change += by_round.back().second.change / static_cast<double>(of_rounds.size());
  }
  std::string text = describe_speeds(by_round, kWorthSaying);
  if (change >= kWorthSaying)
    text +=
        fmt::format("{}the memory's speed changed by {:.0f} % within a visit", text.empty() ? "" : ", ", 100 * change);
  return text;
}

}  // namespace sim
