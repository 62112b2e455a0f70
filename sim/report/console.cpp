#include "sim/report/console.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

namespace sim {
namespace {

struct Unit {
  double size;
  std::string_view name;
};

/// The value in the largest of the ascending units of which it is at least `least`.
std::string readable(double value, std::span<const Unit> units, double least) {
  const Unit* unit = units.data();
  for (const Unit& larger : units)
    if (std::abs(value) >= least * larger.size) unit = &larger;
  const double number = value / unit->size, size = std::abs(number);
  return fmt::format("{:.{}f} {}", number, size >= 99.95 ? 0 : size >= 9.995 ? 1 : 2, unit->name);
}

}  // namespace

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0U) != 0x80U; }));
}

std::vector<std::string> wrap(std::string_view text, char separator, std::size_t width) {
  constexpr char kFiner = '+';  // between a strategy's choices
  std::vector<std::string> lines{""};
  while (!text.empty()) {
    const std::string_view piece = text.substr(0, std::min(text.find(separator), text.size() - 1) + 1);
    const std::size_t blank = piece.ends_with(' ') ? 1 : 0;  // at the end of a line it doesn't show
    if (!lines.back().empty() && display_width(lines.back()) + display_width(piece) - blank > width)
      lines.emplace_back();
    text.remove_prefix(piece.size());
    if (separator != kFiner && display_width(piece) - blank > width) {
      std::vector<std::string> parts = wrap(piece, kFiner, width);
      lines.back() = parts[0];
      lines.insert(lines.end(), parts.begin() + 1, parts.end());
      if (blank > 0) lines.back() += ' ';  // which the parts' last line has lost
    } else {
      lines.back() += piece;
    }
  }
  for (std::string& line : lines) line.erase(line.find_last_not_of(' ') + 1);
  return lines;
}

std::string paragraph(std::string_view text, char separator, std::size_t width) {
  return fmt::format("{}\n", fmt::join(wrap(text, separator, width), "\n"));
}

std::string remarks_text(const std::vector<std::string>& remarks) {
  std::string text;
  for (auto remark = remarks.begin(); remark != remarks.end(); ++remark)
    if (!remark->empty() && std::find(remarks.begin(), remark, *remark) == remark)
      text += paragraph(printable(*remark), ' ', 100);
  return text;
}

std::size_t ConsoleColumn::width() const {
  std::size_t width = 0;
  for (const std::vector<std::string>& cell : cells)
    for (const std::string& line : cell) width = std::max(width, display_width(line));
  return width;
}

std::string lay_out(const std::vector<ConsoleColumn>& columns, bool has_header) {
  std::string text;
  for (std::size_t row = 0; row < columns[0].cells.size(); ++row) {
    std::size_t height = 0;
    for (const ConsoleColumn& column : columns) height = std::max(height, column.cells[row].size());
    for (std::size_t line = 0; line < height; ++line) {
      std::string out;
      for (const ConsoleColumn& column : columns) {
        const std::vector<std::string>& cell = column.cells[row];
        const std::size_t from = has_header && row == 0 ? height - cell.size() : 0;
        const std::string piece = line >= from && line - from < cell.size() ? cell[line - from] : "";
        const std::string blank(column.width() - display_width(piece), ' ');
        out += (&column == columns.data() ? "" : " ") + (column.right ? blank + piece : piece + blank);
      }
      text += out.substr(0, out.find_last_not_of(' ') + 1) + "\n";
    }
  }
  return text;
}

std::size_t room_beside(const std::vector<ConsoleColumn>& columns, std::size_t line, std::size_t least) {
  for (const ConsoleColumn& column : columns) line -= std::min(line, column.width() + 1);
  return std::max(line, least);
}

std::string readable_seconds(double seconds) {
  static constexpr std::array kUnits{Unit{1e-9, "ns"}, Unit{1e-6, "µs"}, Unit{1e-3, "ms"}, Unit{1, "s"}};
  return readable(seconds, kUnits, 0.9995);
}

std::string readable_bytes(double bytes) {
  static constexpr std::array kUnits{Unit{1, "B"}, Unit{1024, "KiB"}, Unit{1048576, "MiB"}, Unit{1073741824, "GiB"}};
  return bytes < 512 ? fmt::format("{:.0f} B", bytes) : readable(bytes, kUnits, 0.5);
}

}  // namespace sim
