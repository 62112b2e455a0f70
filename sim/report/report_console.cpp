#include <algorithm>
#include <utility>

#include "sim/error.hpp"
#include "sim/report/console.hpp"
#include "sim/report/report.hpp"

namespace sim {
namespace {

constexpr std::size_t kConsoleWidth = 120, kLeastRoom = 16;

std::string console_text(const Value& value, std::string_view format) {
  return std::visit(
      [&](const auto& v) -> std::string {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, std::monostate>)
          return "n/a";
        else if constexpr (std::is_same_v<T, std::string>)
          return v;
        else
          return fmt::format(fmt::runtime(format), v);
      },
      value);
}

/// A header is its column's name, broken at underscores.
std::vector<std::string> header_lines(std::string_view name) {
  std::vector<std::string> lines = wrap(name, '_', 10);
  for (std::string& line : lines)
    if (line.ends_with('_')) line.pop_back();
  return lines;
}

bool is_available(const Value& value) { return !std::holds_alternative<std::monostate>(value); }

template <class Source>
std::size_t column_index(std::span<const Column<Source>> columns, std::string_view name) {
  const auto found = std::ranges::find(columns, name, &Column<Source>::name);
  check_internal(found != columns.end(), "no column '{}'", name);
  return static_cast<std::size_t>(found - columns.begin());
}

/// The rows of one heading in one of the tables; columns without any value are left out. Empty when all are.
std::string table_of(std::vector<const Row*> rows, ConsolePlace place) {
  const std::size_t strategy = column_index(row_columns(), "strategy"),
                    cost_model = column_index(row_columns(), "cost_model");
  const auto same_strategy = [&](const Row* a, const Row* b) { return (*a)[strategy] == (*b)[strategy]; };
  const bool per_cost_model =
      place == ConsolePlace::time || place == ConsolePlace::causes || place == ConsolePlace::breakdown;
  if (!per_cost_model) rows.erase(std::unique(rows.begin(), rows.end(), same_strategy), rows.end());
  std::vector<ConsoleColumn> columns;
  bool is_empty = true;
  std::size_t taken = 0;
  for (std::size_t c = 0; c < row_columns().size(); ++c) {
    const Column<RowSource>& column = row_columns()[c];
    if (column.place != place && (c != cost_model || !per_cost_model)) continue;
    if (std::ranges::none_of(rows, [&](const Row* row) { return is_available((*row)[c]); })) continue;
    is_empty = is_empty && column.place != place;
    ConsoleColumn& shown = columns.emplace_back();
    shown.right = column.type != ValueType::text;
    shown.cells.push_back(header_lines(column.name));
    for (const Row* row : rows) shown.cells.push_back({console_text((*row)[c], column.format)});
    taken += shown.width() + 1;
  }
  if (is_empty) return "";
  // A strategy's text runs down beside all of its rows; the last one takes what is left.
  ConsoleColumn names{.cells = {{"strategy"}}, .right = false};
  const std::size_t room = std::max(kConsoleWidth - std::min(taken, kConsoleWidth), kLeastRoom);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || !same_strategy(rows[i - 1], rows[i])) lines = wrap(console_text((*rows[i])[strategy], ""), ',', room);
    const bool is_last = i + 1 == rows.size() || !same_strategy(rows[i], rows[i + 1]);
    const auto count = static_cast<std::ptrdiff_t>(is_last ? lines.size() : std::min<std::size_t>(1, lines.size()));
    names.cells.emplace_back(lines.begin(), lines.begin() + count);
    lines.erase(lines.begin(), lines.begin() + count);
  }
  columns.insert(columns.begin(), std::move(names));
  return lay_out(columns);
}

/// One line per number: its name, a column per summary, what it means.
std::string summary_text(const Report& report) {
  std::vector<ConsoleColumn> columns(report.summary.size() + 1);
  for (std::size_t c = 0; c < summary_columns().size(); ++c) {
    columns[0].cells.push_back({std::string(summary_columns()[c].name)});
    for (std::size_t s = 0; s < report.summary.size(); ++s)
      columns[s + 1].cells.push_back({console_text(report.summary[s][c], summary_columns()[c].format)});
  }
  columns[0].right = false;
  std::size_t taken = 0;
  for (const ConsoleColumn& column : columns) taken += column.width() + 1;
  ConsoleColumn meaning{.cells = {}, .right = false};
  for (const Column<ForecastSummary>& column : summary_columns())
    meaning.cells.push_back(
        wrap(column.description, ' ', std::max(kConsoleWidth - std::min(taken, kConsoleWidth), kLeastRoom)));
  columns.push_back(std::move(meaning));
  return lay_out(columns, /*has_header=*/false);
}

std::string classes_text(const Report& report, std::size_t s) {
  constexpr std::size_t kShown = 6;
  std::vector<ConsoleColumn> columns(4);
  columns[0].right = false;
  columns[0].cells.push_back({"instructions"});
  columns[1].cells.push_back({"mean |effect|", "percent"});
  columns[2].cells.push_back({"mean effect", "percent"});
  columns[3].cells.push_back({"cells"});
  for (const ClassShare& share : report.classes[s]) {
    if (columns[0].cells.size() > kShown) break;
    columns[0].cells.push_back({share.name});
    columns[1].cells.push_back({fmt::format("{:.2f}", 100 * share.mean_absolute)});
    columns[2].cells.push_back({fmt::format("{:+.2f}", 100 * share.bias)});
    columns[3].cells.push_back({fmt::format("{}", share.cells)});
  }
  return lay_out(columns);
}

}  // namespace

std::string to_console(const Report& report, Detail detail) {
  std::string text;
  const std::size_t status = column_index(row_columns(), "status"), reason = column_index(row_columns(), "skip_reason"),
                    strategy = column_index(row_columns(), "strategy");
  std::vector<std::pair<std::string, std::vector<const Row*>>> groups;
  for (const Row& row : report.rows) {
    std::string name;
    for (std::size_t c = 0; c < row_columns().size(); ++c)
      if (row_columns()[c].place == ConsolePlace::heading)
        name += fmt::format("{}{} {}", name.empty() ? "" : "   ", row_columns()[c].name, console_text(row[c], ""));
    auto group = std::ranges::find(groups, name, [](const auto& g) { return g.first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {name, {}});
    group->second.push_back(&row);
  }
  for (const auto& [name, rows] : groups) {
    for (const std::string& line : wrap(name, ' ', kConsoleWidth)) text += line + "\n";
    std::vector<const Row*> ran;
    for (const Row* row : rows)
      if ((*row)[status] != Value("skipped")) ran.push_back(row);
    for (ConsolePlace place : {ConsolePlace::time, ConsolePlace::causes, ConsolePlace::breakdown, ConsolePlace::memory,
                               ConsolePlace::memory_parts})
      if (!ran.empty() && (detail == Detail::full || place == ConsolePlace::time || place == ConsolePlace::causes))
        if (const std::string table = table_of(ran, place); !table.empty()) text += table + "\n";
    const std::size_t before = text.size();
    for (const Row* row : rows)
      if ((*row)[status] == Value("skipped"))
        for (const std::string& line :
             wrap(fmt::format("{} skipped: {}", console_text((*row)[strategy], ""), console_text((*row)[reason], "")),
                  ' ', kConsoleWidth))
          text += line + "\n";
    if (text.size() > before) text += "\n";
  }
  // Forecasts alone, or measurements alone: there is nothing to compare.
  const std::size_t cells = column_index(summary_columns(), "cells");
  if (std::ranges::all_of(report.summary, [&](const Row& row) { return row[cells] == Value(std::int64_t{0}); }))
    return printable(text);
  text += summary_text(report);
  for (std::size_t s = 0; s < report.summary.size(); ++s) {
    if (!report.classes[s].empty())
      text += fmt::format("\nWhat carries the error of {} ({}), relative to the measured step:\n{}",
                          console_text(report.summary[s][1], ""), console_text(report.summary[s][0], ""),
                          classes_text(report, s));
  }
  const std::size_t verdict = column_index(summary_columns(), "verdict");
  if (std::ranges::any_of(report.summary, [&](const Row& row) { return row[verdict] == Value("failed"); }))
    text += fmt::format(
        "\nThis report has failed as a measurement: under {:.0f} % of its cells are conclusive. Take more rounds or a "
        "quiet machine.\n",
        100 * kConclusiveShare);
  return printable(text);  // names may come from anywhere
}

}  // namespace sim
