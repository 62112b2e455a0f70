// Where a tensor lies on a mesh: what a strategy decides, what an op needs and gives.
//
//   const Mesh mesh{{{"dp", 2}, {"tp", 2}}};
//   piece({16, 8}, {replicate(), shard(1)}, mesh, 3);   // rank 3 has rows 0…15, columns 4…7
//   to_string(shard(1, 64));                            // "S1/64"; also S0+, R, P, P.mean, P.max, @0, @last, own
//
// A tensor has a placement per axis. Several axes that cut the same dimension cut it one after the other, the outermost
// first. A unit's parameters may also be cut by rows (S0+; S1+: dimensions 0 and 1 together are the rows): of what the other
// axes leave, each has ceil(rows / ranks), the last ones fewer or none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/dtype.hpp"
#include "sim/mesh/mesh.hpp"

namespace sim {

/// How partial values become the whole one. mean: each weighs as much as its share of the samples.
enum class Reduction : std::uint8_t { sum, mean, max };
inline constexpr EnumNames<Reduction, 3> kReductions{"reduction", {"sum", "mean", "max"}};
inline std::string_view to_string(Reduction reduction) { return kReductions.of(reduction); }

/// Where a tensor lies along one axis.
struct Placement {
  enum class Kind : std::uint8_t {
    replicate,  // all have all of it
    shard,      // each has a part of dimension `dim`
    partial,    // each has a summand of its shape
    rooted,     // the coordinate `root` has it, the others have nothing
    own         // each has one of its own: copies that differ
  } kind = Kind::replicate;
  std::uint32_t dim = 0;                 // shard
  std::int64_t unit = 1;                 // shard: what stays together (a head; the pixels of a flattened channel)
  bool by_rows = false;                  // shard: of rows, dimensions 0 to `dim` as one: see rows_of
  Reduction reduction = Reduction::sum;  // partial
  std::uint32_t root = 0;                // rooted: a coordinate, or kLast

  friend bool operator==(const Placement&, const Placement&) = default;
};
/// The root is the axis's last coordinate.
constexpr std::uint32_t kLast = 0xffffffffU;

Placement replicate();
Placement shard(std::uint32_t dim, std::int64_t unit = 1);
Placement partial(Reduction reduction = Reduction::sum);
Placement rooted(std::uint32_t root);
Placement own();

std::string to_string(const Placement& placement);
/// The inverse. ConfigError for any other text.
Placement placement_from(std::string_view text);
/// Those of all axes: "R,S0,P".
std::string placements_text(const std::vector<Placement>& placements);

/// Elements begin, begin+1, …, begin+size−1 of a dimension.
struct Range {
  std::int64_t begin = 0, size = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

/// How many of `rows` a padded part takes the room of: each as many as the first.
std::int64_t padded_part(std::int64_t rows, const Axis& axis);
/// Which of them coordinate `at` has; the last ones may have none.
Range rows_of(std::int64_t rows, const Axis& axis, std::uint32_t at);

/// What coordinate `at` has of `size` elements that are cut along the axis. ConfigError where `unit` doesn't divide the
/// size, where the axis allows no rest and there is one, and where a part would be empty.
Range part(std::int64_t size, std::int64_t unit, const Axis& axis, std::uint32_t at);

/// What coordinate `at` has of a tensor, by dimension: all of it unless it is cut, and where it is cut by rows, which aren't
/// a dimension's; nullopt for nothing.
std::optional<std::vector<Range>> piece(const Shape& shape, const Placement& placement, const Axis& axis,
                                        std::uint32_t at);
/// What `rank` has: a placement per axis.
std::optional<std::vector<Range>> piece(const Shape& shape, const std::vector<Placement>& placements, const Mesh& mesh,
                                        std::uint32_t rank);

}  // namespace sim
