#include <algorithm>
#include <utility>

#include "sim/error.hpp"
#include "sim/report/console.hpp"
#include "sim/report/report.hpp"

namespace sim {
namespace {

using enum ConsolePlace;
constexpr std::size_t kConsoleWidth = 120, kLeastForNames = 16;

bool is_available(const Value& value) { return !std::holds_alternative<std::nullptr_t>(value); }

std::string console_text(const Value& value, std::string_view format) {
  if (const auto* number = std::get_if<double>(&value)) return fmt::format(fmt::runtime(format), *number);
  if (const auto* count = std::get_if<std::int64_t>(&value)) return fmt::format(fmt::runtime(format), *count);
  return is_available(value) ? std::get<std::string>(value) : "n/a";
}

/// The text of the column of this name.
std::string text_of(const Row& row, std::string_view name) {
  const auto found = std::ranges::find(row_columns(), name, &Column<RowSource>::name);
  check_internal(found != row_columns().end(), "no column '{}'", name);
  return console_text(row[static_cast<std::size_t>(found - row_columns().begin())], found->format);
}

std::string strategy_name(const Row* row) { return text_of(*row, "strategy"); }
bool is_skipped(const Row* row) { return text_of(*row, "status") == "skipped"; }

/// A header is its column's name, broken at underscores.
std::vector<std::string> header_lines(std::string_view name) {
  std::vector<std::string> lines = wrap(name, '_', 10);
  for (std::string& line : lines)
    if (line.ends_with('_')) line.pop_back();
  return lines;
}

/// The rows of one heading in one of the tables; columns without any value are left out. Empty when all are.
std::string table_of(std::vector<const Row*> rows, ConsolePlace place) {
  const bool per_cost_model = place == time || place == causes || place == breakdown;
  if (!per_cost_model) rows.erase(std::ranges::unique(rows, {}, strategy_name).begin(), rows.end());
  std::vector<ConsoleColumn> columns;
  bool is_empty = true;
  for (std::size_t c = 0; c < row_columns().size(); ++c) {
    const Column<RowSource>& column = row_columns()[c];
    if (column.place != place && (column.name != "cost_model" || !per_cost_model)) continue;
    if (std::ranges::none_of(rows, [&](const Row* row) { return is_available((*row)[c]); })) continue;
    is_empty = is_empty && column.place != place;
    ConsoleColumn& shown = columns.emplace_back();
    shown.right = !column.format.empty();
    shown.cells.push_back(header_lines(column.name));
    for (const Row* row : rows) shown.cells.push_back({console_text((*row)[c], column.format)});
  }
  if (is_empty) return "";
  // A strategy's text runs down beside all of its rows; the last one takes what is left.
  ConsoleColumn names{.cells = {{"strategy"}}, .right = false};
  const std::size_t room = room_beside(columns, kConsoleWidth, kLeastForNames);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::string strategy = strategy_name(rows[i]);
    if (i == 0 || strategy_name(rows[i - 1]) != strategy) lines = wrap(strategy, ',', room);
    const bool is_last = i + 1 == rows.size() || strategy_name(rows[i + 1]) != strategy;
    const auto end = lines.begin() + static_cast<std::ptrdiff_t>(is_last || lines.empty() ? lines.size() : 1);
    names.cells.emplace_back(lines.begin(), end);
    lines.erase(lines.begin(), end);
  }
  columns.insert(columns.begin(), std::move(names));
  return lay_out(columns);
}

/// What each device needs, where they don't all need the same.
std::string devices_text(const std::vector<const Row*>& rows) {
  std::string text, before;
  for (const Row* row : rows)
    if (const std::string needs = text_of(*row, "needed_by_device"), strategy = strategy_name(row);
        needs.find(';') != std::string::npos && strategy != std::exchange(before, strategy))
      text += paragraph(fmt::format("{} needs {}", strategy, needs), ' ', kConsoleWidth);
  return text.empty() ? text : text + "\n";
}

/// One line per number: its name, a column per summary, what it means.
std::string summary_text(const std::vector<ForecastSummary>& summaries) {
  std::vector<ConsoleColumn> columns(summaries.size() + 1);
  columns[0].right = false;
  for (const Column<ForecastSummary>& column : summary_columns()) {
    columns[0].cells.push_back({std::string(column.name)});
    for (std::size_t s = 0; s < summaries.size(); ++s)
      columns[s + 1].cells.push_back({console_text(column.value(summaries[s]), column.format)});
  }
  ConsoleColumn meaning{.cells = {}, .right = false};
  const std::size_t room = room_beside(columns, kConsoleWidth, kLeastForNames);
  for (const auto& column : summary_columns()) meaning.cells.push_back(wrap(column.description, ' ', room));
  columns.push_back(std::move(meaning));
  return lay_out(columns, /*has_header=*/false);
}

std::string classes_text(const std::vector<ClassShare>& classes) {
  constexpr std::size_t kShown = 6;
  std::vector<ConsoleColumn> columns{{.cells = {{"instructions"}}, .right = false},
                                     {.cells = {{"mean |effect|", "percent"}}},
                                     {.cells = {{"mean effect", "percent"}}},
                                     {.cells = {{"cells"}}}};
  for (std::size_t i = 0; i < std::min(kShown, classes.size()); ++i) {
    columns[0].cells.push_back({classes[i].name});
    columns[1].cells.push_back({fmt::format("{:.2f}", 100 * classes[i].mean_absolute)});
    columns[2].cells.push_back({fmt::format("{:+.2f}", 100 * classes[i].bias)});
    columns[3].cells.push_back({fmt::format("{}", classes[i].cells)});
  }
  return lay_out(columns);
}

}  // namespace

std::string to_console(const Report& report, Detail detail) {
  std::string text;
  std::vector<std::pair<std::string, std::vector<const Row*>>> groups;  // by title
  for (const Row& row : report.rows) {
    const std::string title = fmt::format("model {}   world {}   executor {}", text_of(row, "model"),
                                          text_of(row, "world"), text_of(row, "executor"));
    auto group = std::ranges::find(groups, title, [](const auto& g) { return g.first; });
    if (group == groups.end()) group = groups.insert(groups.end(), {title, {}});
    group->second.push_back(&row);
  }
  std::vector<ConsolePlace> tables{time, causes};
  if (detail == Detail::full) tables.insert(tables.end(), {breakdown, memory, memory_parts});
  for (auto& [title, rows] : groups) {
    text += paragraph(title, ' ', kConsoleWidth);
    const auto skipped = std::ranges::stable_partition(rows, [](const Row* row) { return !is_skipped(row); });
    const std::vector<const Row*> ran(rows.begin(), skipped.begin());
    for (ConsolePlace place : tables)
      if (const std::string table = table_of(ran, place); !table.empty()) text += table + "\n";
    if (detail == Detail::full) text += devices_text(ran);
    for (const Row* row : skipped)
      text += paragraph(fmt::format("{} skipped: {}", strategy_name(row), text_of(*row, "skip_reason")), ' ',
                        kConsoleWidth);
    if (!skipped.empty()) text += "\n";
  }
  // Forecasts alone, or measurements alone: there is nothing to compare.
  if (std::ranges::all_of(report.summaries, [](const ForecastSummary& summary) { return summary.cells == 0; }))
    return printable(text);
  text += summary_text(report.summaries);
  for (const ForecastSummary& summary : report.summaries)
    if (!summary.classes.empty())
      text += fmt::format("\nWhat carries the error of {} ({}), relative to the measured step:\n{}", summary.cost_model,
                          summary.executor, classes_text(summary.classes));
  if (std::ranges::any_of(report.summaries, &ForecastSummary::failed))
    text += fmt::format(
        "\nThis report has failed as a measurement: under {:.0f} % of its cells are conclusive. Take more rounds or a "
        "quiet machine.\n",
        100 * kConclusiveShare);
  return printable(text);  // names may come from anywhere
}

}  // namespace sim
