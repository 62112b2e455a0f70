#include "sim/cost/collective/collective.hpp"

#include <gtest/gtest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
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

// ---- Several levels: what crosses the borders is counted message by message. ----

struct Message {
  std::uint32_t from, to;
  double bytes;
};

/// Every one of n members sends so much to the next; in a chain the last one doesn't.
std::vector<Message> ring_of(std::uint32_t n, double bytes, bool is_closed) {
  std::vector<Message> messages;
  for (std::uint32_t m = 0; m + (is_closed ? 0 : 1) < n; ++m) messages.push_back({m, (m + 1) % n, bytes});
  return messages;
}

/// gloo/broadcast.cc: in step k those below 2^k send to the one that many further.
std::vector<Message> binomial_of(std::uint32_t n, double bytes) {
  std::vector<Message> messages;
  for (std::uint32_t distance = 1; distance < n; distance *= 2)
    for (std::uint32_t m = 0; m < distance && m + distance < n; ++m) messages.push_back({m, m + distance, bytes});
  return messages;
}

std::vector<Message> pairs_of(std::uint32_t n, double bytes) {
  std::vector<Message> messages;
  for (std::uint32_t from = 0; from < n; ++from)
    for (std::uint32_t to = 0; to < n; ++to)
      if (from != to) messages.push_back({from, to, bytes});
  return messages;
}

std::vector<Message> from_root_of(std::uint32_t n, double bytes) {
  std::vector<Message> messages;
  for (std::uint32_t to = 1; to < n; ++to) messages.push_back({0, to, bytes});
  return messages;
}

/// Bytes out of the busiest unit (a device, or so many of them) and over the busiest group's bus.
LevelTraffic count(const std::vector<Message>& messages, std::uint32_t unit, std::uint32_t group) {
  std::map<std::uint32_t, double> out, bus;
  for (const auto& [from, to, bytes] : messages) {
    if (from / unit == to / unit) continue;
    out[from / unit] += bytes;
    bus[from / group] += bytes;
    if (from / group != to / group) bus[to / group] += bytes;
  }
  const auto most = [](const std::map<std::uint32_t, double>& all) {
    return std::ranges::max(all | std::views::values);
  };
  return {.port_bytes = most(out), .bus_bytes = most(bus)};
}

TEST(Collective, CrossesLevelsAsItsMessagesDo) {
  const double s = 1e6;
  struct Case {
    const char* algorithm;
    CollectiveKind kind;
    std::vector<Message> (*messages)(std::uint32_t n, double s);
  };
  const Case cases[] = {
      {"ring", CollectiveKind::all_reduce,
       [](std::uint32_t n, double bytes) { return ring_of(n, 2 * (n - 1.0) / n * bytes, true); }},
      {"striped_ring", CollectiveKind::all_gather,
       [](std::uint32_t n, double bytes) { return ring_of(n, (n - 1.0) / n * bytes, true); }},
      {"ring", CollectiveKind::broadcast, [](std::uint32_t n, double bytes) { return ring_of(n, bytes, false); }},
      {"tree", CollectiveKind::broadcast, binomial_of},
      {"pairwise", CollectiveKind::all_to_all, [](std::uint32_t n, double bytes) { return pairs_of(n, bytes / n); }},
      {"pairwise", CollectiveKind::scatter, [](std::uint32_t n, double bytes) { return from_root_of(n, bytes / n); }},
      {"direct", CollectiveKind::reduce_scatter, [](std::uint32_t n, double bytes) { return pairs_of(n, bytes / n); }},
      {"direct", CollectiveKind::reduce, from_root_of},
  };
  const std::vector<std::vector<std::uint32_t>> spreads{{2}, {4}, {2, 2}, {8, 2}, {1, 4}, {4, 4}, {2, 2, 4}, {1, 8, 2}};
  for (const Case& c : cases)
    for (const std::vector<std::uint32_t>& spread : spreads) {
      std::uint32_t n = 1;
      for (const std::uint32_t units : spread) n *= units;
      SCOPED_TRACE(fmt::format("{} {} {}", c.algorithm, to_string(c.kind), fmt::join(spread, "x")));
      const std::vector<LevelTraffic> levels = collective_table().at(c.algorithm).traffic(c.kind, n, spread, s);
      ASSERT_EQ(levels.size(), spread.size());
      double steps = 0;
      std::uint32_t unit = 1;
      for (std::size_t l = 0; l < levels.size(); ++l) {
        steps += levels[l].steps;
        if (spread[l] > 1) {
          const LevelTraffic counted = count(c.messages(n, s), unit, unit * spread[l]);
          EXPECT_NEAR(levels[l].port_bytes, counted.port_bytes, 1e-6) << "level " << l;
          // In a chain the busiest group is one between two others.
          if (c.kind != CollectiveKind::broadcast || n == unit * spread[l])
            EXPECT_NEAR(levels[l].bus_bytes, counted.bus_bytes, 1e-6) << "level " << l;
        } else {
          EXPECT_EQ(levels[l].steps, 0);
        }
        unit *= spread[l];
      }
      EXPECT_DOUBLE_EQ(steps, collective_table().at(c.algorithm).steps(c.kind, n));
    }
}

// NCCL src/graph/tuning.cc: 2 ((g-1) + log2 N) steps, half of the bus bandwidth.
TEST(Collective, DoubleTreeIsAChainInANodeAndTreesBetween) {
  const std::vector<std::uint32_t> spread{8, 16};
  const auto levels = collective_table().at("double_tree").traffic(CollectiveKind::all_reduce, 128, spread, 1e6);
  EXPECT_EQ(levels[0].steps, 2 * 7);
  EXPECT_EQ(levels[1].steps, 2 * 4);
  for (const LevelTraffic& level : levels) EXPECT_EQ(level.port_bytes, 2e6);
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
  const auto nccl = collective_algorithms("nccl", CollectiveKind::all_reduce);
  ASSERT_EQ(nccl.size(), 2U);
  EXPECT_EQ(nccl[0]->name, "striped_ring");
  EXPECT_EQ(nccl[1]->name, "double_tree");
  try {
    (void)collective_algorithm("mpi", CollectiveKind::broadcast);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "unknown world 'mpi'; known: local, gloo, nccl");
  }
}

}  // namespace
}  // namespace sim
