#include "sim/mesh/mesh.hpp"

namespace sim {

std::uint32_t Mesh::ranks() const { return ranks_along(~0U); }

std::uint32_t Mesh::ranks_along(std::uint32_t axes_mask) const {
  std::uint32_t count = 1;
  for (std::size_t axis = 0; axis < axes.size(); ++axis)
    if (axes_mask >> axis & 1U) count *= axes[axis].size;
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
    const std::uint32_t step = stride(axis), to_first = coordinate(rank, axis) * step;
    std::vector<std::uint32_t> along;
    for (const std::uint32_t member : found)
      for (std::uint32_t c = 0; c < axes[axis].size; ++c) along.push_back(member - to_first + c * step);
    found = std::move(along);
  }
  return found;
}

}  // namespace sim
