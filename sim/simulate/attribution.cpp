#include "sim/simulate/attribution.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "sim/error.hpp"
#include "sim/simulate/simulate.hpp"

namespace sim {
namespace {

/// A wait has none: it has no duration of its own.
std::string class_of(const Program& program, const Role& role, std::uint32_t i) {
  if (role.kind[i] == InstructionKind::wait) return "";
  if (role.kind[i] == InstructionKind::collective) return std::string(to_string(role.collective[i]));
  if (!is_computed(role.kind[i])) return "send";
  const Work& work = program.works[role.work[i]];
  return fmt::format("{}.{}", work.op.name(), to_string(work.pass));
}

void add(std::vector<std::vector<double>>& sums, const std::vector<std::vector<double>>& values) {
  sums.resize(values.size());
  for (std::size_t r = 0; r < values.size(); ++r) {
    sums[r].resize(values[r].size());
    for (std::size_t i = 0; i < values[r].size(); ++i) sums[r][i] += values[r][i];
  }
}

}  // namespace

void sort_by_effect(std::vector<ClassError>& classes) {
  std::ranges::stable_sort(classes, std::greater(), [](const ClassError& c) { return std::abs(c.effect_s); });
}

void MeasuredSteps::add(const Program& program, const Timeline& timeline, const Durations& of_step) {
  ++count;
  step_s += step_time(program, timeline).step_s;
  end_s.resize(timeline.ranks.size());
  for (std::size_t r = 0; r < end_s.size(); ++r) end_s[r] += timeline.ranks[r].end_of_step_s;
  sim::add(durations.seconds, of_step.seconds);
  sim::add(durations.host_s, of_step.host_s);
}

CostAttribution attribute_cost_error(const Program& program, const Cluster& cluster, const Timeline& predicted,
                                     double expected_s, const MeasuredSteps& measured) {
  check_internal(measured.count > 0, "an attribution without measured steps");
  CostAttribution result;
  const std::vector<Program::Place> places = program.places();
  const double share = 1.0 / static_cast<double>(measured.count);
  const auto steps = static_cast<double>(program.steps_in_list());
  result.critical_rank = static_cast<std::size_t>(std::ranges::max_element(measured.end_s) - measured.end_s.begin());
  result.difference_s = expected_s - share * measured.step_s;

  const Durations before = durations_of(program, predicted, cluster);
  const auto replayed_s = [&](const Durations& durations) {
    return step_time(program, replay(program, durations, cluster)).step_s;
  };
  const double base_s = replayed_s(before);
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
    const auto of = name == "host" ? &Durations::host_s : &Durations::seconds;
    ClassError error{.name = name};
    Durations mixed = before;
    for (std::size_t r = 0; r < places.size(); ++r) {
      const std::vector<std::string>& of_role = class_names[places[r].role];
      for (std::size_t i = 0; i < of_role.size(); ++i) {
        if (name != "host" && of_role[i] != name) continue;
        double& duration = (mixed.*of)[r][i];
        const double replacement = share * (measured.durations.*of)[r][i];
        if (r == result.critical_rank) error.predicted_s += duration, error.measured_s += replacement;
        duration = replacement;
      }
    }
    error.effect_s = base_s - replayed_s(mixed);
    error.predicted_s /= steps, error.measured_s /= steps;
    explained_s += error.effect_s;
    result.classes.push_back(error);
  }
  if (const double jitter_s = expected_s - step_time(program, predicted).step_s; jitter_s != 0) {
    result.classes.push_back({.name = "jitter", .effect_s = jitter_s});
    explained_s += jitter_s;
  }
  sort_by_effect(result.classes);
  result.classes.push_back({.name = kRestOfEffects, .effect_s = result.difference_s - explained_s});
  return result;
}

}  // namespace sim
