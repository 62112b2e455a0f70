#include "sim/simulate/forecast.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "sim/program/memory.hpp"
#include "sim/program/unroll.hpp"
#include "sim/simulate/simulate.hpp"

namespace sim {
namespace {

/// Device seconds of each work in a step, of all ranks together.
std::vector<double> compute_by_work(const Program& program, const Costs& costs) {
  std::vector<double> seconds(program.works.size());
  for (const Role& role : program.roles)
    for (const std::uint32_t work : role.work)
      if (work != kNone)
        seconds[work] += costs.work_s[work * costs.busy_levels] * static_cast<double>(role.ranks.size());
  return seconds;
}

/// What the knowledge of the costs says of the whole step. What isn't exposed communication scales with compute.
void add_knowledge(const Program& program, Forecast& forecast) {
  struct Kind {
    double seconds = 0, less_s = 0, more_s = 0;  // of the 90 % interval's ends
    bool is_new = false;
  };
  constexpr double kFar = 0.5;  // novelty
  std::map<std::string, Kind> kinds;
  Kind far;
  double compute_s = 0;
  const std::vector<double> seconds = compute_by_work(program, forecast.costs);
  for (std::size_t work = 0; work < seconds.size(); ++work) {
    const Knowledge& knowledge = forecast.costs.knowledge[work];
    Kind& kind = kinds[knowledge.kind];
    Kind& errors = knowledge.novelty < kFar ? kind : far;
    kind.seconds += seconds[work];
    errors.less_s += seconds[work] * (1 - std::exp(-kNormal90 * knowledge.sd));
    errors.more_s += seconds[work] * (std::exp(kNormal90 * knowledge.sd) - 1);
    kind.is_new |= knowledge.kind_is_new;
    compute_s += seconds[work];
    forecast.novelty += seconds[work] * knowledge.novelty;
  }
  forecast.low_s = forecast.high_s = forecast.step.step_s;
  if (!(compute_s > 0)) return;
  forecast.novelty /= compute_s;
  double less = std::pow(far.less_s / compute_s, 2), more = std::pow(far.more_s / compute_s, 2);
  for (const auto& [name, kind] : kinds) {
    less += std::pow(kind.less_s / compute_s, 2);
    more += std::pow(kind.more_s / compute_s, 2);
    if (kind.is_new) forecast.new_kinds.push_back({name, kind.seconds / compute_s});
  }
  std::ranges::stable_sort(forecast.new_kinds, std::ranges::greater(), &NewKind::share);
  const double scaling_s = forecast.step.step_s - forecast.step.exposed_communication_s;
  forecast.low_s -= scaling_s * std::sqrt(less);
  forecast.high_s += scaling_s * std::sqrt(more);
}

}  // namespace

std::string describe_knowledge(const Forecast& forecast, const CostModelKind& by) {
  constexpr std::size_t kMostNamed = 4;
  if (!(forecast.low_s < forecast.high_s)) return "";
  std::string text = fmt::format("by what {} leaves open from {:.3g} to {:.3g} ms", by.knows_from, 1e3 * forecast.low_s,
                                 1e3 * forecast.high_s);
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
  return text;
}

Forecast forecast(const Program& program, const Cluster& cluster, const CostModel& cost_model, const Scale& scale) {
  const auto of_list = [&](const Program& list) {
    Forecast result{.costs = costs_of(list, cost_model, cluster), .step = {}};
    if (!scale.is_identity()) result.costs = scaled(result.costs, list, cluster, scale);
    result.step = expected_step(list, result.costs, cluster);
    return result;
  };
  if (!program.is_periodic()) {
    Forecast result = of_list(program);
    add_knowledge(program, result);
    return result;
  }
  constexpr std::uint32_t kFew = 2, kMany = 6;
  const Program few = unroll(program, kFew);
  Forecast result = of_list(few);
  const StepTime many = of_list(unroll(program, kMany)).step;
  for (const StepPart& part : kStepParts)
    result.step.*part.value =
        (many.*part.value - result.step.*part.value) / ((kMany - kFew) * static_cast<double>(program.steps));
  add_knowledge(few, result);
  return result;
}

MemoryForecast forecast_memory(const Program& program, const Costs& costs, const Cluster& cluster,
                               std::span<const double> process_bytes, bool process_per_rank) {
  double peak = 0, all = 0;
  std::vector<double> held;                // by role
  std::vector<std::int64_t> tensor_peaks;  // by role
  for (const Role& role : program.roles) {
    const std::vector<Staging> staging = staging_of(program, role, cluster.link().transport);
    peak = std::max(peak, peak_with_workspace(role, costs.workspace_bytes, staging));
    held.push_back(memory_with_reuse(role, costs.workspace_bytes, staging));
    tensor_peaks.push_back(peak_memory(role, staging).peak_bytes);
    all += held.back() * static_cast<double>(role.ranks.size());
  }
  MemoryForecast memory{std::llround(peak), std::nullopt};
  if (process_bytes.empty()) return memory;
  if (!process_per_rank) {
    memory.resident_peak_bytes = std::llround(process_bytes[0] + all);
    return memory;
  }
  const auto largest = static_cast<std::size_t>(std::ranges::max_element(tensor_peaks) - tensor_peaks.begin());
  const std::size_t process = std::min<std::size_t>(program.roles[largest].ranks.front(), process_bytes.size() - 1);
  memory.resident_peak_bytes = std::llround(process_bytes[process] + held[largest]);
  return memory;
}

}  // namespace sim
