#include "sim/simulate/forecast.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
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

/// The step with every transfer `z` standard deviations of its uncertainty from its cost.
double step_with(const PlacedProgram& placed, Costs costs, double z) {
  for (TransferCost& transfer : costs.transfers) {
    const double factor = std::exp(z * transfer.sd);
    transfer.latency_s *= factor, transfer.wire_s *= factor;
  }
  return simulate(placed, costs).step_s;
}

/// The share of the transfers' time that is novel; 0 without transfers.
double novelty_of_transfers(const Costs& costs) {
  double seconds = 0, novel_s = 0;
  for (std::size_t t = 0; t < costs.transfers.size(); ++t) {
    const TransferCost& cost = costs.transfers[t];
    const double of_kind_s = costs.transfer_counts[t] * (cost.latency_s + cost.wire_s);
    seconds += of_kind_s;
    novel_s += cost.novelty * of_kind_s;
  }
  return seconds > 0 ? novel_s / seconds : 0;
}

void add_guesses(Forecast& forecast) {
  const Costs& costs = forecast.costs;
  const auto add = [&](const std::string& name, Source source, std::string_view broader) {
    if (source == Source::profile) return;
    const std::string guess = fmt::format("{} ({})", name, source == Source::data_sheet ? "data sheet" : broader);
    if (std::ranges::find(forecast.guesses, guess) == forecast.guesses.end()) forecast.guesses.push_back(guess);
  };
  for (std::size_t i = 0; i < costs.transfers.size(); ++i)
    add(costs.transfer_names[i], costs.transfers[i].source, "other transfers");
  for (const Knowledge& knowledge : costs.knowledge)  // "conv2d.forward" of "conv2d.forward 5x5, …"
    add(knowledge.kind.substr(0, knowledge.kind.find_first_of(" ,")), knowledge.source, "other shapes");
}

/// What the knowledge of the costs says of the whole step. What isn't exposed communication scales with compute.
void add_knowledge(const Program& program, const Cluster& cluster, bool of_transfers, Forecast& forecast) {
  struct Kind {
    double seconds = 0, less_s = 0, more_s = 0;  // of the 90 % interval's ends
    bool is_new = false;
  };
  constexpr double kFar = 0.5;  // novelty
  std::map<std::string, Kind> kinds;
  std::map<std::pair<std::string, bool>, KindSpread> spreads;  // by kind, and whether it is a guess
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
    if (!(knowledge.sd > 0)) continue;
    const bool is_guess = knowledge.novelty >= kFar;
    KindSpread& spread = spreads.try_emplace({knowledge.kind, is_guess}, knowledge.kind, 0, is_guess).first->second;
    spread.sd += seconds[work] * knowledge.sd;
    spread.works += std::hash<std::string>()(work_key(program.works[work]));
  }
  const double step_s = forecast.step.step_s;
  forecast.low_s = forecast.high_s = step_s;
  if (!(step_s > 0)) return;
  const double exposed = forecast.step.exposed_communication_s / step_s;  // the share of the step
  double below = 0, above = 0;                                            // squares of ln(step / an end)
  if (compute_s > 0) {
    forecast.novelty *= (1 - exposed) / compute_s;
    double less = std::pow(far.less_s / compute_s, 2), more = std::pow(far.more_s / compute_s, 2);
    for (const auto& [name, kind] : kinds) {
      less += std::pow(kind.less_s / compute_s, 2);
      more += std::pow(kind.more_s / compute_s, 2);
      if (kind.is_new) forecast.new_kinds.push_back({name, kind.seconds / compute_s});
    }
    std::ranges::stable_sort(forecast.new_kinds, std::ranges::greater(), &NewKind::share);
    below += std::pow(std::log1p(-(1 - exposed) * std::sqrt(less)), 2);
    above += std::pow(std::log1p((1 - exposed) * std::sqrt(more)), 2);
  }
  const Costs& costs = forecast.costs;
  forecast.novelty += exposed * novelty_of_transfers(costs);
  if (of_transfers && std::ranges::any_of(costs.transfers, [](const TransferCost& cost) { return cost.sd > 0; })) {
    const PlacedProgram placed(program, cluster);
    const double as_forecast_s = step_with(placed, costs, 0);
    below += std::pow(std::log(as_forecast_s / step_with(placed, costs, -kNormal90)), 2);
    above += std::pow(std::log(step_with(placed, costs, kNormal90) / as_forecast_s), 2);
    forecast.spreads.push_back({.kind = "transfers", .sd = std::log(step_with(placed, costs, 1) / as_forecast_s)});
  }
  below += std::pow(kNormal90 * costs.common_sd, 2);
  above += std::pow(kNormal90 * costs.common_sd, 2);
  forecast.low_s *= std::exp(-std::sqrt(below));
  forecast.high_s *= std::exp(std::sqrt(above));
  for (auto& [key, spread] : spreads) {
    spread.sd *= (1 - exposed) / compute_s;
    forecast.spreads.push_back(std::move(spread));
  }
  add_guesses(forecast);
}

}  // namespace

Forecast forecast(const Program& program, const Cluster& cluster, const CostModel& cost_model, const Scale& scale,
                  bool of_transfers) {
  constexpr std::uint32_t kBodies = 8;
  if (program.is_periodic()) return forecast(unroll(program, kBodies), cluster, cost_model, scale, of_transfers);
  Forecast result{.costs = costs_of(program, cost_model, cluster), .step = {}};
  if (!scale.is_identity()) result.costs = scaled(result.costs, program, cluster, scale);
  result.step = expected_step(program, result.costs, cluster);
  add_knowledge(program, cluster, of_transfers, result);
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
