// A Program on a Cluster: what every pass through time looks up of a rank's instruction.
//
//   const PlacedProgram placed(program, cluster);              // both must outlive it
//   placed.link(rank, i).engine;                               // of the link that send `i` of `rank` goes over
//   placed.copies(rank, i);                                    // this rank's own thread moves bytes of it
//   placed.for_each_port(rank, i, [&](std::uint32_t port, std::size_t level) { seen.push_back(port); });
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
  [[nodiscard]] std::uint32_t transfer(std::uint32_t rank, std::uint32_t i) const {
    return matching.transfer(places[rank], rank, role(rank), i);
  }
  /// The rank at the other end of a send or recv.
  [[nodiscard]] std::uint32_t partner(std::uint32_t rank, std::uint32_t i) const {
    return program.partner(role(rank), rank, i);
  }
  /// The members of a collective.
  [[nodiscard]] const std::vector<std::uint32_t>& members(std::uint32_t rank, std::uint32_t i) const {
    const std::uint32_t group = role(rank).peer[i];
    return program.groups[group].members[matching.list_of[group][rank]];
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
  /// Visits every port of the transfer that `rank` posts with `i`: visit(port, level).
  template <class Visit>
  void for_each_port(std::uint32_t rank, std::uint32_t i, const Visit& visit) const {
    const InstructionKind kind = role(rank).kind[i];
    const std::size_t top = level(rank, i);
    for (std::size_t l = 0; l <= top; ++l) {
      const PortsOfLevel& at = levels_[l];
      if (kind == InstructionKind::collective) {
        for (const std::uint32_t unit : units(rank, i, l, at.is_bus))
          for (const bool in : {false, true})
            if (!in || !at.is_bus) visit(at.port(unit, in), l);
        continue;
      }
      const std::uint32_t mine = unit_of(rank, l, at.is_bus), other = unit_of(partner(rank, i), l, at.is_bus);
      visit(at.port(mine, kind == InstructionKind::recv), l);
      if (!at.is_bus || other != mine) visit(at.port(other, kind == InstructionKind::send), l);
    }
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

  /// The level on which all parties of the transfer meet.
  [[nodiscard]] std::size_t level(std::uint32_t rank, std::uint32_t i) const {
    if (levels_.size() == 1) return 0;
    const std::uint32_t peer = role(rank).peer[i];
    if (role(rank).kind[i] == InstructionKind::collective) return lists_[peer][matching.list_of[peer][rank]].level;
    return cluster.level_between(rank, partner(rank, i));
  }
  /// What has ports, or a bus, on a level: on the innermost a rank has ports, on others a group of the level below; a
  /// bus is of a group of the level itself.
  [[nodiscard]] std::uint32_t unit_of(std::uint32_t rank, std::size_t level, bool is_bus) const {
    if (level == 0 && !is_bus) return rank;
    return cluster.group_of(cluster.place[rank].device, is_bus ? level : level - 1);
  }
  /// The units of a collective's members, each once.
  [[nodiscard]] const std::vector<std::uint32_t>& units(std::uint32_t rank, std::uint32_t i, std::size_t level,
                                                        bool is_bus) const {
    if (level == 0 && !is_bus) return members(rank, i);
    const std::uint32_t group = role(rank).peer[i];
    return lists_[group][matching.list_of[group][rank]].units[level];
  }
  /// Whether `rank` is the root of a collective that has one.
  [[nodiscard]] bool is_root(std::uint32_t rank, std::uint32_t i) const {
    return has_root(role(rank).collective[i]) && members(rank, i)[role(rank).root[i]] == rank;
  }

  std::vector<const Role*> roles_;  // by rank
  std::vector<PortsOfLevel> levels_;
  std::uint32_t ports_ = 0;
  struct MemberList {
    std::size_t level = 0;                          // on which all meet
    std::vector<std::vector<std::uint32_t>> units;  // [level]
  };
  std::vector<std::vector<MemberList>> lists_;  // [group][member list]
};

}  // namespace sim
