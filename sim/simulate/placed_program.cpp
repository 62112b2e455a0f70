#include "sim/simulate/placed_program.hpp"

#include <algorithm>

#include "sim/error.hpp"

namespace sim {

PlacedProgram::PlacedProgram(const Program& of, const Cluster& on)
    : program(of), cluster(on), matching(of), places(of.places()) {
  if (cluster.place.size() < ranks())
    throw ConfigError("program of {} ranks on cluster '{}', which was made for {}", ranks(), cluster.name,
                      cluster.place.size());
  std::vector<bool> taken;  // by device
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    const RankPlace& place = cluster.place[rank];
    roles_.push_back(&program.roles[places[rank].role]);
    devices = std::max(devices, place.device + 1);
    nodes = std::max(nodes, place.node + 1);
    many_nodes_ |= place.node != cluster.place[0].node;
    taken.resize(devices, false);
    shares_devices |= taken[place.device];
    taken[place.device] = true;
  }
  may_copy = cluster.link.engine == TransferEngine::receiver ||
             (many_nodes_ && cluster.inter_node.engine == TransferEngine::receiver);
  if (!many_nodes_) return;
  const auto node = [&](std::uint32_t rank) { return cluster.place[rank].node; };
  for (const Group& group : program.groups) {
    std::vector<bool>& crosses = group_crosses_.emplace_back();
    for (const std::vector<std::uint32_t>& list : group.members)
      crosses.push_back(std::ranges::any_of(list, [&](std::uint32_t rank) { return node(rank) != node(list[0]); }));
  }
}

bool PlacedProgram::crosses_nodes(std::uint32_t rank, std::uint32_t i) const {
  const std::uint32_t peer = role(rank).peer[i];
  if (role(rank).kind[i] == InstructionKind::collective) return group_crosses_[peer][matching.list_of[peer][rank]];
  return cluster.place[rank].node != cluster.place[partner(rank, i)].node;
}

std::uint32_t PlacedProgram::copiers(std::uint32_t rank, std::uint32_t i) const {
  if (role(rank).kind[i] != InstructionKind::collective) return 1;
  const auto all = static_cast<std::uint32_t>(members(rank, i).size());
  const CollectiveKind kind = role(rank).collective[i];
  if (!has_root(kind)) return all;
  return (is_mover(kind, /*is_root=*/false) ? all - 1 : 0) + (is_mover(kind, /*is_root=*/true) ? 1 : 0);
}

Timeline PlacedProgram::empty_timeline() const {
  Timeline timeline;
  for (const Role* list : roles_) {
    const auto zeros = [&] { return std::vector<double>(list->size()); };
    timeline.ranks.push_back({.posted_s = zeros(), .start_s = zeros(), .end_s = zeros()});
  }
  return timeline;
}

}  // namespace sim
