// A Program on a Cluster: what every pass through time looks up of a rank's instruction.
//
//   const PlacedProgram placed(program, cluster);              // both must outlive it
//   placed.link(rank, i).engine;                               // of the link that send `i` of `rank` goes over
//   placed.copies(rank, i);                                    // this rank's own thread moves bytes of it
//   placed.for_each_port(rank, i, [&](std::uint32_t port) { seen.push_back(port); });
//
// With engine `receiver`, the ranks' threads move the bytes while they wait, each its own part: the receiver of a
// message, every member of a collective that gets something (is_mover). A part of a message or of a collective with a
// root is done for its rank when it is moved; for the sender, for members that move nothing, and in a collective without
// a root, the transfer is done when all parts are.
//
// Ports are what a transfer's bytes go through: where two transfers use the same port at the same time, they share its
// bandwidth. A link that is shared (Link::shared) is a bus: one in each node for the transfers within it, one between
// all nodes. Else every rank has a full-duplex port to its node's switch, and one to other nodes: a message uses its
// sender's way out and its receiver's way in, a collective both of every member.
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
  PlacedProgram(const Program& program, const Cluster& cluster);

  const Program& program;
  const Cluster& cluster;
  const TransferMatching matching;
  const std::vector<Program::Place> places;
  std::uint32_t devices = 0, nodes = 0;  // numbers below these are in use
  bool shares_devices = false;           // some ranks do
  bool may_copy = false;                 // some transfer may be copied by the ranks' own threads

  [[nodiscard]] std::uint32_t ranks() const { return static_cast<std::uint32_t>(places.size()); }
  [[nodiscard]] const Role& role(std::uint32_t rank) const { return *roles_[rank]; }
  [[nodiscard]] std::uint32_t transfer(std::uint32_t rank, std::uint32_t i) const {
    return matching.transfer(places[rank], rank, role(rank), i);
  }
  /// Of a send or recv: the rank at the other end.
  [[nodiscard]] std::uint32_t partner(std::uint32_t rank, std::uint32_t i) const {
    return program.partner(role(rank), rank, i);
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
    return may_copy && link(rank, i).engine == TransferEngine::receiver;
  }
  /// Of a transfer that is copied: this rank's thread has a part.
  [[nodiscard]] bool copies(std::uint32_t rank, std::uint32_t i) const {
    const InstructionKind kind = role(rank).kind[i];
    if (kind != InstructionKind::collective) return kind == InstructionKind::recv;
    return is_mover(role(rank).collective[i], is_root(rank, i));
  }
  /// … and is done with the transfer as soon as it has copied that.
  [[nodiscard]] bool is_done_with_its_part(std::uint32_t rank, std::uint32_t i) const {
    return copies(rank, i) && (role(rank).kind[i] == InstructionKind::recv || has_root(role(rank).collective[i]));
  }
  /// Of a transfer that is copied: how many ranks have a part.
  [[nodiscard]] std::uint32_t copiers(std::uint32_t rank, std::uint32_t i) const;

  [[nodiscard]] std::uint32_t ports() const { return kPortsPerRank * ranks() + nodes + 1; }
  /// Of the transfer that `rank` posts with `i`.
  template <class Visit>
  void for_each_port(std::uint32_t rank, std::uint32_t i, Visit visit) const {
    const Link& used = link(rank, i);
    const bool leaves_node = &used == &cluster.inter_node;
    if (used.shared) return visit(kPortsPerRank * ranks() + (leaves_node ? nodes : cluster.place[rank].node));
    const auto port = [&](std::uint32_t of, bool in) {
      return kPortsPerRank * of + (leaves_node ? 2 : 0) + (in ? 1 : 0);
    };
    const InstructionKind kind = role(rank).kind[i];
    if (kind == InstructionKind::collective) {
      for (const std::uint32_t member : members(rank, i)) visit(port(member, false)), visit(port(member, true));
    } else {
      visit(port(rank, kind == InstructionKind::recv));
      visit(port(partner(rank, i), kind == InstructionKind::send));
    }
  }

  /// With a zero for every instruction of every rank.
  [[nodiscard]] Timeline empty_timeline() const;

 private:
  static constexpr std::uint32_t kPortsPerRank = 4;  // out and in, within the node and to others

  [[nodiscard]] bool crosses_nodes(std::uint32_t rank, std::uint32_t i) const;
  /// Of a collective that has one.
  [[nodiscard]] bool is_root(std::uint32_t rank, std::uint32_t i) const {
    return has_root(role(rank).collective[i]) && members(rank, i)[role(rank).root[i]] == rank;
  }

  std::vector<const Role*> roles_;  // by rank
  bool many_nodes_ = false;
  std::vector<std::vector<bool>> group_crosses_;  // [group][member list]: some members are on another node
};

}  // namespace sim
