// A Program on a Cluster: what every pass through time looks up of a rank's instruction.
//
//   const TransferMatching matching(program);
//   const PlacedProgram placed(program, cluster, matching);      // all three must outlive it
//   placed.link(rank, i).engine;                               // of the link that send `i` of `rank` goes over
//   placed.copies(rank, i);                                    // this rank's own thread moves bytes of it
//
// With engine `receiver`, the ranks' threads move the bytes while they wait, each its own part: the receiver of a
// message, every member of an all-reduce, every member but the root of a broadcast. A part of a message or a broadcast
// is done for its rank when it is copied; an all-reduce, a send, and a broadcast for its root are done when all parts
// are.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"
#include "sim/program/transfers.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

class PlacedProgram {
 public:
  /// ConfigError when the cluster has fewer places than the program ranks.
  PlacedProgram(const Program& program, const Cluster& cluster, const TransferMatching& matching);

  const Program& program;
  const Cluster& cluster;
  const TransferMatching& matching;
  const std::vector<Program::Place> places;

  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(places.size()); }
  [[nodiscard]] const Role& role(std::uint32_t rank) const { return *roles_[rank]; }
  [[nodiscard]] std::uint32_t transfer(std::uint32_t rank, std::uint32_t i) const {
    return matching.transfer(places[rank], rank, role(rank), i);
  }
  /// Of a send or recv: the rank at the other end.
  [[nodiscard]] std::uint32_t partner(std::uint32_t rank, std::uint32_t i) const {
    return program.roles[role(rank).peer[i]].ranks[places[rank].replica];
  }
  /// Of a collective.
  [[nodiscard]] const std::vector<std::uint32_t>& members(std::uint32_t rank, std::uint32_t i) const {
    const std::uint32_t group = role(rank).peer[i];
    return program.groups[group].members[matching.list_of[group][rank]];
  }

  [[nodiscard]] const Link& link(std::uint32_t rank, std::uint32_t i) const {
    return many_nodes_ && crosses_nodes(rank, i) ? cluster.inter_node : cluster.link;
  }
  /// By the ranks' own threads.
  [[nodiscard]] bool is_copied(std::uint32_t rank, std::uint32_t i) const {
    return may_copy_ && link(rank, i).engine == TransferEngine::receiver;
  }
  /// Some transfer may be.
  [[nodiscard]] bool may_copy() const { return may_copy_; }
  /// Of a transfer that is copied: this rank's thread has a part.
  [[nodiscard]] bool copies(std::uint32_t rank, std::uint32_t i) const {
    const InstructionKind kind = role(rank).kind[i];
    return kind == InstructionKind::recv || (kind == InstructionKind::collective && !is_root(rank, i));
  }
  /// … and is done with the transfer as soon as it has copied that.
  [[nodiscard]] bool is_done_with_its_part(std::uint32_t rank, std::uint32_t i) const {
    const Role& list = role(rank);
    if (list.kind[i] != InstructionKind::collective) return list.kind[i] == InstructionKind::recv;
    return has_root(list.collective[i]) && !is_root(rank, i);
  }
  /// Of a transfer that is copied: how many ranks have a part.
  [[nodiscard]] std::uint32_t copiers(std::uint32_t rank, std::uint32_t i) const;

  /// With a zero for every instruction of every rank.
  [[nodiscard]] Timeline empty_timeline() const;

 private:
  /// One member has what all get, and copies nothing.
  static bool has_root(CollectiveKind kind);
  [[nodiscard]] bool crosses_nodes(std::uint32_t rank, std::uint32_t i) const;
  [[nodiscard]] bool is_root(std::uint32_t rank, std::uint32_t i) const;

  std::vector<const Role*> roles_;  // by rank
  bool many_nodes_ = false, may_copy_ = false;
  std::vector<std::vector<bool>> group_crosses_;  // [group][member list]: some members are on another node
};

}  // namespace sim
