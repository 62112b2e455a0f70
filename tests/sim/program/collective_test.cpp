#include "sim/program/collective.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace sim {
namespace {

// Who writes nothing gets nothing, and whoever gets something is a mover, but for arrays that are already in place.
TEST(Collectives, MovesAreWhatOperandsSay) {
  constexpr std::uint32_t kMembers = 4;
  for (const CollectiveKind kind : kCollectiveKinds)
    for (std::uint32_t root = 0; root < (has_root(kind) ? kMembers : 1); ++root) {
      SCOPED_TRACE(std::string(to_string(kind)) + " from " + std::to_string(root));
      std::map<std::uint32_t, std::set<std::uint32_t>> got;  // blocks by member
      for_each_move(kind, kMembers, root, [&](const Move& move) {
        EXPECT_TRUE(got[move.to].insert(move.block).second);
        for (std::uint32_t from = 0; from < kMembers; ++from) {
          if (!move.is_from(from)) continue;
          const Moved reads = operands_of(kind, from == root).reads;
          EXPECT_TRUE(reads == Moved::parts || (reads == Moved::array && move.from_block == 0));
        }
      });
      for (std::uint32_t member = 0; member < kMembers; ++member) {
        const CollectiveOperands operands = operands_of(kind, member == root);
        const std::size_t blocks = got.contains(member) ? got[member].size() : 0;
        if (kind == CollectiveKind::broadcast && member == root)
          EXPECT_EQ(blocks, 0U);  // it has it
        else
          EXPECT_EQ(blocks, operands.writes == Moved::parts ? kMembers : operands.writes == Moved::array ? 1 : 0);
        EXPECT_EQ(is_mover(kind, member == root), blocks > 0 && !(kind == CollectiveKind::scatter && member == root));
      }
    }
}

}  // namespace
}  // namespace sim
