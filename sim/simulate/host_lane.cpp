#include "sim/simulate/host_lane.hpp"

namespace sim {

std::vector<std::vector<double>> issue_times(const PlacedProgram& placed, double launch_s) {
  const bool one_thread = placed.cluster.one_host_thread;
  std::vector<double> clock_s(placed.cluster.place.size(), 0);  // by thread: numbered by node or by rank
  for (const RankPlace& place : placed.cluster.place)
    if (place.node >= clock_s.size()) clock_s.resize(place.node + 1, 0);
  std::vector<std::uint32_t> next(placed.ranks(), 0), posted(placed.matching.participants.size(), 0);
  std::vector<std::vector<double>> issued_s(placed.ranks());
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) issued_s[rank].resize(placed.role(rank).size());
  const auto is_issued = [&](std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t id = placed.transfer(rank, i);
    return posted[id] == placed.matching.participants[id];
  };
  for (bool advances = true; advances;) {
    advances = false;
    for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) {
      const Role& list = placed.role(rank);
      double& host_s = clock_s[one_thread ? placed.cluster.place[rank].node : rank];
      for (std::uint32_t& i = next[rank]; i < list.size(); ++i, advances = true) {
        if (one_thread && list.kind[i] == InstructionKind::wait && !is_issued(rank, list.awaits[i])) break;
        issued_s[rank][i] = host_s += launch_s;
        if (is_posted(list.kind[i])) ++posted[placed.transfer(rank, i)];
      }
    }
  }
  return issued_s;
}

}  // namespace sim
