#include "sim/report/accuracy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "sim/simulate/attribution.hpp"

namespace sim {

bool is_faster(const CellAccuracy& cell, const CellAccuracy& other) {
  return cell.interval && other.interval && cell.interval->high < other.interval->low;
}

namespace {

using Series = std::map<int, double>;  // round → seconds

constexpr std::string_view kBaseline = "single";  // what relative errors are relative to

/// ln(over / under) − ln(base_over / base_under), over the rounds that all of them have.
std::optional<LogError> log_error(const Series& over, const Series& under, const Series& base_over,
                                  const Series& base_under) {
  std::vector<std::array<double, 4>> rounds;
  for (const auto& [round, seconds] : over)
    if (under.contains(round) && base_over.contains(round) && base_under.contains(round))
      rounds.push_back({seconds, under.at(round), base_over.at(round), base_under.at(round)});
  if (rounds.empty()) return std::nullopt;
  const auto statistic = [&](std::span<const std::size_t> drawn) {
    std::array<double, 4> sum{};
    for (std::size_t round : drawn)
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += rounds[round][i];
    return std::log(sum[0] / sum[1]) - std::log(sum[2] / sum[3]);
  };
  std::vector<std::size_t> all(rounds.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  return LogError{statistic(all), bootstrap_interval_95(rounds.size(), statistic)};
}
std::optional<LogError> log_error(const Series& over, const Series& under) {
  return log_error(over, under, under, under);
}

Series measured_by_round(const Cell& cell) {
  Series seconds;
  for (const Round& round : cell.rounds)
    if (!round.measured.empty()) seconds[round.round] = round.measured.mean.step_s;
  return seconds;
}

Series predicted_by_round(const Cell& cell, const std::string& cost_model) {
  Series seconds;
  for (const Round& round : cell.rounds)
    if (const auto found = round.predicted.find(cost_model); found != round.predicted.end())
      seconds[round.round] = found->second.step_s;
  return seconds;
}

CellAccuracy assess_cell(const Result& result, const Cell& cell) {
  CellAccuracy accuracy;
  std::vector<StepTime> round_means;
  std::vector<double> medians;
  std::map<std::string, std::vector<StepTime>> predicted;  // by cost model
  Series replayed;
  for (const Round& round : cell.rounds) {
    if (const RoundSteps& steps = round.measured; !steps.empty()) {
      accuracy.measured_step.add(round.round, steps.count, steps.mean.step_s, steps.sd_s);
      round_means.push_back(steps.mean);
      medians.push_back(steps.median_s);
    }
    if (round.replayed_s) replayed[round.round] = *round.replayed_s;
    for (const auto& [cost_model, time] : round.predicted) predicted[cost_model].push_back(time);
  }
  if (!round_means.empty()) {
    accuracy.measured = mean(round_means);
    accuracy.median_s = std::reduce(medians.begin(), medians.end()) / static_cast<double>(medians.size());
  }
  accuracy.interval = accuracy.measured_step.interval_95();
  accuracy.noise_floor = accuracy.measured_step.noise_floor();
  accuracy.conclusive = accuracy.noise_floor && *accuracy.noise_floor <= kConclusiveNoiseFloor;
  const Series measured = measured_by_round(cell);
  accuracy.structure = log_error(replayed, measured);
  for (const std::string_view peer : kPeers)
    if (const auto found = result.find(cell.model, cell.strategy, cell.world, peer); found && cell.executor == kOurs)
      if (const auto error = log_error(measured, measured_by_round(result.cells[*found])))
        accuracy.against_peer.emplace(peer, *error);
  const auto single = result.find(cell.model, kBaseline, cell.world, cell.executor);
  for (const auto& [cost_model, times] : predicted) {
    ForecastAccuracy& forecast = accuracy.forecasts[cost_model];
    forecast.predicted = mean(times);
    const Series own = predicted_by_round(cell, cost_model);
    Measurement predicted_step;
    for (const auto& [round, seconds] : own) predicted_step.add(round, seconds);
    forecast.predicted_population_deviation_s = predicted_step.population_deviation();
    if (const auto found = cell.attribution.find(cost_model); found != cell.attribution.end()) {
      for (const auto& [name, effect_s] : found->second.effects_s)
        forecast.classes.push_back({.name = name, .effect_s = effect_s});
      sort_by_effect(forecast.classes);
    }
    forecast.absolute = log_error(own, measured);
    if (single && &result.cells[*single] != &cell)
      forecast.relative = log_error(own, measured, predicted_by_round(result.cells[*single], cost_model),
                                    measured_by_round(result.cells[*single]));
  }
  return accuracy;
}

std::optional<ErrorSummary> summarize(const std::vector<double>& errors) {
  if (errors.empty()) return std::nullopt;
  ErrorSummary summary;
  std::vector<double> magnitudes;
  for (double error : errors) {
    magnitudes.push_back(std::abs(error));
    summary.mean_absolute += std::abs(error) / static_cast<double>(errors.size());
    summary.bias += error / static_cast<double>(errors.size());
  }
  summary.median_absolute = median_of(magnitudes);
  return summary;
}

/// A cell with both a forecast and a measurement.
struct Scored {
  const Cell* cell;
  const CellAccuracy* accuracy;
  const ForecastAccuracy* forecast;
};

std::vector<ClassShare> share_classes(const std::vector<Scored>& cells) {
  std::vector<ClassShare> shares;
  for (const Scored& scored : cells)
    for (const ClassError& c : scored.forecast->classes) {
      auto share = std::ranges::find(shares, c.name, &ClassShare::name);
      if (share == shares.end()) share = shares.insert(shares.end(), {.name = c.name});
      const double effect = c.effect_s / scored.accuracy->measured->step_s;
      share->bias += effect;
      share->mean_absolute += std::abs(effect);
      ++share->cells;
    }
  for (ClassShare& share : shares)
    share.bias /= static_cast<double>(share.cells), share.mean_absolute /= static_cast<double>(share.cells);
  std::ranges::stable_sort(shares, std::greater(), &ClassShare::mean_absolute);
  return shares;
}

void count_pairs(const std::vector<Scored>& cells, ForecastSummary& summary) {
  for (std::size_t a = 0; a < cells.size(); ++a)
    for (std::size_t b = a + 1; b < cells.size(); ++b) {
      if (cells[a].cell->model != cells[b].cell->model || cells[a].cell->world != cells[b].cell->world) continue;
      const bool first_is_faster = is_faster(*cells[a].accuracy, *cells[b].accuracy);
      const bool second_is_faster = is_faster(*cells[b].accuracy, *cells[a].accuracy);
      const double predicted_gain = cells[b].forecast->predicted.step_s - cells[a].forecast->predicted.step_s;
      const bool right = first_is_faster ? predicted_gain > 0 : predicted_gain < 0;
      ++(!first_is_faster && !second_is_faster ? summary.pairs_unresolved
         : right                               ? summary.pairs_right
                                               : summary.pairs_wrong);
    }
}

std::optional<double> share_of(std::size_t part, std::size_t whole) {
  return whole > 0 ? std::optional(static_cast<double>(part) / static_cast<double>(whole)) : std::nullopt;
}

ForecastSummary summarize(const Result& result, const std::vector<CellAccuracy>& cells, const std::string& executor,
                          const std::string& cost_model) {
  ForecastSummary summary{.executor = executor, .cost_model = cost_model};
  std::vector<Scored> scored;
  std::vector<double> absolute, relative;
  std::size_t covered = 0;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (result.cells[i].executor != executor) continue;
    if (!result.cells[i].skipped.empty()) ++summary.skipped;
    const auto found = cells[i].forecasts.find(cost_model);
    if (found == cells[i].forecasts.end() || !found->second.absolute) continue;
    const ForecastAccuracy& forecast = found->second;
    scored.push_back({&result.cells[i], &cells[i], &forecast});
    if (forecast.covered) ++summary.with_interval;
    if (forecast.covered.value_or(false)) ++covered;
    absolute.push_back(forecast.absolute->log_ratio);
    if (forecast.relative) relative.push_back(forecast.relative->log_ratio);
    if (!cells[i].conclusive) continue;
    ++summary.conclusive;
    if (cells[i].structure)
      summary.largest_structure_error =
          std::max(summary.largest_structure_error.value_or(0), std::abs(cells[i].structure->log_ratio));
  }
  summary.cells = scored.size();
  summary.conclusive_share = share_of(summary.conclusive, summary.cells);
  summary.failed = summary.conclusive_share.value_or(0) < kConclusiveShare;
  summary.coverage = share_of(covered, summary.with_interval);
  summary.absolute = summarize(absolute);
  summary.relative = summarize(relative);
  summary.classes = share_classes(scored);
  count_pairs(scored, summary);
  return summary;
}

/// "resnet18" of "resnet18,global_batch=8,image=64".
std::string_view family(const Cell& cell) { return std::string_view(cell.model).substr(0, cell.model.find(',')); }

bool is_wider(const Interval& a, const Interval& b) { return a.high * b.low > b.high * a.low; }

/// What the forecasts say of themselves, mean over rounds.
std::optional<Interval> stated_90(const Cell& cell, const std::string& cost_model) {
  Interval sum;
  double rounds = 0;
  for (const Round& round : cell.rounds)
    if (const auto found = round.stated_90.find(cost_model); found != round.stated_90.end())
      sum = {sum.low + found->second.low, sum.high + found->second.high}, ++rounds;
  return rounds > 0 ? std::optional(Interval{sum.low / rounds, sum.high / rounds}) : std::nullopt;
}

/// Forecast intervals from the errors of other models here; without those the wider of earlier ones' and the forecast's own.
void add_intervals(const Result& result, const TrackRecord* record, Accuracy& accuracy) {
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    for (auto& [cost_model, forecast] : accuracy.cells[i].forecasts) {
      const Cell& cell = result.cells[i];
      std::vector<double> others;
      for (std::size_t j = 0; j < result.cells.size(); ++j)
        if (const auto found = accuracy.cells[j].forecasts.find(cost_model);
            result.cells[j].executor == cell.executor && family(result.cells[j]) != family(cell) &&
            result.cells[j].device == cell.device && result.cells[j].threads == cell.threads &&
            found != accuracy.cells[j].forecasts.end() && found->second.absolute)
          others.push_back(found->second.absolute->log_ratio);
      forecast.interval_90 = record_of(others).interval_90(forecast.predicted.step_s);
      forecast.interval_from = fmt::format("how far {} forecasts of other models here were off", others.size());
      // It is of ranks with a thread each.
      const TrackRecord* known = cell.threads == 1 ? record : nullptr;
      const ErrorRecord* earlier = known != nullptr ? find(*known, cell.device, cost_model) : nullptr;
      forecast.compared.step_s = forecast.predicted.step_s;
      if (const auto spreads = cell.spreads.find(cost_model); spreads != cell.spreads.end())
        forecast.compared.spreads = spreads->second;
      const std::optional<Interval> stated = stated_90(cell, cost_model);
      if (stated && stated->low > 0)
        forecast.compared.stated_sd = std::log(stated->high / stated->low) / (2 * kNormal95);
      if (known != nullptr) forecast.ratios = ratio_record(*known, cell.device, cost_model);
      if (forecast.ratios)
        forecast.compared.ratio_sd = cell.strategy == kBaseline ? forecast.ratios->from_0 : forecast.ratios->sd;
      if (!forecast.interval_90) {
        if (earlier != nullptr) forecast.interval_90 = earlier->interval_90(forecast.predicted.step_s);
        if (forecast.interval_90)
          forecast.interval_from = fmt::format("the track record of {} forecasts on {}", earlier->count, cell.device);
        // Earlier forecasts may have been of networks that the profile, or the data sheet, knew better.
        if (stated && (!forecast.interval_90 || is_wider(*stated, *forecast.interval_90))) {
          const CostModelKind* kind = cost_model_table().find(cost_model);
          forecast.interval_90 = stated;
          forecast.interval_from = fmt::format("what {} leaves open", kind ? kind->knows_from : "the profile");
        }
      }
      if (!forecast.interval_90) forecast.interval_from.clear();
      if (const std::optional<StepTime>& measured = accuracy.cells[i].measured; forecast.interval_90 && measured)
        forecast.covered =
            measured->step_s >= forecast.interval_90->low && measured->step_s <= forecast.interval_90->high;
    }
}

/// Compares each with the fastest of what fits, by model and cost model, on whatever world.
void compare_with_fastest(const Result& result, Accuracy& accuracy) {
  std::map<std::pair<std::string, std::string>, ForecastAccuracy*> fastest;
  const auto visit = [&](const auto& each) {
    for (std::size_t i = 0; i < result.cells.size(); ++i)
      if (result.cells[i].executor == kOurs)
        for (auto& [cost_model, forecast] : accuracy.cells[i].forecasts)
          each(result.cells[i], fastest[{result.cells[i].model, cost_model}], forecast);
  };
  visit([](const Cell& cell, ForecastAccuracy*& first, ForecastAccuracy& forecast) {
    if (cell.memory.fits().value_or(true) && (!first || forecast.predicted.step_s < first->predicted.step_s))
      first = &forecast;
  });
  visit([](const Cell& /*cell*/, const ForecastAccuracy* first, ForecastAccuracy& forecast) {
    if (first && first != &forecast) forecast.told_from_fastest = told_apart(first->compared, forecast.compared);
  });
}

}  // namespace

TrackRecord track_record(const Result& result) {
  const Accuracy accuracy = assess(result);
  std::map<std::pair<std::string, std::string>, std::vector<double>> absolute, relative;  // by device, cost model
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    for (const auto& [cost_model, forecast] : accuracy.cells[i].forecasts) {
      const Cell& cell = result.cells[i];
      if (cell.executor != kOurs || cell.device.empty() || cell.threads > 1) continue;
      if (forecast.absolute) absolute[{cell.device, cost_model}].push_back(forecast.absolute->log_ratio);
      if (forecast.relative) relative[{cell.device, cost_model}].push_back(forecast.relative->log_ratio);
    }
  TrackRecord record;
  for (const auto& [key, errors] : absolute) {
    ErrorRecord& row = record[key.first][key.second] = record_of(errors);
    if (const ErrorRecord ratios = record_of(relative[key]); ratios.count >= kFewestErrors)
      row.relative_sd = ratios.sd, row.relative_mean = ratios.mean;
  }
  return record;
}

Accuracy assess(const Result& result, const TrackRecord* record) {
  Accuracy accuracy;
  for (const Cell& cell : result.cells) accuracy.cells.push_back(assess_cell(result, cell));
  add_intervals(result, record, accuracy);
  compare_with_fastest(result, accuracy);
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    for (const auto& [cost_model, forecast] : accuracy.cells[i].forecasts)
      if (std::ranges::none_of(accuracy.summaries, [&, &cost_model = cost_model](const ForecastSummary& summary) {
            return summary.executor == result.cells[i].executor && summary.cost_model == cost_model;
          }))
        accuracy.summaries.push_back(summarize(result, accuracy.cells, result.cells[i].executor, cost_model));
  return accuracy;
}

}  // namespace sim
