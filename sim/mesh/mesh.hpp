// Ranks on a mesh of named axes: who is whose partner, and who are a communicator, follow by rule.
//
//   const Mesh mesh{{{"dp", 2}, {"tp", 4}}};   // rank = 4 dp + tp
//   mesh.coordinate(6, 1);                     // 2
//   mesh.members(6, 0b10);                     // 4, 5, 6, 7: the ranks that differ from rank 6 on tp only
//   mesh.shifted(7, 1, 1);                     // 4: the next on tp, as in a ring
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/table.hpp"

namespace sim {

/// How a size that the number of parts doesn't divide is cut: not at all (ConfigError); the last part takes the rest
/// (HyPar); all parts but the last are of the size rounded up (torch.chunk).
enum class Rest : std::uint8_t { forbidden, to_last, chunks };
inline constexpr EnumNames<Rest, 3> kRests{"rest", {"forbidden", "to_last", "chunks"}};
inline std::string_view to_string(Rest rest) { return kRests.of(rest); }

struct Axis {
  std::string name;
  std::uint32_t size = 1;
  Rest rest = Rest::forbidden;
};

struct Mesh {
  std::vector<Axis> axes;  // outermost first: the last one's coordinates are neighbouring ranks

  [[nodiscard]] std::uint32_t ranks() const;
  /// How many ranks differ on these axes (bit i: axes[i]) only.
  [[nodiscard]] std::uint32_t ranks_along(std::uint32_t axes_mask) const;
  [[nodiscard]] std::uint32_t coordinate(std::uint32_t rank, std::uint32_t axis) const;
  /// `by` further along the axis, around its end.
  [[nodiscard]] std::uint32_t shifted(std::uint32_t rank, std::uint32_t axis, std::int32_t by) const;
  /// The ranks that differ from this one on these axes (bit i: axes[i]) only, itself included, ascending.
  [[nodiscard]] std::vector<std::uint32_t> members(std::uint32_t rank, std::uint32_t axes_mask) const;

 private:
  /// How far apart two ranks are that are neighbours on the axis.
  [[nodiscard]] std::uint32_t stride(std::uint32_t axis) const;
};

}  // namespace sim
