// A Program on a Cluster: what every pass through time looks up of a rank's instruction.
//
//   const PlacedProgram placed(program, cluster);              // both must outlive it
//   placed.link(rank, i).engine;                               // of the link that send `i` of `rank` goes over
//   placed.copies(rank, i);                                    // this rank's own thread moves bytes of it
//   for (const PlacedProgram::PortUse& use : placed.ports_of(rank, i)) seen.push_back(use.port);
//
// Of a folded program (fold.hpp) a rank is here one that plays for its class, with its number among those who do. It
// has a device to itself, and what its class does on its node, or with its ports, it does as often as they are there.
//
// With engine `receiver`, the ranks' threads move the bytes while they wait, each its own part: the receiver of a
// message, every member of a collective that gets something (is_mover). A part of a message or of a collective with a
// root is done for its rank when it is moved; for the sender, for members that move nothing, and in a collective
// without a root, the transfer is done when all parts are.
//
// Ports are what a transfer's bytes go through: where two transfers use the same ports at the same time, they share
// their bandwidth. A rank has a full-duplex port of its own to the innermost level of the network; a group of a level
// has the ports that leave it, which are one resource here, out and in. A message uses its sender's way out and its
// receiver's way in on every level up to the one on which they meet, a collective both of every unit that has members.
// A level whose link is shared (Link::shared) has a bus in each of its groups instead.
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
  [[nodiscard]] std::uint32_t device(std::uint32_t rank) const { return on_[rank].device; }
  [[nodiscard]] std::uint32_t node(std::uint32_t rank) const { return on_[rank].node; }
  /// The kind of its device (Cluster::kind).
  [[nodiscard]] std::uint32_t kind(std::uint32_t rank) const { return cluster.kind_of(program.rank_of(rank)); }
  /// How many ranks like this one are on its node.
  [[nodiscard]] std::uint32_t alike_on_node(std::uint32_t rank) const { return on_[rank].alike; }
  [[nodiscard]] std::uint32_t transfer(std::uint32_t rank, std::uint32_t i) const {
    return matching.transfer(places[rank], rank, role(rank), i);
  }
  /// The rank at the other end of a send or recv.
  [[nodiscard]] std::uint32_t partner(std::uint32_t rank, std::uint32_t i) const {
    return program.player_of(program.partner(role(rank), program.rank_of(rank), i));
  }
  /// The members of a collective.
  [[nodiscard]] const std::vector<std::uint32_t>& members(std::uint32_t rank, std::uint32_t i) const {
    return list(rank, i).members;
  }

  /// The link of the level on which all meet.
  [[nodiscard]] const Link& link(std::uint32_t rank, std::uint32_t i) const {
    return cluster.levels[level(rank, i)].link;
  }
  /// Whether the ranks' own threads copy it.
  [[nodiscard]] bool is_copied(std::uint32_t rank, std::uint32_t i) const {
    return may_copy && link(rank, i).engine == TransferEngine::receiver;
  }
  /// Whether this rank's thread has a part in a transfer that is copied.
  [[nodiscard]] bool copies(std::uint32_t rank, std::uint32_t i) const {
    const InstructionKind kind = role(rank).kind[i];
    if (kind != InstructionKind::collective) return kind == InstructionKind::recv;
    return is_mover(role(rank).collective[i], is_root(rank, i));
  }
  /// … and is done with the transfer as soon as it has copied that.
  [[nodiscard]] bool is_done_with_its_part(std::uint32_t rank, std::uint32_t i) const {
    return copies(rank, i) && (role(rank).kind[i] == InstructionKind::recv || has_root(role(rank).collective[i]));
  }
  /// How many ranks have a part in a transfer that is copied.
  [[nodiscard]] std::uint32_t copiers(std::uint32_t rank, std::uint32_t i) const;

  [[nodiscard]] std::uint32_t ports() const { return ports_; }
  struct PortUse {
    std::uint32_t port = 0, level = 0;
    std::uint32_t times = 1;  // how many transfers like this one go through the port
  };
  /// The ports of the transfer that `rank` posts with `i`, each once.
  [[nodiscard]] const std::vector<PortUse>& ports_of(std::uint32_t rank, std::uint32_t i) const {
    return ports_of_channel_[matching.channel[transfer(rank, i)]];
  }

  /// A timeline with a zero for every instruction of every rank.
  [[nodiscard]] Timeline empty_timeline() const;

 private:
  struct PortsOfLevel {
    std::uint32_t first = 0;
    bool is_bus = false;
    [[nodiscard]] std::uint32_t port(std::uint32_t unit, bool in) const {
      return is_bus ? first + unit : first + 2 * unit + (in ? 1 : 0);
    }
  };
  struct Place {
    std::uint32_t device = 0, node = 0, alike = 1;
  };
  struct MemberList {
    std::size_t level = 0;               // on which all meet
    std::vector<std::uint32_t> members;  // who play
  };

  void place_ranks();
  void find_ports();

  [[nodiscard]] const MemberList& list(std::uint32_t rank, std::uint32_t i) const {
    const std::uint32_t group = role(rank).peer[i];
    return lists_[group][matching.list_of[group][rank]];
  }
  /// The level on which all parties of the transfer meet.
  [[nodiscard]] std::size_t level(std::uint32_t rank, std::uint32_t i) const {
    if (levels_.size() == 1) return 0;
    if (role(rank).kind[i] == InstructionKind::collective) return list(rank, i).level;
    const std::uint32_t here = program.rank_of(rank);
    return cluster.level_between(here, program.partner(role(rank), here, i));
  }
  /// What of the cluster has ports, or a bus, on a level: on the innermost a rank has ports, on others a group of the
  /// level below; a bus is of a group of the level itself.
  [[nodiscard]] std::uint32_t unit_of(std::uint32_t rank_of_program, std::size_t level) const {
    if (level == 0 && !levels_[level].is_bus) return rank_of_program;
    return cluster.group_of(cluster.place[rank_of_program].device, levels_[level].is_bus ? level : level - 1);
  }
  /// Whether `rank` is the root of a collective that has one.
  [[nodiscard]] bool is_root(std::uint32_t rank, std::uint32_t i) const {
    if (!has_root(role(rank).collective[i])) return false;
    const std::uint32_t group = role(rank).peer[i];
    const std::vector<std::uint32_t>& all = program.groups[group].members[matching.list_of[group][rank]];
    return program.player_of(all[role(rank).root[i]]) == rank;
  }

  std::vector<const Role*> roles_;  // by rank
  std::vector<Place> on_;           // by rank
  std::vector<PortsOfLevel> levels_;
  std::uint32_t ports_ = 0;
  std::vector<std::vector<MemberList>> lists_;  // [group][member list]
  std::vector<std::vector<PortUse>> ports_of_channel_;
};

}  // namespace sim
