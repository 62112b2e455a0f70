// Text tables for the console: columns of cells, each of one or more lines.
//
//   ConsoleColumn names{.cells = {{"strategy"}, {"single"}}, .right = false};
//   fmt::print("{}", lay_out({names, times}));
//
// Widths are in characters, not bytes: "3.4 µs" is 6 wide.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

std::size_t display_width(std::string_view text);

/// Breaks a text after `separator` into lines of at most `width` characters; a longer piece gets lines of its own,
/// broken after '+', which stands between a strategy's choices. Blanks that it is broken at are left out, no others.
std::vector<std::string> wrap(std::string_view text, char separator, std::size_t width);
/// The same as whole lines.
std::string paragraph(std::string_view text, char separator, std::size_t width);
/// What a user should know, a paragraph each: but for empty ones, and each once.
std::string remarks_text(const std::vector<std::string>& remarks);

/// The first cell is the header.
struct ConsoleColumn {
  std::vector<std::vector<std::string>> cells;
  bool right = true;  // aligned

  [[nodiscard]] std::size_t width() const;
};
/// Every column with as many cells; a space between columns. Headers stand on the last line of theirs, rows hang from
/// their first.
std::string lay_out(const std::vector<ConsoleColumn>& columns, bool has_header = true);
/// What they leave of a line of `line` characters for one more column: at least `least`.
std::size_t room_beside(const std::vector<ConsoleColumn>& columns, std::size_t line, std::size_t least);

/// Three digits and a unit that a person reads: "661 ms", "3.40 µs"; "0.97 GiB", "248 KiB".
std::string readable_seconds(double seconds);
std::string readable_bytes(double bytes);

}  // namespace sim
