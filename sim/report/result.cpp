#include "sim/report/result.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "sim/calibrate/conditions.hpp"
#include "sim/error.hpp"
#include "sim/program/memory.hpp"
#include "sim/program/traffic.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

std::optional<std::size_t> Result::find(std::string_view model, std::string_view strategy, std::string_view world,
                                        std::string_view executor) const {
  for (std::size_t i = 0; i < cells.size(); ++i)
    if (const Cell& cell = cells[i];
        cell.model == model && cell.strategy == strategy && cell.world == world && cell.executor == executor)
      return i;
  return std::nullopt;
}

Cell& Result::cell(std::string_view model, std::string_view strategy, std::string_view world,
                   std::string_view executor) {
  if (const auto found = find(model, strategy, world, executor)) return cells[*found];
  Cell& added = cells.emplace_back();
  added.model = model, added.strategy = strategy, added.world = world, added.executor = executor;
  return added;
}

Cell& Result::cell(const Program& program, std::string_view world, std::string_view executor) {
  Cell& found = cell(program.model, program.strategy, world, executor);
  found.ranks = program.ranks();
  found.threads = program.threads;
  found.replicas = static_cast<std::int64_t>(program.batch_pieces().size());
  found.microbatches = program.microbatches;
  found.global_batch = program.global_batch;
  return found;
}

namespace {

/// Nothing where they are more than 2^60.
std::optional<std::int64_t> sum_of(const std::map<std::string, std::int64_t>& uses) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  std::int64_t sum = 0;
  for (const auto& [use, bytes] : uses) {
    if (bytes > kMost - sum) return std::nullopt;
    sum += bytes;
  }
  return sum;
}

std::map<std::string, std::int64_t> by_name(const MemoryUses& uses) {
  std::map<std::string, std::int64_t> named;
  for (std::size_t use = 0; use < uses.size(); ++use)
    if (uses[use] > 0) named[std::string(to_string(static_cast<MemoryUse>(use)))] = uses[use];
  return named;
}

/// "0,2,4-7"; of many pieces the first three and the last.
std::string ranges_text(const std::vector<std::uint32_t>& ranks) {
  std::vector<std::string> pieces;
  for (std::size_t begin = 0, end = 0; begin < ranks.size(); begin = end) {
    for (end = begin + 1; end < ranks.size() && ranks[end] <= ranks[end - 1] + 1;) ++end;
    pieces.push_back(end - begin == 1 ? fmt::to_string(ranks[begin])
                                      : fmt::format("{}-{}", ranks[begin], ranks[end - 1]));
  }
  constexpr std::size_t kMost = 5;
  if (pieces.size() > kMost) {
    pieces.erase(pieces.begin() + 3, pieces.end() - 1);
    pieces.insert(pieces.end() - 1, "…");
  }
  return fmt::to_string(fmt::join(pieces, ","));
}

}  // namespace

std::int64_t DeviceNeed::needed() const { return sum_of(needed_bytes).value_or(0); }

std::optional<std::int64_t> CellMemory::needed() const {
  return needed_bytes.empty() ? std::nullopt : sum_of(needed_bytes);
}

std::optional<std::int64_t> CellMemory::least_needed() const {
  const auto least = std::ranges::min_element(by_device, {}, &DeviceNeed::needed);
  return least == by_device.end() ? std::nullopt : std::optional(least->needed());
}

std::optional<bool> CellMemory::fits() const {
  const std::optional<std::int64_t> bytes = needed();
  return bytes && capacity_bytes ? std::optional(*bytes <= *capacity_bytes) : std::nullopt;
}

void check_not_all_skipped(const Result& result) {
  std::vector<std::string> reasons;
  for (const Cell& cell : result.cells) {
    if (cell.skipped.empty()) return;
    if (std::ranges::find(reasons, cell.skipped) == reasons.end()) reasons.push_back(cell.skipped);
  }
  if (!reasons.empty()) throw ConfigError("{}", fmt::join(reasons, "; "));
}

Cell skipped_cell(const Model& model, std::string_view strategy, std::string_view world, std::string_view why) {
  Cell cell;
  cell.model = model.text();
  cell.strategy = strategy;
  cell.world = world;
  cell.global_batch = model.global_batch;
  cell.skipped = why;
  return cell;
}

void place(Cell& cell, const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes) {
  CellMemory& memory = cell.memory;
  memory.predicted_peak_bytes = 0;
  for (const Role& role : program.roles) {
    const Memory peak = peak_memory(role, staging_of(program, role, cluster.link().transport));
    if (peak.peak_bytes < *memory.predicted_peak_bytes) continue;
    memory.predicted_peak_bytes = peak.peak_bytes;
    for (int c = 0; c < kTensorClasses; ++c)
      memory.predicted_at_peak_bytes[std::string(to_string(static_cast<TensorClass>(c)))] =
          peak.at_peak[static_cast<std::size_t>(c)];
  }
  const MemoryFit fit = fit_memory(program, cluster, workspace_bytes);
  cell.device = cluster.device_name();
  cell.devices = fit.devices;
  cell.cores = cluster.device.asynchronous ? 0 : cluster.devices();
  const Traffic traffic = traffic_of(program);
  cell.sent_bytes = static_cast<std::int64_t>(traffic.sent_bytes);
  cell.transfers = traffic.transfers;
  if (fit.capacity_bytes > 0) memory.capacity_bytes = fit.capacity_bytes;
  memory.needed_bytes = by_name(fit.needed);
  memory.fused_needed_bytes.reset();
  if (fit.needed[static_cast<std::size_t>(MemoryUse::optimizer_temporaries)] > 0)
    memory.fused_needed_bytes = fit.fused_bytes;
  memory.by_device.clear();
  for (const MemoryNeed& need : fit.each)
    memory.by_device.push_back({ranges_text(need.ranks), need.devices, by_name(need.uses)});
}

int Result::next_round() const {
  const auto is_measured = [](const Cell& cell) { return cell.executor == kOurs && cell.skipped.empty(); };
  const auto lacks = [&](const Cell& cell, int round) {
    return is_measured(cell) && std::ranges::none_of(cell.rounds, [&](const Round& r) { return r.round == round; });
  };
  int next = 0;
  if (std::ranges::none_of(cells, is_measured)) return next;
  while (std::ranges::none_of(cells, [&](const Cell& cell) { return lacks(cell, next); })) ++next;
  return next;
}

void RoundSteps::add(std::span<const StepTime> steps) {
  check_internal(samples.size() == count, "steps are added to a summary of {}", count);
  if (steps.empty()) return;
  samples.insert(samples.end(), steps.begin(), steps.end());
  count = samples.size();
  mean = sim::mean(samples);
  double squares = 0;
  std::vector<double> seconds;
  for (const StepTime& step : samples) {
    squares += std::pow(step.step_s - mean.step_s, 2);
    seconds.push_back(step.step_s);
  }
  sd_s = count > 1 ? std::sqrt(squares / static_cast<double>(count - 1)) : 0;
  median_s = median_of(std::move(seconds));
}

void Round::add_forecast(const std::string& cost_model, const Forecast& forecast) {
  predicted[cost_model] = forecast.step;
  if (forecast.low_s < forecast.high_s) stated_90[cost_model] = {forecast.low_s, forecast.high_s};
  if (forecast.novelty > 0) novelty[cost_model] = forecast.novelty;
  if (!forecast.guesses.empty()) guesses[cost_model] = forecast.guesses;
}

void Attribution::add(const std::vector<ClassError>& of_round) {
  const auto before = static_cast<double>(rounds), now = static_cast<double>(++rounds);
  for (auto& [name, mean_s] : effects_s) mean_s *= before / now;
  for (const ClassError& c : of_round) effects_s[c.name] += c.effect_s / now;
}

void Result::check_conditions(const nlohmann::json& context, const std::string& where) const {
  for (const Session& session : sessions)
    for (const char* condition :
         {"/device", "/network", "/graph", "/scheduling", "/environment/cpu/model", "/environment/cpu/usable_cores",
          "/environment/gpus", "/options/real_time", "/options/steps", "/options/visits", "/options/fit_on"}) {
      const nlohmann::json::json_pointer key(condition);
      if (session.context.contains(key) && context.contains(key) && session.context.at(key) != context.at(key))
        throw ConfigError("{}: its rounds were taken with {} {}, not {}: choose another file", where,
                          std::string_view(condition).substr(1), session.context.at(key).dump(),
                          context.at(key).dump());
    }
}

void Result::begin_session(const nlohmann::json& context, const std::string& where) {
  check_conditions(context, where);
  sessions.push_back({next_round(), context});
}

void check_program(Cell& cell, const Program& program, const std::string& where) {
  const std::string id = content_id(to_text(program));
  if (cell.program.empty() && cell.rounds.empty()) cell.program = id;
  if (!cell.program.empty() && cell.program != id)
    throw ConfigError(
        "{}: {} × {} × {} was another program when its rounds were taken: the model's file, or the code that lowers "
        "it, has changed; choose another file",
        where, cell.model, cell.strategy, cell.world);
}

}  // namespace sim
