#include "sim/mesh/placement.hpp"

#include <algorithm>
#include <charconv>

#include "sim/error.hpp"

namespace sim {
namespace {

using Kind = Placement::Kind;

/// The number that the whole text is; nullopt where it is none.
std::optional<std::int64_t> number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

/// nullopt for what isn't a placement's text.
std::optional<Placement> parsed(std::string_view text) {
  if (text == "R") return replicate();
  if (text == "P") return partial();
  if (text == "own") return own();
  if (text == "@last") return rooted(kLast);
  if (text.starts_with("P.")) {
    const std::optional<Reduction> reduction = kReductions.find(text.substr(2));
    return reduction && *reduction != Reduction::sum ? std::optional(partial(*reduction)) : std::nullopt;
  }
  constexpr std::int64_t kMostDims = 8, kMostRanks = 1 << 20;
  if (text.starts_with('@')) {
    const std::optional<std::int64_t> root = number_of(text.substr(1));
    return root && *root < kMostRanks ? std::optional(rooted(static_cast<std::uint32_t>(*root))) : std::nullopt;
  }
  if (!text.starts_with('S')) return std::nullopt;
  const bool by_rows = text.ends_with('+');
  if (by_rows) text.remove_suffix(1);
  const std::size_t slash = text.find('/');
  const std::optional<std::int64_t> dim = number_of(text.substr(1, slash - 1)),
                                    unit = slash == std::string_view::npos ? 1 : number_of(text.substr(slash + 1));
  if (!dim || *dim >= kMostDims || !unit || *unit < 1) return std::nullopt;
  if (by_rows && *unit != 1) return std::nullopt;
  Placement placement = shard(static_cast<std::uint32_t>(*dim), *unit);
  placement.by_rows = by_rows;
  return placement;
}

std::vector<Range> all_of(const Shape& shape) {
  std::vector<Range> ranges;
  for (const std::int64_t size : shape) ranges.push_back({0, size});
  return ranges;
}

/// Leaves what coordinate `at` has of the ranges, by dimension; false: nothing.
bool cut(std::vector<Range>& ranges, const Placement& placement, const Axis& axis, std::uint32_t at) {
  if (placement.kind == Kind::rooted && at != (placement.root == kLast ? axis.size - 1 : placement.root)) return false;
  if (placement.kind != Kind::shard || placement.by_rows) return true;
  if (placement.dim >= ranges.size())
    throw InternalError("placement {} of a tensor with {} dimensions", to_string(placement), ranges.size());
  Range& range = ranges[placement.dim];
  const Range mine = part(range.size, placement.unit, axis, at);
  range = {range.begin + mine.begin, mine.size};
  return true;
}

}  // namespace

Placement replicate() { return {}; }
Placement shard(std::uint32_t dim, std::int64_t unit) { return {.kind = Kind::shard, .dim = dim, .unit = unit}; }
Placement partial(Reduction reduction) { return {.kind = Kind::partial, .reduction = reduction}; }
Placement rooted(std::uint32_t root) { return {.kind = Kind::rooted, .root = root}; }
Placement own() { return {.kind = Kind::own}; }

std::string to_string(const Placement& placement) {
  switch (placement.kind) {
    case Kind::replicate:
      return "R";
    case Kind::shard:
      return placement.unit == 1 ? fmt::format("S{}{}", placement.dim, placement.by_rows ? "+" : "")
                                 : fmt::format("S{}/{}", placement.dim, placement.unit);
    case Kind::partial:
      return placement.reduction == Reduction::sum ? "P" : fmt::format("P.{}", to_string(placement.reduction));
    case Kind::rooted:
      return placement.root == kLast ? "@last" : fmt::format("@{}", placement.root);
    case Kind::own:
      return "own";
  }
  throw InternalError("placement of kind {}", static_cast<int>(placement.kind));
}

std::string placements_text(const std::vector<Placement>& placements) {
  std::string text;
  for (const Placement& placement : placements) text += (text.empty() ? "" : ",") + to_string(placement);
  return text;
}

Placement placement_from(std::string_view text) {
  if (const std::optional<Placement> placement = parsed(text)) return *placement;
  throw ConfigError("'{}' is no placement; known: R, S0, S1/64, S0+, P, P.mean, P.max, @0, @last, own", text);
}

std::int64_t padded_part(std::int64_t rows, const Axis& axis) { return (rows + axis.size - 1) / axis.size; }

Range rows_of(std::int64_t rows, const Axis& axis, std::uint32_t at) {
  const std::int64_t each = padded_part(rows, axis), begin = std::min(rows, at * each);
  return {begin, std::min(each, rows - begin)};
}

Range part(std::int64_t size, std::int64_t unit, const Axis& axis, std::uint32_t at) {
  if (size % unit != 0) throw ConfigError("{} elements can't be cut in units of {}", size, unit);
  const std::int64_t units = size / unit, parts = axis.size, rounded_up = (units + parts - 1) / parts;
  if (axis.rest == Rest::forbidden && units % parts != 0)
    throw ConfigError("{}={} must divide {}", axis.name, parts, units);
  const std::int64_t each = axis.rest == Rest::chunks ? rounded_up : units / parts;
  if (each == 0 || each * (parts - 1) >= units)
    throw ConfigError("{}={} parts of {} would leave one empty", axis.name, parts, units);
  const bool is_last = at + 1 == axis.size;
  return {at * each * unit, (is_last ? units - each * (parts - 1) : each) * unit};
}

std::optional<std::vector<Range>> piece(const Shape& shape, const Placement& placement, const Axis& axis,
                                        std::uint32_t at) {
  std::vector<Range> ranges = all_of(shape);
  if (!cut(ranges, placement, axis, at)) return {};
  return ranges;
}

std::optional<std::vector<Range>> piece(const Shape& shape, const std::vector<Placement>& placements, const Mesh& mesh,
                                        std::uint32_t rank) {
  check_internal(placements.size() == mesh.axes.size(), "{} placements on {} axes", placements.size(),
                 mesh.axes.size());
  std::vector<Range> ranges = all_of(shape);
  for (std::uint32_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (!cut(ranges, placements[axis], mesh.axes[axis], mesh.coordinate(rank, axis))) return {};
  return ranges;
}

}  // namespace sim
