#include "sim/attribution.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "sim/error.hpp"
#include "sim/simulate.hpp"

namespace sim {
namespace {

std::string class_of(const Program& program, const Role& role, std::uint32_t i) {
  switch (role.kind[i]) {
    case InstructionKind::compute:
    case InstructionKind::copy:
    case InstructionKind::update: {
      const Work& work = program.works[role.work[i]];
      return fmt::format("{}.{}", work.op.kind->name, to_string(work.pass));
    }
    case InstructionKind::send:
    case InstructionKind::recv:
      return "send";
    case InstructionKind::collective:
      return std::string(to_string(role.collective[i]));
    case InstructionKind::wait:
      return "";  // a wait has no duration of its own
  }
  throw InternalError("instruction kind {}", static_cast<int>(role.kind[i]));
}

Durations mean_durations(const Program& program, std::span<const Timeline> timelines, const Cluster& cluster) {
  Durations sum;
  const double share = 1.0 / static_cast<double>(timelines.size());
  for (const Timeline& timeline : timelines) {
    const Durations one = durations_of(program, timeline, cluster);
    sum.seconds.resize(one.seconds.size());
    sum.gap_s.resize(one.gap_s.size());
    for (std::size_t r = 0; r < one.seconds.size(); ++r) {
      sum.seconds[r].resize(one.seconds[r].size());
      sum.gap_s[r].resize(one.gap_s[r].size());
      for (std::size_t i = 0; i < one.seconds[r].size(); ++i) {
        sum.seconds[r][i] += share * one.seconds[r][i];
        sum.gap_s[r][i] += share * one.gap_s[r][i];
      }
    }
  }
  return sum;
}

}  // namespace

void sort_by_effect(std::vector<ClassError>& classes) {
  std::ranges::stable_sort(classes, std::greater(), [](const ClassError& c) { return std::abs(c.effect_s); });
}

CostAttribution attribute_cost_error(const Program& program, const Cluster& cluster, const Timeline& predicted,
                                     double expected_s, std::span<const Timeline> measured) {
  check_internal(!measured.empty(), "an attribution without measured steps");
  CostAttribution result;
  const std::vector<Program::Place> places = program.places();
  double measured_s = 0;
  std::vector<double> ends(places.size(), 0);
  for (const Timeline& timeline : measured) {
    measured_s += timeline.step_s / static_cast<double>(measured.size());
    for (std::size_t r = 0; r < places.size(); ++r) ends[r] += timeline.ranks.at(r).end_of_step_s;
  }
  result.critical_rank = static_cast<std::size_t>(std::ranges::max_element(ends) - ends.begin());
  result.difference_s = expected_s - measured_s;

  const Durations before = durations_of(program, predicted, cluster),
                  after = mean_durations(program, measured, cluster);
  const double base_s = replay(program, before, cluster).step_s;
  std::vector<std::vector<std::string>> class_names;  // [role][instruction]
  std::vector<std::string> names{"host"};
  for (const Role& role : program.roles) {
    std::vector<std::string>& of_role = class_names.emplace_back();
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      of_role.push_back(class_of(program, role, i));
      if (!of_role.back().empty() && std::ranges::find(names, of_role.back()) == names.end())
        names.push_back(of_role.back());
    }
  }
  double explained_s = 0;
  for (const std::string& name : names) {
    ClassError error{.name = name};
    Durations mixed = before;
    for (std::size_t r = 0; r < places.size(); ++r) {
      const std::vector<std::string>& of_role = class_names[places[r].role];
      for (std::size_t i = 0; i < of_role.size(); ++i) {
        if (name != "host" && of_role[i] != name) continue;
        double& duration = name == "host" ? mixed.gap_s[r][i] : mixed.seconds[r][i];
        const double replacement = name == "host" ? after.gap_s[r][i] : after.seconds[r][i];
        if (r == result.critical_rank) error.predicted_s += duration, error.measured_s += replacement;
        duration = replacement;
      }
    }
    error.effect_s = base_s - replay(program, mixed, cluster).step_s;
    explained_s += error.effect_s;
    result.classes.push_back(error);
  }
  if (const double jitter_s = expected_s - predicted.step_s; jitter_s != 0) {
    result.classes.push_back({.name = "jitter", .effect_s = jitter_s});
    explained_s += jitter_s;
  }
  sort_by_effect(result.classes);
  result.classes.push_back({.name = "rest", .effect_s = result.difference_s - explained_s});
  return result;
}

}  // namespace sim
