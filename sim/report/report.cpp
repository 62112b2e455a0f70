#include "sim/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "sim/error.hpp"
#include "sim/program/memory.hpp"
#include "sim/report/answer.hpp"
#include "sim/report/console.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using Json = nlohmann::ordered_json;
using S = RowSource;
using F = ForecastSummary;
using OfRow = std::function<Value(const S&)>;

constexpr std::string_view kResultFormat = "paragauge-result-4";

Value value_of(const std::optional<double>& number, double factor = 1) {
  return number ? Value(factor * *number) : Value();
}
Value whole(std::size_t count) { return static_cast<std::int64_t>(count); }
Value unless_empty(const std::string& text) { return text.empty() ? Value() : Value(text); }
Value mebibytes(const std::optional<std::int64_t>& bytes) {
  return bytes ? Value(static_cast<double>(*bytes) / 1048576) : Value();
}

std::string status_of(const S& s) {
  if (!s.cell.skipped.empty()) return "skipped";
  if (!s.accuracy.measured) return "predicted";
  return s.accuracy.conclusive ? "conclusive" : "inconclusive";
}

// The values below are at the end of a path through the optional parts; where it breaks off, they are unavailable.
OfRow predicted(double StepTime::*part) {
  return [part](const S& s) { return s.forecast ? Value(s.forecast->predicted.*part) : Value(); };
}
/// A peer measures the step alone, not what it consists of.
OfRow measured(double StepTime::*part) {
  return [part](const S& s) {
    const std::optional<StepTime>& time = s.accuracy.measured;
    const bool known = time && (part == &StepTime::step_s || *time != StepTime{.step_s = time->step_s});
    return known ? Value((*time).*part) : Value();
  };
}
OfRow forecast_90(double Interval::*end) {
  return [end](const S& s) {
    return s.forecast && s.forecast->interval_90 ? Value((*s.forecast->interval_90).*end) : Value();
  };
}
OfRow measured_95(double Interval::*end) {
  return [end](const S& s) { return s.accuracy.interval ? Value((*s.accuracy.interval).*end) : Value(); };
}
/// The percentage of the logarithm itself, or of an end of its interval.
Value log_percent(const std::optional<LogError>& error, double Interval::*end) {
  if (!error || (end && !error->interval)) return {};
  return 100 * (end ? (*error->interval).*end : error->log_ratio);
}
OfRow error_of(std::optional<LogError> ForecastAccuracy::*error, double Interval::*end = nullptr) {
  return [=](const S& s) { return s.forecast ? log_percent(s.forecast->*error, end) : Value(); };
}
OfRow against(std::string_view peer, double Interval::*end = nullptr) {
  return [=](const S& s) {
    const auto found = s.accuracy.against_peer.find(peer);
    return found == s.accuracy.against_peer.end() ? Value() : log_percent(found->second, end);
  };
}
OfRow memory_of(std::optional<std::int64_t> CellMemory::*bytes) {
  return [bytes](const S& s) { return mebibytes(s.cell.memory.*bytes); };
}
/// 100 ln(predicted / measured), where both are known.
OfRow memory_error(std::optional<std::int64_t> CellMemory::*over, std::optional<std::int64_t> CellMemory::*under) {
  return [=](const S& s) {
    const auto &predicted_bytes = s.cell.memory.*over, &measured_bytes = s.cell.memory.*under;
    if (!predicted_bytes || !measured_bytes) return Value();
    return Value(100 * std::log(static_cast<double>(*predicted_bytes) / static_cast<double>(*measured_bytes)));
  };
}
OfRow at_peak(TensorClass tensor_class) {
  return [tensor_class](const S& s) {
    const auto found = s.cell.memory.predicted_at_peak_bytes.find(std::string(to_string(tensor_class)));
    return found == s.cell.memory.predicted_at_peak_bytes.end() ? Value() : mebibytes(found->second);
  };
}

/// Part of what the fullest device needs; unavailable where nothing of it is.
OfRow part_of_needed(MemoryUse use) {
  return [use](const S& s) {
    const auto found = s.cell.memory.needed_bytes.find(std::string(to_string(use)));
    return found == s.cell.memory.needed_bytes.end() ? Value() : mebibytes(found->second);
  };
}

/// "rank 0: 2.33 GiB; ranks 1-3: 1.03 GiB".
Value needed_by_device(const S& s) {
  std::string text;
  for (const DeviceNeed& need : s.cell.memory.by_device)
    text += fmt::format("{}rank{} {}: {}", text.empty() ? "" : "; ",
                        need.ranks.find_first_of(",-") == std::string::npos ? "" : "s", need.ranks,
                        readable_bytes(static_cast<double>(need.needed())));
  return unless_empty(text);
}

/// "resnet50" of "resnet50,global_batch=16" and of "/tmp/resnet50.json,global_batch=16".
std::string model_name(const Cell& cell) { return std::filesystem::path(head_of(cell.model)).stem().string(); }

SpecText strategy_of(const Cell& cell) { return {cell.strategy, "strategy"}; }

std::int64_t microbatch_of(const Cell& cell) { return cell.global_batch / (cell.replicas * cell.microbatches); }

/// "pipeline gpipe, split size 2, 2 ranks", "ddp blocking, 4 ranks": strategies that differ in the cut or in the
/// buckets alone share it.
std::string label_of(const Cell& cell) {
  const SpecText text = strategy_of(cell);
  std::string label = text.head();
  if (text.text("overlap") == "0") label += " blocking";
  if (text.head() == "mesh")
    for (const char* degree : {"dp", "replicas", "shard", "pp", "tp", "zero"})
      if (const auto size = text.text(degree)) label += fmt::format(" {}={}", degree, *size);
  if (const auto schedule = text.text("schedule")) label += " " + *schedule;
  if (cell.microbatches > 1) label += fmt::format(", split size {}", microbatch_of(cell));
  if (cell.ranks > 1) label += fmt::format(", {} ranks", cell.ranks);
  if (cell.threads > 1) label += fmt::format(", {} threads", cell.threads);
  std::ranges::replace(label, '_', ' ');
  return label;
}

/// "conv2d.backward +1.9, send -0.8, host +0.2".
Value largest_causes(const S& s) {
  if (s.forecast == nullptr || !s.accuracy.measured) return {};
  constexpr std::size_t kLargest = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(kLargest, s.forecast->classes.size()); ++i) {
    const ClassError& c = s.forecast->classes[i];
    text += fmt::format("{}{} {:+.1f}", i == 0 ? "" : ", ", c.name, 100 * c.effect_s / s.accuracy.measured->step_s);
  }
  return unless_empty(text);
}

using enum ConsolePlace;
constexpr std::string_view kText, kSeconds = "{:#.4g}", kPercent = "{:+.2f}", kShare = "{:.2f}", kMiB = "{:.2f}",
                                  kCount = "{}";

std::function<Value(const F&)> of(std::optional<ErrorSummary> F::*errors, double ErrorSummary::*number) {
  return [=](const F& f) { return f.*errors ? Value(100 * (*(f.*errors)).*number) : Value(); };
}

std::string csv_text(const Value& value) {
  if (const auto* number = std::get_if<double>(&value)) return fmt::to_string(*number);
  if (const auto* count = std::get_if<std::int64_t>(&value)) return fmt::to_string(*count);
  const auto* text = std::get_if<std::string>(&value);
  if (text == nullptr) return "";
  std::string quoted = "\"";
  // A line break or a NUL would end the row for the reader.
  for (char c : *text) quoted += c == '"' ? "\"\"" : c == '\n' || c == '\0' ? " " : std::string(1, c);
  return quoted + "\"";
}

template <class Source>
Row row_of(const std::vector<Column<Source>>& columns, const Source& source) {
  Row row;
  for (const Column<Source>& column : columns) row.push_back(column.value(source));
  return row;
}

template <class Source>
Json json_of(const Row& row, const std::vector<Column<Source>>& columns) {
  Json object = Json::object();
  for (std::size_t c = 0; c < columns.size(); ++c)
    object[columns[c].name] = std::visit([](const auto& value) -> Json { return value; }, row[c]);
  return object;
}

/// Every element of a list or an object on a line of its own.
std::string lines_of(const Json& json, int indent) {
  std::string text;
  for (const auto& [key, element] : json.items())
    text += fmt::format("{}\n{:{}}{}{}", text.empty() ? "" : ",", "", indent,
                        json.is_object() ? Json(key).dump() + ":" : "", element.dump());
  return text.empty() ? text : fmt::format("{}\n{:{}}", text, "", indent - 1);
}

}  // namespace

// clang-format off
const std::vector<Column<RowSource>>& row_columns() {
  static const std::vector<Column<RowSource>> columns{
    {"model", "model, as load_model reads it", none, kText, [](const S& s) { return s.cell.model; }},
    {"world", "how the ranks talk", none, kText, [](const S& s) { return s.cell.world; }},
    {"executor", "who ran the steps: paragauge, or a peer", none, kText, [](const S& s) { return s.cell.executor; }},
    {"strategy", "strategy, as parse_strategy reads it", none, kText, [](const S& s) { return s.cell.strategy; }},
    {"cost_model", "cost model of the forecast", none, kText,
     [](const S& s) { return unless_empty(std::string(s.cost_model)); }},
    {"model_name", "name of the model", none, kText, [](const S& s) { return model_name(s.cell); }},
    {"preset", "name of the strategy", none, kText, [](const S& s) { return strategy_of(s.cell).head(); }},
    {"schedule", "schedule of its microbatches", none, kText,
     [](const S& s) { return unless_empty(strategy_of(s.cell).text("schedule").value_or("")); }},
    {"label", "the strategy in words", none, kText, [](const S& s) { return label_of(s.cell); }},
    {"ranks", "ranks of the strategy", none, kCount, [](const S& s) { return s.cell.ranks; }},
    {"global_batch", "samples per optimizer step over all ranks", none, kCount,
     [](const S& s) { return s.cell.global_batch; }},
    {"microbatch", "samples per pass; the split size of a pipeline", none, kCount,
     [](const S& s) { return microbatch_of(s.cell); }},
    {"rounds", "rounds with a measurement", none, kCount,
     [](const S& s) { return whole(s.accuracy.measured_step.rounds()); }},
    {"samples", "measured steps", none, kCount, [](const S& s) { return whole(s.accuracy.measured_step.count()); }},

    {"predicted_s", "predicted step time, mean over rounds", time, kSeconds, predicted(&StepTime::step_s)},
    {"forecast_low_s", "lower end of the forecast's 90 % interval, from the errors of other models", time, kSeconds,
     forecast_90(&Interval::low)},
    {"forecast_high_s", "upper end of it", time, kSeconds, forecast_90(&Interval::high)},
    {"forecast_interval_from", "whose errors the interval is made of, or what leaves it open", none, kText,
     [](const S& s) { return s.forecast && s.forecast->interval_90 ? Value(s.forecast->interval_from) : Value(); }},
    {"told_from_fastest", "yes: forecast slower than the fastest that fits by more than what is known of the "
     "forecasts' errors; no: the two can't be told apart; empty for the fastest itself", none, kText, [](const S& s) {
       const bool known = s.forecast != nullptr && s.forecast->told_from_fastest;
       return known ? Value(*s.forecast->told_from_fastest ? "yes" : "no") : Value();
     }},
    {"measured_s", "measured step time, mean over rounds", time, kSeconds, measured(&StepTime::step_s)},
    {"measured_low_s", "lower end of measured_s's 95 % interval (bootstrap over rounds)", time, kSeconds,
     measured_95(&Interval::low)},
    {"measured_high_s", "upper end of it", time, kSeconds, measured_95(&Interval::high)},
    {"measured_median_s", "median step of a round, mean over rounds", none, kSeconds,
     [](const S& s) { return value_of(s.accuracy.median_s); }},
    {"measured_sd_s", "standard deviation of all measured steps (n - 1)", none, kSeconds,
     [](const S& s) { return value_of(s.accuracy.measured_step.sample_deviation()); }},
    {"measured_population_sd_s", "the same with n, as in PyTorch's tutorial", none, kSeconds,
     [](const S& s) { return value_of(s.accuracy.measured_step.population_deviation()); }},
    {"predicted_population_sd_s", "standard deviation (n) of the rounds' forecasts", none, kSeconds,
     [](const S& s) { return s.forecast ? value_of(s.forecast->predicted_population_deviation_s) : Value(); }},
    {"error_percent", "100 ln(predicted / measured)", time, kPercent, error_of(&ForecastAccuracy::absolute)},
    {"error_low_percent", "lower end of error_percent's 95 % interval", none, kPercent,
     error_of(&ForecastAccuracy::absolute, &Interval::low)},
    {"error_high_percent", "upper end of it", none, kPercent, error_of(&ForecastAccuracy::absolute, &Interval::high)},
    {"relative_error_percent", "error_percent minus that of 'single' in the same rounds", time, kPercent,
     error_of(&ForecastAccuracy::relative)},
    {"relative_error_low_percent", "lower end of its 95 % interval", none, kPercent,
     error_of(&ForecastAccuracy::relative, &Interval::low)},
    {"relative_error_high_percent", "upper end of it", none, kPercent,
     error_of(&ForecastAccuracy::relative, &Interval::high)},
    {"structure_error_percent", "100 ln(replayed / measured): wrong order, lanes or waits", time, kPercent,
     [](const S& s) { return log_percent(s.accuracy.structure, nullptr); }},
    {"noise_floor_percent", "how far halves of the measurement lie apart; above 2: inconclusive", time, kShare,
     [](const S& s) { return value_of(s.accuracy.noise_floor, 100); }},
    {"status", "conclusive, inconclusive, predicted (nothing measured) or skipped", time, kText, status_of},
    {"skip_reason", "why the cell could not run", none, kText, [](const S& s) { return unless_empty(s.cell.skipped); }},

    {"against_pytorch_percent", "100 ln(measured / plain PyTorch's step), same rounds", causes, kPercent,
     against(kPeers[0])},
    {"against_pytorch_low_percent", "lower end of its 95 % interval", none, kPercent,
     against(kPeers[0], &Interval::low)},
    {"against_pytorch_high_percent", "upper end of it", causes, kPercent, against(kPeers[0], &Interval::high)},
    {"against_pytorch_best_percent", "100 ln(measured / the step of PyTorch at its best), same rounds", causes,
     kPercent, against(kPeers[1])},
    {"against_pytorch_best_low_percent", "lower end of its 95 % interval", none, kPercent,
     against(kPeers[1], &Interval::low)},
    {"against_pytorch_best_high_percent", "upper end of it", causes, kPercent, against(kPeers[1], &Interval::high)},
    {"settings", "of a peer: what isn't PyTorch's default; graph: steps are replays", none, kText,
     [](const S& s) { return unless_empty(s.cell.settings); }},
    {"largest_causes", "the three classes of instructions that carry most of the error, in percent of the measured "
     "step", causes, kText, largest_causes},

    {"predicted_compute_s", "compute, mean over ranks; the four parts add up to the step", breakdown, kSeconds,
     predicted(&StepTime::compute_s)},
    {"predicted_exposed_communication_s", "waiting for running transfers", breakdown, kSeconds,
     predicted(&StepTime::exposed_communication_s)},
    {"predicted_bubble_s", "waiting for others", breakdown, kSeconds, predicted(&StepTime::bubble_s)},
    {"predicted_host_s", "issuing instructions", breakdown, kSeconds, predicted(&StepTime::host_s)},
    {"sent_MiB", "what the rank that sends most must send in a step, whatever the algorithm", breakdown, kMiB,
     [](const S& s) { return mebibytes(s.cell.sent_bytes); }},
    {"transfers", "sends and collectives that it begins", breakdown, kCount,
     [](const S& s) { return s.cell.transfers ? Value(*s.cell.transfers) : Value(); }},
    {"measured_compute_s", "the same, measured", breakdown, kSeconds, measured(&StepTime::compute_s)},
    {"measured_exposed_communication_s", "the same, measured", breakdown, kSeconds,
     measured(&StepTime::exposed_communication_s)},
    {"measured_bubble_s", "the same, measured", breakdown, kSeconds, measured(&StepTime::bubble_s)},
    {"measured_host_s", "the same, measured", breakdown, kSeconds, measured(&StepTime::host_s)},

    {"predicted_peak_MiB", "live tensor bytes of the fullest rank at the peak", memory, kMiB,
     memory_of(&CellMemory::predicted_peak_bytes)},
    {"measured_peak_MiB", "the same, measured", memory, kMiB, memory_of(&CellMemory::measured_peak_bytes)},
    {"peak_difference_bytes", "predicted minus measured peak", memory, kCount, [](const S& s) {
       const CellMemory& m = s.cell.memory;
       const bool known = m.predicted_peak_bytes && m.measured_peak_bytes;
       return known ? Value(*m.predicted_peak_bytes - *m.measured_peak_bytes) : Value();
     }},
    {"predicted_allocator_MiB", "predicted_peak_MiB with the ops' workspace, which `profiled` has measured per op",
     memory, kMiB, memory_of(&CellMemory::predicted_allocator_peak_bytes)},
    {"allocator_peak_MiB", "measured peak of all tensor memory, the ops' workspace included", memory, kMiB,
     memory_of(&CellMemory::allocator_peak_bytes)},
    {"allocator_error_percent", "100 ln(predicted_allocator / allocator_peak)", memory, kPercent,
     memory_error(&CellMemory::predicted_allocator_peak_bytes, &CellMemory::allocator_peak_bytes)},
    {"predicted_resident_MiB", "what the process holds without tensors, and what its allocator keeps for the step",
     memory, kMiB, memory_of(&CellMemory::predicted_resident_peak_bytes)},
    {"resident_peak_MiB", "largest resident size of the process", memory, kMiB,
     memory_of(&CellMemory::resident_peak_bytes)},
    {"resident_error_percent", "100 ln(predicted_resident / resident_peak)", memory, kPercent,
     memory_error(&CellMemory::predicted_resident_peak_bytes, &CellMemory::resident_peak_bytes)},
    {"needed_MiB", "what the fullest device needs: tensors and known workspace of its ranks; on a GPU also what "
     "PyTorch holds beside them", memory, kMiB, [](const S& s) { return mebibytes(s.cell.memory.needed()); }},
    {"least_needed_MiB", "what the emptiest one needs", memory, kMiB,
     [](const S& s) { return mebibytes(s.cell.memory.least_needed()); }},
    {"needed_by_device", "needed_MiB of each device, by the ranks that sit on it", none, kText, needed_by_device},
    {"capacity_MiB", "what it has", memory, kMiB, memory_of(&CellMemory::capacity_bytes)},
    {"fits", "fits, or what is needed, and what most of it is for", none, kText,
     [](const S& s) { return s.cell.memory.fits() ? Value(fit_text(s.cell.memory)) : Value(); }},
    {"devices", "that the ranks sit on; fewer than the ranks share them", none, kCount,
     [](const S& s) { return s.cell.devices > 0 ? Value(s.cell.devices) : Value(); }},
    {"weight_MiB", "part of predicted_peak_MiB", memory_parts, kMiB, at_peak(TensorClass::weight)},
    {"copy_MiB", "part of it", memory_parts, kMiB, at_peak(TensorClass::copy)},
    {"gradient_MiB", "part of it", memory_parts, kMiB, at_peak(TensorClass::gradient)},
    {"optimizer_MiB", "part of it", memory_parts, kMiB, at_peak(TensorClass::optimizer)},
    {"activation_MiB", "part of it", memory_parts, kMiB, at_peak(TensorClass::activation)},
    {"buffer_MiB", "part of it", memory_parts, kMiB, at_peak(TensorClass::buffer)},
    {"input_MiB", "part of it", memory_parts, kMiB, at_peak(TensorClass::input)},
    {"communication_MiB", "part of it", memory_parts, kMiB, at_peak(TensorClass::communication)},
    {"optimizer_temporaries_MiB", "part of needed_MiB: of updates with foreach=True, PyTorch's default on GPUs",
     memory_parts, kMiB, part_of_needed(MemoryUse::optimizer_temporaries)},
    {"context_MiB", "part of it: CUDA's context, kernels and cuBLAS's workspace", memory_parts, kMiB,
     part_of_needed(MemoryUse::device_context)},
    {"communicators_MiB", "part of it: the buffers of NCCL's communicators", memory_parts, kMiB,
     part_of_needed(MemoryUse::communicators)},
    {"verify_error", "largest |difference| / norm of the verified tensors", memory, "{:.1e}",
     [](const S& s) { return value_of(s.cell.verify_error); }},
  };
  return columns;
}

const std::vector<Column<ForecastSummary>>& summary_columns() {
  static const std::vector<Column<ForecastSummary>> columns{
    {"executor", "who ran the steps", none, kText, [](const F& f) { return f.executor; }},
    {"cost_model", "cost model of the forecast", none, kText, [](const F& f) { return f.cost_model; }},
    {"cells", "cells with a forecast and a measurement", none, kCount, [](const F& f) { return whole(f.cells); }},
    {"conclusive_cells", "of these: noise floor at most 2 %", none, kCount,
     [](const F& f) { return whole(f.conclusive); }},
    {"conclusive_percent", "their share", none, kShare, [](const F& f) { return value_of(f.conclusive_share, 100); }},
    {"skipped_cells", "cells that could not run", none, kCount, [](const F& f) { return whole(f.skipped); }},
    {"verdict", "ok, or failed as a measurement: under 80 % of the cells are conclusive", none, kText,
     [](const F& f) { return f.failed ? "failed" : "ok"; }},
    {"median_absolute_error_percent", "median |error|", none, kShare,
     of(&F::absolute, &ErrorSummary::median_absolute)},
    {"mean_absolute_error_percent", "mean |error|", none, kShare, of(&F::absolute, &ErrorSummary::mean_absolute)},
    {"bias_percent", "mean signed error", none, kPercent, of(&F::absolute, &ErrorSummary::bias)},
    {"median_absolute_relative_error_percent", "median |error relative to single|", none, kShare,
     of(&F::relative, &ErrorSummary::median_absolute)},
    {"mean_absolute_relative_error_percent", "mean of it", none, kShare,
     of(&F::relative, &ErrorSummary::mean_absolute)},
    {"relative_bias_percent", "mean signed error relative to single", none, kPercent,
     of(&F::relative, &ErrorSummary::bias)},
    {"largest_structure_error_percent", "largest |structure error| of conclusive cells", none, kShare,
     [](const F& f) { return value_of(f.largest_structure_error, 100); }},
    {"cells_with_interval", "cells whose forecast has a 90 % interval", none, kCount,
     [](const F& f) { return whole(f.with_interval); }},
    {"coverage_percent", "of these: the measured step lies inside; should be 85 to 95", none, kShare,
     [](const F& f) { return value_of(f.coverage, 100); }},
    {"pairs_right", "pairs of strategies with separate intervals, ordered as predicted", none, kCount,
     [](const F& f) { return whole(f.pairs_right); }},
    {"pairs_wrong", "such pairs, ordered otherwise", none, kCount, [](const F& f) { return whole(f.pairs_wrong); }},
    {"pairs_unresolved", "pairs whose intervals overlap: no order is known", none, kCount,
     [](const F& f) { return whole(f.pairs_unresolved); }},
  };
  return columns;
}
// clang-format on

Report make_report(const Result& result, const TrackRecord* record) {
  const Accuracy accuracy = assess(result, record);
  Report report{.rows = {}, .summaries = accuracy.summaries};
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    const Cell& cell = result.cells[i];
    const CellAccuracy& assessed = accuracy.cells[i];
    for (const auto& [cost_model, forecast] : assessed.forecasts)
      report.rows.push_back(row_of(row_columns(), {cell, assessed, cost_model, &forecast}));
    if (assessed.forecasts.empty()) report.rows.push_back(row_of(row_columns(), {cell, assessed, "", nullptr}));
  }
  return report;
}

std::string to_csv(const Report& report) {
  std::string text = "format";
  for (const Column<RowSource>& column : row_columns()) text += fmt::format(",{}", column.name);
  for (const Row& row : report.rows) {
    text += fmt::format("\n{}", kResultFormat);
    for (const Value& value : row) text += "," + csv_text(value);
  }
  return text + "\n";
}

namespace {

/// `"key": [` … `],` with a line per entry: readable, and a new round changes little of the file.
std::string listed(std::string_view key, const Json& list) {
  return fmt::format(" \"{}\": [{}],\n", key, lines_of(list, 2));
}

/// Columns, rows and summary.
std::string computed_from(const Result& result, const TrackRecord* record) {
  const Report report = make_report(result, record);
  Json columns = Json::array(), rows = Json::array(), summaries = Json::array();
  for (const Column<RowSource>& column : row_columns())
    columns.push_back({{"name", column.name}, {"description", column.description}});
  for (const Row& row : report.rows) rows.push_back(json_of(row, row_columns()));
  for (const ForecastSummary& summary : report.summaries) {
    Json& row = summaries.emplace_back(json_of(row_of(summary_columns(), summary), summary_columns()));
    row["classes"] = Json::array();
    for (const ClassShare& share : summary.classes)
      row["classes"].push_back({{"class", share.name},
                                {"mean_absolute_effect_percent", 100 * share.mean_absolute},
                                {"mean_effect_percent", 100 * share.bias},
                                {"cells", share.cells}});
  }
  return listed("columns", columns) + listed("rows", rows) + listed("summary", summaries);
}

std::string file_of(const Result& result, bool with_samples, const std::string& computed) {
  Json sessions = Json::array();
  for (const Session& session : result.sessions)
    sessions.push_back({{"first_round", session.first_round}, {"context", session.context}});
  std::string text = fmt::format("{{\n \"format\": \"{}\",\n \"kind\": {},\n", kResultFormat, Json(result.kind).dump());
  text += listed("sessions", sessions) + computed + " \"cells\": [";
  for (const Cell& cell : result.cells) {
    const auto ours = result.find(cell.model, cell.strategy, cell.world, kOurs);
    const bool stands_before = ours && &result.cells[*ours] < &cell;
    Json json = sim::to_json(cell, with_samples, stands_before ? &result.cells[*ours] : nullptr);
    const Json rounds = std::move(json["rounds"]);
    json.erase("rounds");
    std::string line = json.dump();
    line.pop_back();
    text +=
        fmt::format("{}\n  {},\"rounds\":{{{}}}}}", &cell == result.cells.data() ? "" : ",", line, lines_of(rounds, 3));
  }
  return text + (result.cells.empty() ? "]\n}\n" : "\n ]\n}\n");
}

}  // namespace

std::string to_json(const Result& result, bool with_samples) { return file_of(result, with_samples, ""); }

std::string report_to_json(const Result& result, const TrackRecord* record) {
  return file_of(result, /*with_samples=*/false, computed_from(result, record));
}

void save_result(const std::filesystem::path& path, const Result& result, bool with_samples) {
  write_text_file(path, to_json(result, with_samples));
}

void save_report(const std::filesystem::path& path, const Result& result, const TrackRecord* record) {
  write_text_file(path, report_to_json(result, record));
}

}  // namespace sim
