#include "sim/report/report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "sim/error.hpp"
#include "sim/report/answer.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kResultFormat = "paragauge-result-2";

Value value_of(const std::optional<double>& number) { return number ? Value(*number) : Value(); }
Value percent(const std::optional<double>& share) { return share ? Value(100 * *share) : Value(); }
Value mebibytes(const std::optional<std::int64_t>& bytes) {
  return bytes ? Value(static_cast<double>(*bytes) / 1048576) : Value();
}
/// 100 ln(predicted / measured), where both are known.
Value error_percent(const std::optional<std::int64_t>& predicted, const std::optional<std::int64_t>& measured) {
  if (!predicted || !measured) return Value();
  return 100 * std::log(static_cast<double>(*predicted) / static_cast<double>(*measured));
}
Value whole(std::size_t count) { return static_cast<std::int64_t>(count); }

std::string_view status_of(const RowSource& s) {
  if (!s.cell.skipped.empty()) return "skipped";
  if (!s.accuracy.measured) return "predicted";
  return s.accuracy.conclusive ? "conclusive" : "inconclusive";
}

// The getters below are given a path through the optional parts; where it breaks off, the number is unavailable.
Value predicted(const RowSource& s, double StepTime::*part) {
  return s.forecast ? Value(s.forecast->predicted.*part) : Value();
}
/// A peer measures the step alone, not what it consists of.
Value measured(const RowSource& s, double StepTime::*part) {
  const std::optional<StepTime>& time = s.accuracy.measured;
  const bool known = time && (part == &StepTime::step_s || *time != StepTime{.step_s = time->step_s});
  return known ? Value((*time).*part) : Value();
}
Value log_percent(const std::optional<LogError>& error) { return error ? Value(100 * error->log_ratio) : Value(); }
Value log_percent(const std::optional<LogError>& error, double Interval::*end) {
  return error && error->interval ? Value(100 * (*error->interval).*end) : Value();
}
std::optional<LogError> absolute(const RowSource& s) { return s.forecast ? s.forecast->absolute : std::nullopt; }
std::optional<LogError> relative(const RowSource& s) { return s.forecast ? s.forecast->relative : std::nullopt; }
std::optional<LogError> against(const RowSource& s, std::size_t peer) {
  const auto found = s.accuracy.against_peer.find(kPeers.at(peer));
  return found == s.accuracy.against_peer.end() ? std::nullopt : std::optional(found->second);
}
Value at_peak(const RowSource& s, TensorClass tensor_class) {
  const auto found = s.cell.memory.predicted_at_peak_bytes.find(std::string(to_string(tensor_class)));
  return found == s.cell.memory.predicted_at_peak_bytes.end() ? Value() : mebibytes(found->second);
}

/// "resnet50" of "resnet50,global_batch=16" and of "/tmp/resnet50.json,global_batch=16".
std::string model_name(const Cell& cell) {
  return std::filesystem::path(cell.model.substr(0, cell.model.find(','))).stem().string();
}

std::string preset_of(const Cell& cell) { return SpecText(cell.strategy, "strategy").head(); }
std::optional<std::string> schedule_of(const Cell& cell) {
  return SpecText(cell.strategy, "strategy").text("schedule");
}

/// "pipeline gpipe, split size 2, 2 ranks", "ddp overlapped, 4 ranks": strategies that differ in the cut or in the
/// buckets alone share it.
std::string label_of(const Cell& cell) {
  const SpecText text(cell.strategy, "strategy");
  std::string label = text.head();
  if (text.text("overlap") == "1") label += " overlapped";
  if (text.head() == "mesh")
    for (const char* degree : {"dp", "pp"})
      if (const auto size = text.text(degree)) label += fmt::format(" {}={}", degree, *size);
  if (const auto schedule = schedule_of(cell)) label += " " + *schedule;
  if (cell.microbatches > 1)
    label += fmt::format(", split size {}", cell.global_batch / (cell.replicas * cell.microbatches));
  if (cell.ranks > 1) label += fmt::format(", {} ranks", cell.ranks);
  std::ranges::replace(label, '_', ' ');
  return label;
}

/// "conv2d.backward +1.9, send -0.8, host +0.2".
Value largest_causes(const RowSource& s) {
  constexpr std::size_t kNamed = 3;
  if (s.forecast == nullptr || !s.accuracy.measured || s.forecast->classes.empty()) return {};
  std::string text;
  for (std::size_t i = 0; i < std::min(kNamed, s.forecast->classes.size()); ++i) {
    const ClassError& c = s.forecast->classes[i];
    text += fmt::format("{}{} {:+.1f}", i == 0 ? "" : ", ", c.name, 100 * c.effect_s / s.accuracy.measured->step_s);
  }
  return text;
}

using enum ConsolePlace;
constexpr ValueType kText = ValueType::text, kInteger = ValueType::integer, kNumber = ValueType::number;
constexpr std::string_view kSeconds = "{:#.4g}", kPercent = "{:+.2f}", kShare = "{:.2f}", kMiB = "{:.2f}",
                           kCount = "{}";
using S = RowSource;

// clang-format off
constexpr std::array kRowColumns = std::to_array<Column<RowSource>>({
    {"model", "model, as load_model reads it", kText, heading, "", [](const S& s) -> Value { return s.cell.model; }},
    {"world", "how the ranks talk", kText, heading, "", [](const S& s) -> Value { return s.cell.world; }},
    {"executor", "who ran the steps: paragauge, or a peer", kText, heading, "",
     [](const S& s) -> Value { return s.cell.executor; }},
    {"strategy", "strategy, as parse_strategy reads it", kText, front, "",
     [](const S& s) -> Value { return s.cell.strategy; }},
    {"cost_model", "cost model of the forecast", kText, front, "",
     [](const S& s) -> Value { return s.cost_model.empty() ? Value() : Value(std::string(s.cost_model)); }},
    {"model_name", "name of the model", kText, none, "", [](const S& s) -> Value { return model_name(s.cell); }},
    {"preset", "name of the strategy", kText, none, "", [](const S& s) -> Value { return preset_of(s.cell); }},
    {"schedule", "schedule of its microbatches", kText, none, "", [](const S& s) -> Value {
       const std::optional<std::string> schedule = schedule_of(s.cell);
       return schedule ? Value(*schedule) : Value();
     }},
    {"label", "the strategy in words", kText, none, "", [](const S& s) -> Value { return label_of(s.cell); }},
    {"ranks", "ranks of the strategy", kInteger, none, kCount, [](const S& s) -> Value { return s.cell.ranks; }},
    {"global_batch", "samples per optimizer step over all ranks", kInteger, none, kCount,
     [](const S& s) -> Value { return s.cell.global_batch; }},
    {"microbatch", "samples per pass; the split size of a pipeline", kInteger, none, kCount,
     [](const S& s) -> Value { return s.cell.global_batch / (s.cell.replicas * s.cell.microbatches); }},
    {"rounds", "rounds with a measurement", kInteger, none, kCount,
     [](const S& s) -> Value { return whole(s.accuracy.measured_step.rounds()); }},
    {"samples", "measured steps", kInteger, none, kCount,
     [](const S& s) -> Value { return whole(s.accuracy.measured_step.count()); }},

    {"predicted_s", "predicted step time, mean over rounds", kNumber, time, kSeconds,
     [](const S& s) { return predicted(s, &StepTime::step_s); }},
    {"forecast_low_s", "lower end of the forecast's 90 % interval, from the errors of other models", kNumber, time, kSeconds,
     [](const S& s) { return s.forecast && s.forecast->interval_90 ? Value(s.forecast->interval_90->low) : Value(); }},
    {"forecast_high_s", "upper end of it", kNumber, time, kSeconds,
     [](const S& s) { return s.forecast && s.forecast->interval_90 ? Value(s.forecast->interval_90->high) : Value(); }},
    {"forecast_interval_from", "whose errors the interval is made of", kText, none, "", [](const S& s) -> Value {
       return s.forecast && s.forecast->interval_90 ? Value(s.forecast->interval_from) : Value();
     }},
    {"measured_s", "measured step time, mean over rounds", kNumber, time, kSeconds,
     [](const S& s) { return measured(s, &StepTime::step_s); }},
    {"measured_low_s", "lower end of measured_s's 95 % interval (bootstrap over rounds)", kNumber, time, kSeconds,
     [](const S& s) { return s.accuracy.interval ? Value(s.accuracy.interval->low) : Value(); }},
    {"measured_high_s", "upper end of it", kNumber, time, kSeconds,
     [](const S& s) { return s.accuracy.interval ? Value(s.accuracy.interval->high) : Value(); }},
    {"measured_median_s", "median step of a round, mean over rounds", kNumber, none, kSeconds,
     [](const S& s) { return value_of(s.accuracy.median_s); }},
    {"measured_sd_s", "standard deviation of all measured steps (n - 1)", kNumber, none, kSeconds,
     [](const S& s) { return value_of(s.accuracy.measured_step.sample_deviation()); }},
    {"measured_population_sd_s", "the same with n, as in PyTorch's tutorial", kNumber, none, kSeconds,
     [](const S& s) { return value_of(s.accuracy.measured_step.population_deviation()); }},
    {"predicted_population_sd_s", "standard deviation (n) of the rounds' forecasts", kNumber, none, kSeconds,
     [](const S& s) { return s.forecast ? value_of(s.forecast->predicted_population_deviation_s) : Value(); }},
    {"error_percent", "100 ln(predicted / measured)", kNumber, time, kPercent,
     [](const S& s) { return log_percent(absolute(s)); }},
    {"error_low_percent", "lower end of error_percent's 95 % interval", kNumber, none, kPercent,
     [](const S& s) { return log_percent(absolute(s), &Interval::low); }},
    {"error_high_percent", "upper end of it", kNumber, none, kPercent,
     [](const S& s) { return log_percent(absolute(s), &Interval::high); }},
    {"relative_error_percent", "error_percent minus that of 'single' in the same rounds", kNumber, time, kPercent,
     [](const S& s) { return log_percent(relative(s)); }},
    {"relative_error_low_percent", "lower end of its 95 % interval", kNumber, none, kPercent,
     [](const S& s) { return log_percent(relative(s), &Interval::low); }},
    {"relative_error_high_percent", "upper end of it", kNumber, none, kPercent,
     [](const S& s) { return log_percent(relative(s), &Interval::high); }},
    {"structure_error_percent", "100 ln(replayed / measured): wrong order, lanes or waits", kNumber, time, kPercent,
     [](const S& s) { return log_percent(s.accuracy.structure); }},
    {"noise_floor_percent", "how far halves of the measurement lie apart; above 2: inconclusive", kNumber, time, kShare,
     [](const S& s) { return percent(s.accuracy.noise_floor); }},
    {"status", "conclusive, inconclusive, predicted (nothing measured) or skipped", kText, time, "",
     [](const S& s) -> Value { return std::string(status_of(s)); }},
    {"skip_reason", "why the cell could not run", kText, none, "",
     [](const S& s) -> Value { return s.cell.skipped.empty() ? Value() : Value(s.cell.skipped); }},

    {"against_pytorch_percent", "100 ln(measured / plain PyTorch's step), same rounds", kNumber, causes, kPercent,
     [](const S& s) { return log_percent(against(s, 0)); }},
    {"against_pytorch_low_percent", "lower end of its 95 % interval", kNumber, none, kPercent,
     [](const S& s) { return log_percent(against(s, 0), &Interval::low); }},
    {"against_pytorch_high_percent", "upper end of it", kNumber, causes, kPercent,
     [](const S& s) { return log_percent(against(s, 0), &Interval::high); }},
    {"against_pytorch_best_percent", "100 ln(measured / the step of PyTorch at its best), same rounds", kNumber, causes,
     kPercent, [](const S& s) { return log_percent(against(s, 1)); }},
    {"against_pytorch_best_low_percent", "lower end of its 95 % interval", kNumber, none, kPercent,
     [](const S& s) { return log_percent(against(s, 1), &Interval::low); }},
    {"against_pytorch_best_high_percent", "upper end of it", kNumber, causes, kPercent,
     [](const S& s) { return log_percent(against(s, 1), &Interval::high); }},
    {"settings", "of a peer: what isn't PyTorch's default", kText, none, "",
     [](const S& s) -> Value { return s.cell.settings.empty() ? Value() : Value(s.cell.settings); }},
    {"largest_causes", "the three classes of instructions that carry most of the error, in percent of the measured step",
     kText, causes, "", [](const S& s) { return largest_causes(s); }},

    {"predicted_compute_s", "compute, mean over ranks; the four parts add up to the step", kNumber, breakdown, kSeconds,
     [](const S& s) { return predicted(s, &StepTime::compute_s); }},
    {"predicted_exposed_communication_s", "waiting for running transfers", kNumber, breakdown, kSeconds,
     [](const S& s) { return predicted(s, &StepTime::exposed_communication_s); }},
    {"predicted_bubble_s", "waiting for others", kNumber, breakdown, kSeconds,
     [](const S& s) { return predicted(s, &StepTime::bubble_s); }},
    {"predicted_host_s", "issuing instructions", kNumber, breakdown, kSeconds,
     [](const S& s) { return predicted(s, &StepTime::host_s); }},
    {"measured_compute_s", "the same, measured", kNumber, breakdown, kSeconds,
     [](const S& s) { return measured(s, &StepTime::compute_s); }},
    {"measured_exposed_communication_s", "the same, measured", kNumber, breakdown, kSeconds,
     [](const S& s) { return measured(s, &StepTime::exposed_communication_s); }},
    {"measured_bubble_s", "the same, measured", kNumber, breakdown, kSeconds,
     [](const S& s) { return measured(s, &StepTime::bubble_s); }},
    {"measured_host_s", "the same, measured", kNumber, breakdown, kSeconds,
     [](const S& s) { return measured(s, &StepTime::host_s); }},

    {"predicted_peak_MiB", "live tensor bytes of the fullest rank at the peak", kNumber, memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.predicted_peak_bytes); }},
    {"measured_peak_MiB", "the same, measured", kNumber, memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.measured_peak_bytes); }},
    {"peak_difference_bytes", "predicted minus measured peak", kInteger, memory, kCount, [](const S& s) {
       const CellMemory& m = s.cell.memory;
       const bool known = m.predicted_peak_bytes && m.measured_peak_bytes;
       return known ? Value(*m.predicted_peak_bytes - *m.measured_peak_bytes) : Value();
     }},
    {"predicted_allocator_MiB", "predicted_peak_MiB with the ops' workspace, which `profiled` has measured per op",
     kNumber, memory, kMiB, [](const S& s) { return mebibytes(s.cell.memory.predicted_allocator_peak_bytes); }},
    {"allocator_peak_MiB", "measured peak of all tensor memory, the ops' workspace included", kNumber, memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.allocator_peak_bytes); }},
    {"allocator_error_percent", "100 ln(predicted_allocator / allocator_peak)", kNumber, memory, kPercent,
     [](const S& s) {
       return error_percent(s.cell.memory.predicted_allocator_peak_bytes, s.cell.memory.allocator_peak_bytes);
     }},
    {"predicted_resident_MiB",
     "what the process holds without tensors, and what its allocator keeps for the step", kNumber, memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.predicted_resident_peak_bytes); }},
    {"resident_peak_MiB", "largest resident size of the process", kNumber, memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.resident_peak_bytes); }},
    {"resident_error_percent", "100 ln(predicted_resident / resident_peak)", kNumber, memory, kPercent,
     [](const S& s) {
       return error_percent(s.cell.memory.predicted_resident_peak_bytes, s.cell.memory.resident_peak_bytes);
     }},
    {"needed_MiB", "what the fullest device needs: tensors and known workspace of its ranks", kNumber, memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.needed()); }},
    {"capacity_MiB", "what it has", kNumber, memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.capacity_bytes); }},
    {"fits", "fits, or what is needed, and what most of it is for", kText, none, "",
     [](const S& s) -> Value { return s.cell.memory.fits() ? Value(fit_text(s.cell.memory)) : Value(); }},
    {"devices", "that the ranks sit on; fewer than the ranks share them", kInteger, none, kCount,
     [](const S& s) -> Value { return s.cell.devices > 0 ? Value(s.cell.devices) : Value(); }},
    {"weight_MiB", "part of predicted_peak_MiB", kNumber, memory_parts, kMiB,
     [](const S& s) { return at_peak(s, TensorClass::weight); }},
    {"gradient_MiB", "part of it", kNumber, memory_parts, kMiB,
     [](const S& s) { return at_peak(s, TensorClass::gradient); }},
    {"optimizer_MiB", "part of it", kNumber, memory_parts, kMiB,
     [](const S& s) { return at_peak(s, TensorClass::optimizer); }},
    {"activation_MiB", "part of it", kNumber, memory_parts, kMiB,
     [](const S& s) { return at_peak(s, TensorClass::activation); }},
    {"buffer_MiB", "part of it", kNumber, memory_parts, kMiB,
     [](const S& s) { return at_peak(s, TensorClass::buffer); }},
    {"input_MiB", "part of it", kNumber, memory_parts, kMiB, [](const S& s) { return at_peak(s, TensorClass::input); }},
    {"communication_MiB", "part of it", kNumber, memory_parts, kMiB,
     [](const S& s) { return at_peak(s, TensorClass::communication); }},
    {"verify_error", "largest |difference| / norm of the verified tensors", kNumber, memory, "{:.1e}",
     [](const S& s) { return value_of(s.cell.verify_error); }},
});
// clang-format on

using F = ForecastSummary;
Value of(const std::optional<ErrorSummary>& errors, double ErrorSummary::*number) {
  return errors ? Value(100 * (*errors).*number) : Value();
}

// clang-format off
constexpr std::array kSummaryColumns = std::to_array<Column<ForecastSummary>>({
    {"executor", "who ran the steps", kText, front, "", [](const F& f) -> Value { return f.executor; }},
    {"cost_model", "cost model of the forecast", kText, front, "", [](const F& f) -> Value { return f.cost_model; }},
    {"cells", "cells with a forecast and a measurement", kInteger, front, kCount,
     [](const F& f) { return whole(f.cells); }},
    {"conclusive_cells", "of these: noise floor at most 2 %", kInteger, front, kCount,
     [](const F& f) { return whole(f.conclusive); }},
    {"conclusive_percent", "their share", kNumber, front, kShare,
     [](const F& f) { return percent(f.conclusive_share); }},
    {"skipped_cells", "cells that could not run", kInteger, front, kCount,
     [](const F& f) { return whole(f.skipped); }},
    {"verdict", "ok, or failed as a measurement: under 80 % of the cells are conclusive", kText, front, "",
     [](const F& f) -> Value { return std::string(f.failed ? "failed" : "ok"); }},
    {"median_absolute_error_percent", "median |error|", kNumber, front, kShare,
     [](const F& f) { return of(f.absolute, &ErrorSummary::median_absolute); }},
    {"mean_absolute_error_percent", "mean |error|", kNumber, front, kShare,
     [](const F& f) { return of(f.absolute, &ErrorSummary::mean_absolute); }},
    {"bias_percent", "mean signed error", kNumber, front, kPercent,
     [](const F& f) { return of(f.absolute, &ErrorSummary::bias); }},
    {"median_absolute_relative_error_percent", "median |error relative to single|", kNumber, front, kShare,
     [](const F& f) { return of(f.relative, &ErrorSummary::median_absolute); }},
    {"mean_absolute_relative_error_percent", "mean of it", kNumber, front, kShare,
     [](const F& f) { return of(f.relative, &ErrorSummary::mean_absolute); }},
    {"relative_bias_percent", "mean signed error relative to single", kNumber, front, kPercent,
     [](const F& f) { return of(f.relative, &ErrorSummary::bias); }},
    {"largest_structure_error_percent", "largest |structure error| of conclusive cells", kNumber, front, kShare,
     [](const F& f) { return percent(f.largest_structure_error); }},
    {"cells_with_interval", "cells whose forecast has a 90 % interval", kInteger, front, kCount,
     [](const F& f) { return whole(f.with_interval); }},
    {"coverage_percent", "of these: the measured step lies inside; should be 85 to 95", kNumber, front, kShare,
     [](const F& f) { return percent(f.coverage); }},
    {"pairs_right", "pairs of strategies with separate intervals, ordered as predicted", kInteger, front, kCount,
     [](const F& f) { return whole(f.pairs_right); }},
    {"pairs_wrong", "such pairs, ordered otherwise", kInteger, front, kCount,
     [](const F& f) { return whole(f.pairs_wrong); }},
    {"pairs_unresolved", "pairs whose intervals overlap: no order is known", kInteger, front, kCount,
     [](const F& f) { return whole(f.pairs_unresolved); }},
});
// clang-format on

std::string csv_text(const Value& value) {
  return std::visit(
      [](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return "";
        } else if constexpr (std::is_same_v<T, std::string>) {
          std::string text = "\"";
          // A line break or a NUL would end the row for the reader.
          for (char c : v) text += c == '"' ? "\"\"" : c == '\n' || c == '\0' ? " " : std::string(1, c);
          return text + "\"";
        } else {
          return fmt::format("{}", v);
        }
      },
      value);
}

std::string csv_header() {
  std::string header = "format";
  for (const Column<RowSource>& column : kRowColumns) header += fmt::format(",{}", column.name);
  return header;
}

Json json_of(const Value& value) {
  return std::visit(
      [](const auto& v) -> Json {
        if constexpr (std::is_same_v<std::decay_t<decltype(v)>, std::monostate>)
          return {};
        else
          return v;
      },
      value);
}

template <class Source>
Json json_rows(const std::vector<Row>& rows, std::span<const Column<Source>> columns) {
  Json list = Json::array();
  for (const Row& row : rows) {
    Json& object = list.emplace_back(Json::object());
    for (std::size_t c = 0; c < columns.size(); ++c) object[columns[c].name] = json_of(row[c]);
  }
  return list;
}

/// Every element on a line of its own.
std::string lines_of(const Json& list, int indent) {
  std::string text;
  for (const Json& element : list)
    text += fmt::format("{}\n{:{}}{}", text.empty() ? "" : ",", "", indent, element.dump());
  return text.empty() ? text : fmt::format("{}\n{:{}}", text, "", indent - 1);
}

}  // namespace

std::span<const Column<RowSource>> row_columns() { return kRowColumns; }
std::span<const Column<ForecastSummary>> summary_columns() { return kSummaryColumns; }

Report make_report(const Result& result, const TrackRecord* record) {
  Report report;
  const Accuracy accuracy = assess(result, record);
  const auto add = [&](const RowSource& source) {
    Row& row = report.rows.emplace_back();
    for (const Column<RowSource>& column : kRowColumns) row.push_back(column.value(source));
  };
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    for (const auto& [cost_model, forecast] : accuracy.cells[i].forecasts)
      add({result.cells[i], accuracy.cells[i], cost_model, &forecast});
    if (accuracy.cells[i].forecasts.empty()) add({result.cells[i], accuracy.cells[i], "", nullptr});
  }
  for (const ForecastSummary& summary : accuracy.summaries) {
    Row& row = report.summary.emplace_back();
    for (const Column<ForecastSummary>& column : kSummaryColumns) row.push_back(column.value(summary));
    report.classes.push_back(summary.classes);
  }
  return report;
}

std::string to_csv(const Report& report) {
  std::string text = csv_header() + "\n";
  for (const Row& row : report.rows) {
    text += kResultFormat;
    for (const Value& value : row) text += "," + csv_text(value);
    text += "\n";
  }
  return text;
}

std::string to_json(const Result& result, bool with_samples) {
  const Report report = make_report(result);
  Json columns = Json::array(), sessions = Json::array(), cells = Json::array();
  for (const Column<RowSource>& column : kRowColumns)
    columns.push_back({{"name", column.name}, {"description", column.description}});
  for (const Session& session : result.sessions)
    sessions.push_back({{"first_round", session.first_round}, {"context", session.context}});
  Json summary = json_rows(report.summary, summary_columns());
  for (std::size_t s = 0; s < report.classes.size(); ++s) {
    Json& classes = summary[s]["classes"] = Json::array();
    for (const ClassShare& share : report.classes[s])
      classes.push_back({{"class", share.name},
                         {"mean_absolute_effect_percent", 100 * share.mean_absolute},
                         {"mean_effect_percent", 100 * share.bias},
                         {"cells", share.cells}});
  }
  // A line per session, column, row, summary and round: readable, and a new round changes little of the file.
  std::string text = fmt::format("{{\n \"format\": \"{}\",\n \"kind\": {},\n", kResultFormat, Json(result.kind).dump());
  const auto add = [&](std::string_view key, const Json& list) {
    text += fmt::format(" \"{}\": [{}],\n", key, lines_of(list, 2));
  };
  add("sessions", sessions);
  add("columns", columns);
  add("rows", json_rows(report.rows, row_columns()));
  add("summary", summary);
  text += " \"cells\": [";
  for (const Cell& cell : result.cells) {
    Json json = sim::to_json(cell, with_samples);
    const Json rounds = std::move(json["rounds"]);
    json.erase("rounds");
    std::string line = json.dump();
    line.pop_back();
    text +=
        fmt::format("{}\n  {},\"rounds\":[{}]}}", &cell == result.cells.data() ? "" : ",", line, lines_of(rounds, 3));
  }
  return text + (result.cells.empty() ? "]\n}\n" : "\n ]\n}\n");
}

void save_result(const std::filesystem::path& path, const Result& result, bool with_samples) {
  write_text_file(path, to_json(result, with_samples));
}

}  // namespace sim
