// Which instructions of which ranks are one transfer. A send meets the recv of the same pair of ranks and tag;
// the k-th collective of a group in one member's list meets the k-th in every other's.
//
//   const TransferMatching matching(program);
//   const std::uint32_t id = matching.transfer(program.places()[rank], rank, role, i);
//   matching.participants[id]                    // how many ranks must post it: 2, or all members of the group's list
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/program.hpp"

namespace sim {

/// Ranks, axes and groups must exist; that every post has its partners is validate's to say.
class TransferMatching {
 public:
  explicit TransferMatching(const Program& program);

  std::vector<std::uint32_t> participants;          // per transfer
  std::vector<std::uint32_t> channel;               // per transfer: transfers of one channel go one after the other
  std::vector<std::vector<std::uint32_t>> list_of;  // [group][rank] → member list; kNone: the rank isn't in the group
  std::uint32_t channels = 0;

  /// The transfer that rank `rank`, at `place` in `role`, posts with its instruction `i`. A collective's rank must be
  /// in the group.
  [[nodiscard]] std::uint32_t transfer(const Program::Place& place, std::uint32_t rank, const Role& role,
                                       std::uint32_t i) const {
    const std::uint32_t first = first_[place.role][i];
    if (role.kind[i] == InstructionKind::collective) return first + first_of_list_[role.peer[i]][rank];
    return role.kind[i] == InstructionKind::send ? first + place.index : received_[first + place.index];
  }

 private:
  void match_messages(const Program& program);

  /// [role][instruction]: of a send, the transfer of the role's first rank, the others' follow; of a recv, where those
  /// of the role's ranks begin in `received_`; of a collective, how many of this group come before in the list.
  std::vector<std::vector<std::uint32_t>> first_;
  std::vector<std::uint32_t> received_;
  std::vector<std::vector<std::uint32_t>> first_of_list_;  // [group][rank]: the first transfer of its member list
};

}  // namespace sim
