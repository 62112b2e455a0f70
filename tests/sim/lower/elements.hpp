// The elements of a piece of a tensor, for tests of what lies where.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/mesh/placement.hpp"

namespace sim::testing {

/// Calls `visit(place among the elements of the piece, place among all elements)`.
template <class Visit>
void for_each_element(const std::vector<Range>& piece, const Shape& whole, const Visit& visit) {
  std::int64_t count = 1;
  for (const Range& range : piece) count *= range.size;
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, place = 0, stride = 1;
    for (std::size_t dim = whole.size(); dim-- > 0; stride *= whole[dim]) {
      place += (piece[dim].begin + rest % piece[dim].size) * stride;
      rest /= piece[dim].size;
    }
    visit(static_cast<std::size_t>(i), static_cast<std::size_t>(place));
  }
}

}  // namespace sim::testing
