#include <algorithm>
#include <limits>

#include "sim/program/transfers.hpp"
#include "sim/simulate/simulate.hpp"

namespace sim {

Durations durations_of(const Program& program, const Timeline& measured, const Cluster& cluster) {
  const std::vector<Program::Place> places = program.places();
  const TransferMatching wiring(program);
  // With the receiver's engine a transfer begins only when the last of those who copy waits for it.
  std::vector<double> entered(wiring.participants.size(), 0);
  const auto id = [&](std::uint32_t rank, std::uint32_t i) {
    return wiring.transfer(places[rank], rank, program.roles[places[rank].role], i);
  };
  std::vector<double> received_s(wiring.participants.size(), std::numeric_limits<double>::infinity());
  for (std::uint32_t r = 0; r < places.size(); ++r) {
    const Role& role = program.roles[places[r].role];
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.kind[i] == InstructionKind::recv) received_s[id(r, i)] = measured.ranks[r].end_s[i];
      if (cluster.link.engine != TransferEngine::receiver || role.kind[i] != InstructionKind::wait ||
          role.kind[role.awaits[i]] == InstructionKind::send)
        continue;
      entered[id(r, role.awaits[i])] = std::max(entered[id(r, role.awaits[i])], measured.ranks[r].start_s[i]);
    }
  }
  Durations durations;
  for (std::uint32_t r = 0; r < places.size(); ++r) {
    const Role& role = program.roles[places[r].role];
    const RankTimeline& times = measured.ranks[r];
    std::vector<double>& seconds = durations.seconds.emplace_back(role.size(), 0);
    std::vector<double>& gap = durations.gap_s.emplace_back(role.size(), 0);
    double free = 0;  // when the issuing thread was done with the instruction before
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (is_posted(role.kind[i])) {
        gap[i] = std::max(0.0, times.posted_s[i] - free);
        free = std::max(free, times.posted_s[i]);
        continue;
      }
      gap[i] = std::max(0.0, times.start_s[i] - free);
      free = times.end_s[i];
      if (role.kind[i] != InstructionKind::wait) {
        seconds[i] = times.end_s[i] - times.start_s[i];
        continue;
      }
      const std::uint32_t awaited = role.awaits[i];
      const double begin = std::max(times.start_s[awaited], entered[id(r, awaited)]);
      // A transport may know only from the wait that a message was gone long before; what such a wait takes is host
      // time.
      if (role.kind[awaited] == InstructionKind::send && received_s[id(r, awaited)] <= times.start_s[i]) {
        seconds[awaited] = std::max(0.0, received_s[id(r, awaited)] - begin);
        free = times.start_s[i];
        continue;
      }
      // A wait that blocked ends when the transfer is done for this rank, its wake-up included; else the transfer ended
      // at its own time.
      const double end = times.start_s[i] < times.end_s[awaited] ? times.end_s[i] : times.end_s[awaited];
      seconds[awaited] = std::max(0.0, end - begin);
    }
  }
  return durations;
}

}  // namespace sim
