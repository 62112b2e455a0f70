// Which instructions of which ranks are one transfer. A send meets the recv of the same pair of ranks and tag;
// the k-th collective of a group in one member's list meets the k-th in every other's.
//
//   const TransferMatching matching(program);
//   const std::uint32_t id = matching.transfer(program.places()[rank], rank, role, i);
//   matching.participants[id]                    // how many ranks must post it: 2, or all members of the group's list
//
// Of a folded program (fold.hpp) those who play are meant, not all ranks, and of the transfers of alike ranks one.
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
  std::vector<std::uint32_t> times;                 // per transfer: how many it stands for
  std::vector<std::uint32_t> channel;               // per transfer: transfers of one channel go one after the other
  std::vector<std::vector<std::uint32_t>> list_of;  // [group][player] → member list; of alike ones the first
  std::uint32_t channels = 0;

  /// The transfer that `player`, at `place` in `role`, posts with its instruction `i`.
  [[nodiscard]] std::uint32_t transfer(const Program::Place& place, std::uint32_t player, const Role& role,
                                       std::uint32_t i) const {
    const std::uint32_t first = first_[place.role][i];
    if (role.kind[i] == InstructionKind::collective) return first + first_of_list_[role.peer[i]][player];
    return role.kind[i] == InstructionKind::send ? first + place.index : received_[first + place.index];
  }

 private:
  void match_messages(const Program& program, const std::vector<Program::Place>& places);

  /// [role][instruction]: of a send, the transfer of the role's first player, the others' follow; of a recv, where
  /// those of the role's players begin in `received_`; of a collective, how many of this group come before in the list.
  std::vector<std::vector<std::uint32_t>> first_;
  std::vector<std::uint32_t> received_;
  std::vector<std::vector<std::uint32_t>> first_of_list_;  // [group][player]: the first transfer of its member list
};

}  // namespace sim
