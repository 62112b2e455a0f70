// Which instructions of which ranks are one transfer.
//
//   const Wiring wiring(program);
//   wiring.parties[wiring.transfer(program.places()[rank], rank, role, i)];   // how many must post it
#pragma once

#include <cstdint>
#include <vector>

#include "sim/program/program.hpp"

namespace sim {

/// Worked out once per role: transfer id = first[instruction] + replica (point to point) or + member list (collective).
struct Wiring {
  std::vector<std::vector<std::uint32_t>> first;    // [role][instruction], kNone for others
  std::vector<std::vector<std::uint32_t>> list_of;  // [group][rank] → member list
  std::vector<std::uint32_t> parties;               // per transfer
  std::vector<std::uint32_t> channel;               // per transfer: transfers of one channel go one after the other
  std::uint32_t channels = 0;

  explicit Wiring(const Program& program);

  /// The transfer that rank `rank`, at `place` in `role`, posts with its instruction `i`.
  [[nodiscard]] std::uint32_t transfer(const Program::Place& place, std::uint32_t rank, const Role& role,
                                       std::uint32_t i) const {
    return first[place.role][i] +
           (role.kind[i] == InstructionKind::collective ? list_of[role.peer[i]][rank] : place.replica);
  }
};

}  // namespace sim
