#include "sim/mesh/mesh.hpp"

#include <gtest/gtest.h>

#include <set>

namespace sim {
namespace {

using Ranks = std::vector<std::uint32_t>;

const Mesh kMesh{{{"pp", 2}, {"dp", 3}, {"tp", 4}}};

TEST(Mesh, TheLastAxisIsInnermost) {
  EXPECT_EQ(kMesh.ranks(), 24U);
  EXPECT_EQ(Mesh().ranks(), 1U);
  const std::uint32_t rank = 1 * 12 + 2 * 4 + 3;
  EXPECT_EQ(kMesh.coordinate(rank, 0), 1U);
  EXPECT_EQ(kMesh.coordinate(rank, 1), 2U);
  EXPECT_EQ(kMesh.coordinate(rank, 2), 3U);
}

TEST(Mesh, MembersDifferOnTheseAxesOnly) {
  EXPECT_EQ(kMesh.members(5, 0b000), Ranks({5}));
  EXPECT_EQ(kMesh.members(5, 0b100), Ranks({4, 5, 6, 7}));
  EXPECT_EQ(kMesh.members(5, 0b010), Ranks({1, 5, 9}));
  EXPECT_EQ(kMesh.members(5, 0b011), Ranks({1, 5, 9, 13, 17, 21}));
  EXPECT_EQ(kMesh.members(5, 0b111).size(), 24U);
  // Everybody is in one communicator of each kind.
  for (std::uint32_t mask = 0; mask < 8; ++mask)
    for (std::uint32_t rank = 0; rank < kMesh.ranks(); ++rank) {
      EXPECT_EQ(kMesh.members(rank, mask).size(), kMesh.ranks_along(mask));
      for (const std::uint32_t member : kMesh.members(rank, mask))
        EXPECT_EQ(kMesh.members(member, mask), kMesh.members(rank, mask));
    }
}

TEST(Mesh, AShiftIsARing) {
  for (std::uint32_t axis = 0; axis < 3; ++axis)
    for (std::uint32_t rank = 0; rank < kMesh.ranks(); ++rank) {
      std::set<std::uint32_t> seen;
      for (std::int32_t by = 0; by < static_cast<std::int32_t>(kMesh.axes[axis].size); ++by) {
        const std::uint32_t other = kMesh.shifted(rank, axis, by);
        EXPECT_EQ(kMesh.coordinate(other, axis),
                  (kMesh.coordinate(rank, axis) + static_cast<std::uint32_t>(by)) % kMesh.axes[axis].size);
        EXPECT_EQ(kMesh.shifted(other, axis, -by), rank);
        seen.insert(other);
      }
      const Ranks members = kMesh.members(rank, 1U << axis);
      EXPECT_EQ(seen, std::set<std::uint32_t>(members.begin(), members.end()));
    }
}

}  // namespace
}  // namespace sim
