// What a transfer's bytes go through: where two transfers use the same port at the same time, they share its bandwidth.
//
//   const Ports ports(placed);
//   ports.for_each(rank, i, [&](std::uint32_t port) { seen.push_back(port); });        // of the transfer that `rank` posts with `i`
//
// A link that is shared (Link::shared) is a bus: one in each node for the transfers within it, one between all nodes.
// Else every rank has a full-duplex port to its node's switch, and one to other nodes: a message uses its sender's way
// out and its receiver's way in, a collective both of every member.
#pragma once

#include <algorithm>
#include <cstdint>

#include "sim/simulate/placed_program.hpp"

namespace sim {

class Ports {
 public:
  explicit Ports(const PlacedProgram& placed) : placed_(placed) {
    for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank)
      nodes_ = std::max(nodes_, placed.cluster.place[rank].node + 1);
  }

  [[nodiscard]] std::uint32_t count() const { return kPerRank * placed_.ranks() + nodes_ + 1; }

  template <class Visit>
  void for_each(std::uint32_t rank, std::uint32_t i, Visit visit) const {
    const Link& link = placed_.link(rank, i);
    const bool leaves_node = &link == &placed_.cluster.inter_node;
    if (link.shared)
      return visit(kPerRank * placed_.ranks() + (leaves_node ? nodes_ : placed_.cluster.place[rank].node));
    const auto port = [&](std::uint32_t of, bool in) { return kPerRank * of + (leaves_node ? 2 : 0) + (in ? 1 : 0); };
    const InstructionKind kind = placed_.role(rank).kind[i];
    if (kind == InstructionKind::collective) {
      for (const std::uint32_t member : placed_.members(rank, i)) visit(port(member, false)), visit(port(member, true));
    } else {
      visit(port(rank, kind == InstructionKind::recv));
      visit(port(placed_.partner(rank, i), kind == InstructionKind::send));
    }
  }

 private:
  static constexpr std::uint32_t kPerRank = 4;  // out and in, within the node and to others
  const PlacedProgram& placed_;
  std::uint32_t nodes_ = 1;
};

}  // namespace sim
