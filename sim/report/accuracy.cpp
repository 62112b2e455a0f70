#include "sim/report/accuracy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <utility>

#include "sim/simulate/attribution.hpp"

namespace sim {
namespace {

/// Two quantities of the same round, or four: what a log ratio is made of.
struct Fraction {
  double over = 0, under = 0;            // predicted, measured
  double base_over = 1, base_under = 1;  // the same of `single`
};

std::optional<LogError> log_error(const std::vector<Fraction>& rounds) {
  if (rounds.empty()) return std::nullopt;
  const auto statistic = [&](std::span<const std::size_t> drawn) {
    Fraction sum{0, 0, 0, 0};
    for (std::size_t i : drawn) {
      sum.over += rounds[i].over, sum.under += rounds[i].under;
      sum.base_over += rounds[i].base_over, sum.base_under += rounds[i].base_under;
    }
    return std::log(sum.over / sum.under) - std::log(sum.base_over / sum.base_under);
  };
  std::vector<std::size_t> all(rounds.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  return LogError{statistic(all), bootstrap_interval_95(rounds.size(), statistic)};
}

/// What a cell's rounds say in one number each: round → seconds.
std::map<int, double> measured_by_round(const Cell& cell) {
  std::map<int, double> seconds;
  for (const Round& round : cell.rounds)
    if (!round.measured.empty()) seconds[round.round] = round.measured.mean().step_s;
  return seconds;
}

std::map<int, double> predicted_by_round(const Cell& cell, const std::string& cost_model) {
  std::map<int, double> seconds;
  for (const Round& round : cell.rounds)
    if (const auto found = round.predicted.find(cost_model); found != round.predicted.end())
      seconds[round.round] = found->second.step_s;
  return seconds;
}

/// By round, for the rounds that have both.
std::map<int, Fraction> fractions(const std::map<int, double>& over, const std::map<int, double>& under) {
  std::map<int, Fraction> result;
  for (const auto& [round, seconds] : over)
    if (const auto found = under.find(round); found != under.end()) result[round] = {seconds, found->second};
  return result;
}

std::vector<Fraction> values(const std::map<int, Fraction>& by_round) {
  std::vector<Fraction> result;
  for (const auto& [round, fraction] : by_round) result.push_back(fraction);
  return result;
}

CellAccuracy assess_cell(const Cell& cell, const Cell* single, const std::vector<const Cell*>& peers) {
  CellAccuracy accuracy;
  std::vector<StepTime> round_means;
  std::vector<double> medians;
  std::set<std::string> cost_models;
  std::map<int, double> replayed;
  for (const Round& round : cell.rounds) {
    if (const RoundSteps& steps = round.measured; !steps.empty()) {
      accuracy.measured_step.add(round.round, steps.count(), steps.mean().step_s, steps.sd().step_s);
      round_means.push_back(steps.mean());
      medians.push_back(steps.median_s());
    }
    if (round.replayed_s) replayed[round.round] = *round.replayed_s;
    for (const auto& [cost_model, time] : round.predicted) cost_models.insert(cost_model);
  }
  if (!round_means.empty()) {
    accuracy.measured = mean(round_means);
    accuracy.median_s = std::reduce(medians.begin(), medians.end()) / static_cast<double>(medians.size());
  }
  accuracy.interval = accuracy.measured_step.interval_95();
  accuracy.noise_floor = accuracy.measured_step.noise_floor();
  accuracy.conclusive = accuracy.noise_floor && *accuracy.noise_floor <= kConclusiveNoiseFloor;
  const std::map<int, double> measured = measured_by_round(cell);
  accuracy.structure = log_error(values(fractions(replayed, measured)));
  for (const Cell* peer : peers)
    if (const auto error = log_error(values(fractions(measured, measured_by_round(*peer)))))
      accuracy.against_peer.emplace(peer->executor, *error);
  const std::map<int, double> single_measured = single ? measured_by_round(*single) : std::map<int, double>();
  for (const std::string& cost_model : cost_models) {
    ForecastAccuracy& forecast = accuracy.forecasts[cost_model];
    std::vector<StepTime> predicted;
    Measurement predicted_step;
    for (const Round& round : cell.rounds)
      if (const auto found = round.predicted.find(cost_model); found != round.predicted.end()) {
        predicted.push_back(found->second);
        predicted_step.add(round.round, found->second.step_s);
      }
    forecast.predicted = mean(predicted);
    forecast.predicted_population_deviation_s = predicted_step.population_deviation();
    if (const auto found = cell.attribution.find(cost_model); found != cell.attribution.end()) {
      forecast.classes = found->second.classes;
      sort_by_effect(forecast.classes);
    }
    const std::map<int, Fraction> own = fractions(predicted_by_round(cell, cost_model), measured);
    forecast.absolute = log_error(values(own));
    if (!single || single == &cell) continue;
    std::vector<Fraction> both;
    for (const auto& [round, base] : fractions(predicted_by_round(*single, cost_model), single_measured))
      if (const auto found = own.find(round); found != own.end())
        both.push_back({found->second.over, found->second.under, base.over, base.under});
    forecast.relative = log_error(both);
  }
  return accuracy;
}

std::optional<ErrorSummary> summarize(const std::vector<double>& errors) {
  if (errors.empty()) return std::nullopt;
  ErrorSummary summary{.cells = errors.size()};
  std::vector<double> magnitudes;
  for (double error : errors) {
    magnitudes.push_back(std::abs(error));
    summary.mean_absolute += std::abs(error) / static_cast<double>(errors.size());
    summary.bias += error / static_cast<double>(errors.size());
  }
  std::ranges::sort(magnitudes);
  summary.median_absolute = (magnitudes[(magnitudes.size() - 1) / 2] + magnitudes[magnitudes.size() / 2]) / 2;
  return summary;
}

std::vector<ClassShare> share_classes(const std::vector<std::pair<const ForecastAccuracy*, double>>& forecasts) {
  std::vector<ClassShare> shares;
  for (const auto& [forecast, measured_s] : forecasts)
    for (const ClassError& c : forecast->classes) {
      auto share = std::ranges::find(shares, c.name, &ClassShare::name);
      if (share == shares.end()) share = shares.insert(shares.end(), {.name = c.name});
      share->bias += c.effect_s / measured_s;
      share->mean_absolute += std::abs(c.effect_s) / measured_s;
      ++share->cells;
    }
  for (ClassShare& share : shares)
    share.bias /= static_cast<double>(share.cells), share.mean_absolute /= static_cast<double>(share.cells);
  std::ranges::stable_sort(shares, std::greater(), &ClassShare::mean_absolute);
  return shares;
}

/// A cell with both a forecast and a measurement.
struct Scored {
  const Cell* cell;
  const CellAccuracy* accuracy;
  const ForecastAccuracy* forecast;
};

void count_pairs(const std::vector<Scored>& cells, ForecastSummary& summary) {
  for (std::size_t a = 0; a < cells.size(); ++a)
    for (std::size_t b = a + 1; b < cells.size(); ++b) {
      if (cells[a].cell->model != cells[b].cell->model || cells[a].cell->world != cells[b].cell->world) continue;
      const std::optional<Interval>&first = cells[a].accuracy->interval, &second = cells[b].accuracy->interval;
      const bool first_is_faster = first && second && first->high < second->low;
      const bool second_is_faster = first && second && second->high < first->low;
      if (!first_is_faster && !second_is_faster) {
        ++summary.pairs_unresolved;
        continue;
      }
      const double predicted_gain = cells[b].forecast->predicted.step_s - cells[a].forecast->predicted.step_s;
      const bool right = first_is_faster ? predicted_gain > 0 : predicted_gain < 0;
      ++(right ? summary.pairs_right : summary.pairs_wrong);
    }
}

ForecastSummary summarize(const Result& result, const std::vector<CellAccuracy>& cells, const std::string& executor,
                          const std::string& cost_model) {
  ForecastSummary summary;
  summary.executor = executor;
  summary.cost_model = cost_model;
  std::vector<Scored> scored;
  std::vector<double> absolute, relative;
  std::size_t covered = 0;
  std::vector<std::pair<const ForecastAccuracy*, double>> forecasts;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (result.cells[i].executor != executor) continue;
    if (!result.cells[i].skipped.empty()) ++summary.skipped;
    const auto found = cells[i].forecasts.find(cost_model);
    if (found == cells[i].forecasts.end() || !found->second.absolute) continue;
    scored.push_back({&result.cells[i], &cells[i], &found->second});
    if (found->second.covered) {
      ++summary.with_interval;
      covered += *found->second.covered ? 1 : 0;
    }
    absolute.push_back(found->second.absolute->log_ratio);
    if (found->second.relative) relative.push_back(found->second.relative->log_ratio);
    forecasts.emplace_back(&found->second, cells[i].measured->step_s);
    if (!cells[i].conclusive) continue;
    ++summary.conclusive;
    if (cells[i].structure)
      summary.largest_structure_error =
          std::max(summary.largest_structure_error.value_or(0), std::abs(cells[i].structure->log_ratio));
  }
  summary.cells = scored.size();
  if (summary.cells > 0)
    summary.conclusive_share = static_cast<double>(summary.conclusive) / static_cast<double>(summary.cells);
  summary.failed = summary.conclusive_share.value_or(0) < kConclusiveShare;
  if (summary.with_interval > 0)
    summary.coverage = static_cast<double>(covered) / static_cast<double>(summary.with_interval);
  summary.absolute = summarize(absolute);
  summary.relative = summarize(relative);
  summary.classes = share_classes(forecasts);
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

/// Forecast intervals from the errors of other models here; without those, of earlier ones, or the forecasts' own.
void add_intervals(const Result& result, const TrackRecord* record, Accuracy& accuracy) {
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    for (auto& [cost_model, forecast] : accuracy.cells[i].forecasts) {
      std::vector<double> others;
      for (std::size_t j = 0; j < result.cells.size(); ++j) {
        if (result.cells[j].executor != result.cells[i].executor || family(result.cells[j]) == family(result.cells[i]))
          continue;
        const auto found = accuracy.cells[j].forecasts.find(cost_model);
        if (found != accuracy.cells[j].forecasts.end() && found->second.absolute)
          others.push_back(found->second.absolute->log_ratio);
      }
      const auto take = [&, &forecast = forecast](const ErrorRecord& errors, std::string from) {
        forecast.interval_90 = errors.interval_90(forecast.predicted.step_s);
        if (forecast.interval_90) forecast.interval_from = std::move(from);
      };
      take(record_of(others), fmt::format("how far {} forecasts of other models here were off", others.size()));
      const std::string& device = result.cells[i].device;
      const ErrorRecord* earlier = record != nullptr ? find(*record, device, cost_model) : nullptr;
      if (earlier != nullptr) forecast.relative_sd = earlier->relative_sd;
      const bool from_others = forecast.interval_90.has_value();
      if (!from_others && earlier != nullptr)
        take(*earlier, fmt::format("the track record of {} forecasts on {}", earlier->count, device));
      // Earlier forecasts may have been of networks that the profile knew better.
      const std::optional<Interval> stated = stated_90(result.cells[i], cost_model);
      if (stated && !from_others && (!forecast.interval_90 || is_wider(*stated, *forecast.interval_90))) {
        forecast.interval_90 = stated;
        forecast.interval_from = "what the profile leaves open";
      }
      if (forecast.interval_90 && accuracy.cells[i].measured)
        forecast.covered = accuracy.cells[i].measured->step_s >= forecast.interval_90->low &&
                           accuracy.cells[i].measured->step_s <= forecast.interval_90->high;
    }
}

}  // namespace

TrackRecord track_record(const Result& result) {
  const Accuracy accuracy = assess(result);
  std::map<std::pair<std::string, std::string>, std::vector<double>> absolute, relative;  // by device, cost model
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    for (const auto& [cost_model, forecast] : accuracy.cells[i].forecasts) {
      const Cell& cell = result.cells[i];
      if (cell.executor != kOurs || cell.device.empty()) continue;
      if (forecast.absolute) absolute[{cell.device, cost_model}].push_back(forecast.absolute->log_ratio);
      if (forecast.relative) relative[{cell.device, cost_model}].push_back(forecast.relative->log_ratio);
    }
  TrackRecord record;
  for (const auto& [key, errors] : absolute) {
    ErrorRecord& row = record[key.first][key.second] = record_of(errors);
    if (const ErrorRecord ratios = record_of(relative[key]); ratios.count >= kFewestErrors) row.relative_sd = ratios.sd;
  }
  return record;
}

Accuracy assess(const Result& result, const TrackRecord* record) {
  Accuracy accuracy;
  for (const Cell& cell : result.cells) {
    const auto single = std::ranges::find_if(result.cells, [&](const Cell& other) {
      return other.strategy == "single" && other.model == cell.model && other.world == cell.world &&
             other.executor == cell.executor;
    });
    std::vector<const Cell*> peers;
    for (const Cell& other : result.cells)
      if (std::ranges::count(kPeers, other.executor) > 0 && cell.executor == kOurs && other.strategy == cell.strategy &&
          other.model == cell.model && other.world == cell.world)
        peers.push_back(&other);
    accuracy.cells.push_back(assess_cell(cell, single == result.cells.end() ? nullptr : &*single, peers));
  }
  add_intervals(result, record, accuracy);
  std::vector<std::pair<std::string, std::string>> columns;  // in the order of appearance
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    for (const auto& [cost_model, forecast] : accuracy.cells[i].forecasts) {
      const std::pair column(result.cells[i].executor, cost_model);
      if (std::ranges::find(columns, column) == columns.end()) columns.push_back(column);
    }
  for (const auto& [executor, cost_model] : columns)
    accuracy.summaries.push_back(summarize(result, accuracy.cells, executor, cost_model));
  return accuracy;
}

}  // namespace sim
