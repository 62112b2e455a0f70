// The reported numbers, once: what the console, CSV and JSON show of a Result.
//
//   Report report = make_report(result);
//   fmt::print("{}", to_console(report));       // all tables, at most 120 columns wide; the short one: answer.hpp
//   write_text_file("r.csv", to_csv(report));
//   save_result("r.json", result);              // the file of sim/report/result.hpp
//   save_report("r.json", result);              // the same with columns, rows and summary
//
// A row is a cell × cost model (one row without forecast for a cell nobody predicted). `row_columns()` and
// `summary_columns()` are the lists: a new number is one more line there. Names end in the unit. Percentages of errors
// are 100 × the natural log ratio, so +x and −x are the same factor. What is unavailable is empty in CSV, null in JSON
// and n/a on the console.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sim/report/accuracy.hpp"
#include "sim/report/result.hpp"

namespace sim {

using Value = std::variant<std::nullptr_t, std::int64_t, double, std::string>;
using Row = std::vector<Value>;  // one value per column

/// The table in which the console shows a column beside the strategy and the cost model.
enum class ConsolePlace : std::uint8_t { none, time, causes, breakdown, memory, memory_parts };

struct RowSource {
  const Cell& cell;
  const CellAccuracy& accuracy;
  std::string_view cost_model;
  const ForecastAccuracy* forecast;  // null: nobody predicted this cell
};

template <class Source>
struct Column {
  std::string_view name;  // with the unit
  std::string_view description;
  ConsolePlace place = ConsolePlace::none;
  std::string_view format;  // fmt's, for the console; empty: a text
  std::function<Value(const Source&)> value;
};
const std::vector<Column<RowSource>>& row_columns();
const std::vector<Column<ForecastSummary>>& summary_columns();

struct Report {
  std::vector<Row> rows;                   // by row_columns()
  std::vector<ForecastSummary> summaries;  // one per executor × cost model; summary_columns() shows them
};
/// `record`: see `assess`.
Report make_report(const Result& result, const TrackRecord* record = nullptr);

enum class Detail : std::uint8_t { brief, full };  // full: with the tables of the breakdown and of memory
/// Tables, then the summary and the instructions that explain most of the error.
std::string to_console(const Report& report, Detail detail = Detail::brief);
std::string to_csv(const Report& report);
/// The result file; `with_samples`: every measured step, too, where it is known.
std::string to_json(const Result& result, bool with_samples = false);
/// The result file with what is computed from its cells: columns, rows and summary. `record`: see `assess`.
std::string report_to_json(const Result& result, const TrackRecord* record = nullptr);
/// Atomic: whoever reads the file while a run goes on sees the last complete round.
void save_result(const std::filesystem::path& path, const Result& result, bool with_samples = false);
void save_report(const std::filesystem::path& path, const Result& result, const TrackRecord* record = nullptr);

}  // namespace sim
