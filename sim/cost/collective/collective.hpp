// Collective algorithms: how a collective among n members is done, as steps and bytes on the wire.
//
//   const CollectiveAlgorithm& ring = collective_table().at("ring");
//   ring.steps(CollectiveKind::all_reduce, 4);                 // 6
//   ring.wire_bytes(CollectiveKind::all_reduce, 4, s);         // 1.5 s
//   // seconds = steps · α + wire bytes / bandwidth
//   ring.traffic(CollectiveKind::all_reduce, 16, spread, s);   // spread {8, 2}: 8 members on each of 2 nodes; by level
//
// Conventions. `bytes` is nccl-tests' size s: the whole array, which for all_gather, all_to_all and gather is what a
// member (the root) gets, for reduce_scatter and scatter what a member (the root) gives. A step is a message that the
// next one waits for; wire bytes are those that go through the busiest member's link in its busier direction. With one
// member nothing is sent. An algorithm is asked by kind; one that it has no closed form for is an InternalError.
//
// On several levels (sim/cluster/cluster.hpp), with T_l units of level l that have members (T_0 = n; a unit of level 1
// is a group of level 0, such as a node) and m members in each of them:
//
//   steps of level l   S(T_l) - S(T_l+1), where S(T) are the steps among T members: a ring of 16 on two nodes takes 30
//                      steps, 2 of them between the nodes. double_tree: 2 (g-1) in a node of g, and between N nodes
//                      2 ceil(log2 N)
//   bytes out of a unit
//     neighbours       w(n) s, as of each member: a ring (or chain) enters and leaves every unit once
//     all pairs        m (n-m) / (n-1) w(n) s: every member sends each other one as much
//     from the root    (n-m) s, or of scatter and gather (n-m) / n s: the root's unit
//     binomial tree    m ceil(log2 T_l) s: members that are neighbours first, so every member of a node sends
//                      to the next
//     double_tree      2 s
//
// Assumes: members that are neighbours in rank order lie together, equally many in each unit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/program/program.hpp"
#include "sim/table.hpp"

namespace sim {

/// Who sends to whom, as far as it decides what crosses the borders of a unit.
enum class Pattern : std::uint8_t { ring, chain, all_pairs, from_root, ring_and_root, binomial, double_tree };

/// The cost among n members, two or more, on one level.
struct ClosedForm {
  double (*steps)(std::uint32_t n) = nullptr;
  double (*wire_share)(std::uint32_t n) = nullptr;  // wire bytes / s
  Pattern pattern = Pattern::ring;
};

/// What moves over one level of the network.
struct LevelTraffic {
  double steps = 0;         // messages that wait for one another
  double port_bytes = 0;    // out of the busiest unit, or into it, if that is more
  double flows = 1;         // connections by which they leave it at once: each goes through one port
  double members = 1;       // in the busiest unit
  std::uint32_t units = 1;  // in a group
  double bus_bytes = 0;     // of all units of the busiest group together: what a shared link carries
};

struct CollectiveAlgorithm {
  std::string_view name;
  std::string_view equation;  // one line
  std::string_view assumes;
  std::string_view source;
  std::array<ClosedForm, kCollectiveKinds.size()> forms;  // by CollectiveKind; null: it isn't for that kind
  /// A unit's bytes are spread over its ports, as by a ring for each: over its members' share
  /// of them, at least one each.
  bool is_striped = false;

  [[nodiscard]] bool is_for(CollectiveKind kind) const;

  [[nodiscard]] double steps(CollectiveKind kind, std::uint32_t members) const;
  [[nodiscard]] double wire_bytes(CollectiveKind kind, std::uint32_t members, double bytes) const;
  /// The traffic by level, as many as `spread` (Cluster::spread) has.
  [[nodiscard]] std::vector<LevelTraffic> traffic(CollectiveKind kind, std::uint32_t members,
                                                  std::span<const std::uint32_t> spread, double bytes) const;
};

const Table<CollectiveAlgorithm>& collective_table();

/// What a world uses; of several the first is for large arrays inside a node. ConfigError for an unknown world.
std::vector<const CollectiveAlgorithm*> collective_algorithms(std::string_view world, CollectiveKind kind);
const CollectiveAlgorithm& collective_algorithm(std::string_view world, CollectiveKind kind);

}  // namespace sim
