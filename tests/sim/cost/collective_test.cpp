#include "sim/cost/collective/collective.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/error.hpp"

namespace sim {
namespace {

/// Bytes over the busiest link of a binomial broadcast, by executing it: whoever has the array sends it to one who
/// doesn't.
std::pair<int, double> execute_binomial_broadcast(std::uint32_t members, double bytes) {
  std::vector<double> sent(members, 0);
  std::uint32_t have = 1;
  int steps = 0;
  for (; have < members; ++steps) {
    const std::uint32_t senders = std::min(have, members - have);
    for (std::uint32_t i = 0; i < senders; ++i) sent[i] += bytes;
    have += senders;
  }
  return {steps, *std::ranges::max_element(sent)};
}

TEST(Collective, RingFollowsItsClosedForm) {
  const CollectiveAlgorithm& ring = collective_table().at("ring");
  for (std::uint32_t n : {2U, 3U, 4U, 8U, 16384U}) {
    EXPECT_DOUBLE_EQ(ring.steps(CollectiveKind::all_reduce, n), 2.0 * (n - 1)) << n;
    EXPECT_DOUBLE_EQ(ring.wire_bytes(CollectiveKind::all_reduce, n, 12e6), 2.0 * (n - 1) / n * 12e6) << n;
    EXPECT_DOUBLE_EQ(ring.steps(CollectiveKind::broadcast, n), n - 1.0) << n;
    EXPECT_DOUBLE_EQ(ring.wire_bytes(CollectiveKind::broadcast, n, 12e6), 12e6) << n;
  }
}

TEST(Collective, TreeIsThePlayedBinomialTree) {
  const CollectiveAlgorithm& tree = collective_table().at("tree");
  for (std::uint32_t n = 1; n <= 65; ++n) {
    const auto [steps, bytes] = execute_binomial_broadcast(n, 1000);
    EXPECT_DOUBLE_EQ(tree.steps(CollectiveKind::broadcast, n), steps) << n;
    EXPECT_DOUBLE_EQ(tree.steps(CollectiveKind::broadcast, n), std::ceil(std::log2(n))) << n;
    EXPECT_DOUBLE_EQ(tree.wire_bytes(CollectiveKind::broadcast, n, 1000), bytes) << n;
    EXPECT_DOUBLE_EQ(tree.steps(CollectiveKind::all_reduce, n), 2 * steps) << n;
  }
}

TEST(Collective, DirectDoesntDependOnTheMembersInSteps) {
  const CollectiveAlgorithm& direct = collective_table().at("direct");
  for (std::uint32_t n : {2U, 3U, 4U, 8U}) {
    EXPECT_DOUBLE_EQ(direct.steps(CollectiveKind::all_reduce, n), 2) << n;
    EXPECT_DOUBLE_EQ(direct.steps(CollectiveKind::broadcast, n), 1) << n;
    // One n-th of everyone else's array in the first step, the other members' n-ths in the second.
    EXPECT_DOUBLE_EQ(direct.wire_bytes(CollectiveKind::all_reduce, n, 4096),
                     (n - 1) * (4096.0 / n) + (n - 1) * (4096.0 / n))
        << n;
  }
}

// For whatever is in the table.
TEST(Collective, EveryAlgorithmIsSane) {
  for (const CollectiveAlgorithm& algorithm : collective_table()) {
    SCOPED_TRACE(algorithm.name);
    EXPECT_FALSE(algorithm.equation.empty() || algorithm.assumes.empty() || algorithm.source.empty());
    for (CollectiveKind kind : kCollectiveKinds) {
      if (!algorithm.is_for(kind)) continue;
      EXPECT_EQ(algorithm.steps(kind, 1), 0);
      EXPECT_EQ(algorithm.wire_bytes(kind, 1, 1e6), 0);
      for (std::uint32_t n = 2; n < 40; ++n) {
        EXPECT_GE(algorithm.steps(kind, n), 1);
        EXPECT_GE(algorithm.steps(kind, n + 1), algorithm.steps(kind, n));
        // What somebody needs that it hasn't got; no all_reduce gets by with less than 2(n−1)/n s (Patarasuk and Yuan,
        // theorem 1).
        const double others = (n - 1.0) / n * 1e6;
        const double least = kind == CollectiveKind::all_reduce                                           ? 2 * others
                             : kind == CollectiveKind::broadcast                                          ? 1e6
                             : kind == CollectiveKind::scatter && algorithm.name == std::string("direct") ? 1e6 / n
                                                                                                          : others;
        EXPECT_GE(algorithm.wire_bytes(kind, n, 1e6), least * (1 - 1e-12));
        EXPECT_DOUBLE_EQ(algorithm.wire_bytes(kind, n, 2e6), 2 * algorithm.wire_bytes(kind, n, 1e6));
      }
    }
  }
}

// A kind that has no formula yet must not be priced as another.
TEST(Collective, UnknownKindsHaveNoCost) {
  const auto unknown = static_cast<CollectiveKind>(kCollectiveKinds.size());
  for (const CollectiveAlgorithm& algorithm : collective_table()) {
    SCOPED_TRACE(algorithm.name);
    EXPECT_THROW((void)algorithm.steps(unknown, 4), InternalError);
    EXPECT_THROW((void)algorithm.wire_bytes(unknown, 4, 1e6), InternalError);
  }
  for (const char* world : {"local", "gloo", "nccl"})
    EXPECT_THROW((void)collective_algorithm(world, unknown), InternalError);
  EXPECT_THROW((void)to_string(unknown), InternalError);
  EXPECT_THROW((void)has_root(unknown), InternalError);
}

TEST(Collective, WorldsChoose) {
  EXPECT_EQ(collective_algorithm("local", CollectiveKind::all_reduce).name, "direct");
  EXPECT_EQ(collective_algorithm("gloo", CollectiveKind::all_reduce).name, "ring");
  EXPECT_EQ(collective_algorithm("gloo", CollectiveKind::broadcast).name, "tree");
  try {
    (void)collective_algorithm("mpi", CollectiveKind::broadcast);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "unknown world 'mpi'; known: local, gloo, nccl");
  }
}

}  // namespace
}  // namespace sim
