#include "sim/mesh/mesh.hpp"

#include <algorithm>

namespace sim {

std::uint32_t Mesh::ranks() const {
  std::uint32_t count = 1;
  for (const Axis& axis : axes) count *= axis.size;
  return count;
}

std::uint32_t Mesh::stride(std::uint32_t axis) const {
  std::uint32_t ranks = 1;
  for (std::size_t inner = axis + 1; inner < axes.size(); ++inner) ranks *= axes[inner].size;
  return ranks;
}

std::uint32_t Mesh::coordinate(std::uint32_t rank, std::uint32_t axis) const {
  return rank / stride(axis) % axes.at(axis).size;
}

std::uint32_t Mesh::shifted(std::uint32_t rank, std::uint32_t axis, std::int32_t by) const {
  const auto size = static_cast<std::int64_t>(axes.at(axis).size),
             at = static_cast<std::int64_t>(coordinate(rank, axis));
  const std::int64_t moved = ((at + by) % size + size) % size;
  return static_cast<std::uint32_t>(static_cast<std::int64_t>(rank) + (moved - at) * stride(axis));
}

std::vector<std::uint32_t> Mesh::members(std::uint32_t rank, std::uint32_t axes_mask) const {
  std::vector<std::uint32_t> found{rank};
  for (std::uint32_t axis = 0; axis < axes.size(); ++axis) {
    if ((axes_mask >> axis & 1U) == 0) continue;
    std::vector<std::uint32_t> along;
    for (const std::uint32_t member : found)
      for (std::uint32_t by = 0; by < axes[axis].size; ++by)
        along.push_back(shifted(member, axis, static_cast<std::int32_t>(by)));
    found = std::move(along);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace sim
