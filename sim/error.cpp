#include "sim/error.hpp"

#include <algorithm>
#include <bit>
#include <cctype>
#include <new>

namespace sim {
namespace {

/// Letters to insert, drop, change or swap with their neighbour, capitals as small ones: "prdict" → "predict" is 1.
std::size_t edits(std::string_view a, std::string_view b) {
  const auto same = [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  };
  std::vector<std::size_t> before_last, last, row(b.size() + 1);  // row[j]: from the first i of a to the first j of b
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row[b.size()];
}

/// Bytes of the character that begins at `text`; 0: no UTF-8.
std::size_t character_bytes(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  const int ones = std::countl_one(first);
  const std::size_t bytes = ones == 0 ? 1 : static_cast<std::size_t>(ones);
  if (ones == 1 || first == 0xc0 || first == 0xc1 || first > 0xf4 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  return bytes;
}

}  // namespace

int exit_status(const std::exception& error) {
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return kConfigErrorStatus;
  if (dynamic_cast<const RunError*>(&error) != nullptr) return kRunErrorStatus;
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return kRunErrorStatus;
  return kInternalErrorStatus;
}

std::string did_you_mean(std::string_view wrong, const std::vector<std::string_view>& names) {
  constexpr std::size_t kLongest = 64;  // nobody mistypes more, and the work grows with the square
  std::string_view best;
  std::size_t fewest = kLongest;
  for (const std::string_view name : names) {
    const std::size_t longer = std::max(wrong.size(), name.size());
    if (longer > kLongest) continue;
    if (const std::size_t count = edits(wrong, name); 3 * count <= longer && count < fewest) {
      best = name;
      fewest = count;
    }
  }
  return best.empty() ? "" : fmt::format("; did you mean '{}'?", best);
}

std::string printable(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t bytes = character_bytes(text);
    const auto first = static_cast<unsigned char>(text[0]);
    // C0 and delete are one byte, C1 (U+0080 to U+009F) are 0xc2 and 0x80 to 0x9f.
    const bool control = (bytes == 1 && (first < 0x20 || first == 0x7f) && first != '\n') ||
                         (bytes == 2 && first == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0);
    const std::string_view character = text.substr(0, std::max<std::size_t>(bytes, 1));
    if (bytes == 0 || control)
      for (const char c : character) result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    else
      result += character;
    text.remove_prefix(character.size());
  }
  return result;
}

}  // namespace sim
