#include "sim/accuracy.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "sim/error.hpp"
#include "sim/file_format.hpp"
#include "sim/simulate.hpp"
#include "sim/spec.hpp"

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
    if (!round.measured.empty()) seconds[round.round] = mean(round.measured).step_s;
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

void sort_by_effect(std::vector<ClassError>& classes) {
  std::ranges::stable_sort(classes, std::greater(), [](const ClassError& c) { return std::abs(c.effect_s); });
}

/// Mean over the rounds that have an attribution; a class that a round lacks counts 0 there.
std::vector<ClassError> mean_classes(const Cell& cell, const std::string& cost_model) {
  std::vector<ClassError> sums;
  double rounds = 0;
  for (const Round& round : cell.rounds) {
    const auto found = round.attribution.find(cost_model);
    if (found == round.attribution.end()) continue;
    ++rounds;
    for (const ClassError& c : found->second) {
      auto sum = std::ranges::find(sums, c.name, &ClassError::name);
      if (sum == sums.end()) sum = sums.insert(sums.end(), {.name = c.name});
      sum->predicted_s += c.predicted_s, sum->measured_s += c.measured_s, sum->effect_s += c.effect_s;
    }
  }
  for (ClassError& c : sums) c.predicted_s /= rounds, c.measured_s /= rounds, c.effect_s /= rounds;
  sort_by_effect(sums);
  return sums;
}

CellAccuracy assess_cell(const Cell& cell, const Cell* single, const Cell* peer) {
  CellAccuracy accuracy;
  std::vector<StepTime> round_means;
  std::set<std::string> cost_models;
  std::map<int, double> replayed;
  for (const Round& round : cell.rounds) {
    for (const StepTime& time : round.measured) accuracy.measured_step.add(round.round, time.step_s);
    if (!round.measured.empty()) round_means.push_back(mean(round.measured));
    if (round.replayed_s) replayed[round.round] = *round.replayed_s;
    for (const auto& [cost_model, time] : round.predicted) cost_models.insert(cost_model);
  }
  if (!round_means.empty()) accuracy.measured = mean(round_means);
  accuracy.interval = accuracy.measured_step.interval_95();
  accuracy.noise_floor = accuracy.measured_step.noise_floor();
  accuracy.conclusive = accuracy.noise_floor && *accuracy.noise_floor <= kConclusiveNoiseFloor;
  const std::map<int, double> measured = measured_by_round(cell);
  accuracy.structure = log_error(values(fractions(replayed, measured)));
  if (peer) accuracy.against_peer = log_error(values(fractions(measured, measured_by_round(*peer))));
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
    forecast.classes = mean_classes(cell, cost_model);
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

/// "resnet18" of "resnet18,global_batch=8,image=64".
std::string_view family(const Cell& cell) { return std::string_view(cell.model).substr(0, cell.model.find(',')); }

/// Forecast intervals from the errors of other models.
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
      forecast.interval_90 = record_of(others).interval_90(forecast.predicted.step_s);
      if (!forecast.interval_90 && record != nullptr)
        if (const auto found = record->find(cost_model); found != record->end())
          forecast.interval_90 = found->second.interval_90(forecast.predicted.step_s);
      if (forecast.interval_90 && accuracy.cells[i].measured)
        forecast.covered = accuracy.cells[i].measured->step_s >= forecast.interval_90->low &&
                           accuracy.cells[i].measured->step_s <= forecast.interval_90->high;
    }
}

}  // namespace

ErrorRecord record_of(const std::vector<double>& log_errors) {
  ErrorRecord record{.count = log_errors.size()};
  for (double error : log_errors) record.mean += error / static_cast<double>(record.count);
  for (double error : log_errors) record.sd += (error - record.mean) * (error - record.mean);
  if (record.count > 1) record.sd = std::sqrt(record.sd / static_cast<double>(record.count - 1));
  return record;
}

std::optional<Interval> ErrorRecord::interval_90(double predicted_s) const {
  if (count < kFewestErrors) return std::nullopt;
  const auto n = static_cast<double>(count);
  const double reach = student_t(kNormal95, n - 1) * sd * std::sqrt(1 + 1 / n);
  return Interval{predicted_s * std::exp(-mean - reach), predicted_s * std::exp(-mean + reach)};
}

std::string to_json(const TrackRecord& record) {
  nlohmann::ordered_json file{{"format", "paragauge-track-record-1"}};
  for (const auto& [cost_model, errors] : record)
    file["cost_models"][cost_model] = {
        {"cells", errors.count}, {"mean_log_error", errors.mean}, {"sd_log_error", errors.sd}};
  return file.dump(1) + "\n";
}

TrackRecord load_track_record(const std::filesystem::path& path) {
  JsonObject file = read_json_file(path);
  check_format(file, "paragauge-track-record", 1, "'paragauge report --record' writes it again");
  TrackRecord record;
  JsonObject cost_models = file.object("cost_models");
  for (const std::string& name : cost_models.keys()) {
    JsonObject row = cost_models.object(name);
    const std::int64_t cells = row.integer("cells");
    ErrorRecord& errors = record[name];
    errors.mean = row.number("mean_log_error");
    errors.sd = row.number("sd_log_error");
    if (cells < 0 || errors.sd < 0)
      throw ConfigError("{}: 'cells' and 'sd_log_error' must not be negative, found {} and {}", row.where(), cells,
                        errors.sd);
    errors.count = static_cast<std::size_t>(cells);
    row.finish();
  }
  file.finish();
  return record;
}

TrackRecord track_record(const Result& result) {
  const Accuracy accuracy = assess(result);
  std::map<std::string, std::vector<double>> errors;
  for (std::size_t i = 0; i < result.cells.size(); ++i)
    for (const auto& [cost_model, forecast] : accuracy.cells[i].forecasts)
      if (result.cells[i].executor == "paragauge" && forecast.absolute)
        errors[cost_model].push_back(forecast.absolute->log_ratio);
  TrackRecord record;
  for (const auto& [cost_model, list] : errors) record[cost_model] = record_of(list);
  return record;
}

Accuracy assess(const Result& result, const TrackRecord* record) {
  Accuracy accuracy;
  for (const Cell& cell : result.cells) {
    const auto single = std::ranges::find_if(result.cells, [&](const Cell& other) {
      return other.strategy == "single" && other.model == cell.model && other.world == cell.world &&
             other.executor == cell.executor;
    });
    const auto peer = std::ranges::find_if(result.cells, [&](const Cell& other) {
      return other.executor == "pytorch" && cell.executor == "paragauge" && other.strategy == cell.strategy &&
             other.model == cell.model && other.world == cell.world;
    });
    accuracy.cells.push_back(assess_cell(cell, single == result.cells.end() ? nullptr : &*single,
                                         peer == result.cells.end() ? nullptr : &*peer));
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
