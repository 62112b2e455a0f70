#include "sim/simulate/placed_program.hpp"

#include <algorithm>

#include "sim/error.hpp"

namespace sim {

PlacedProgram::PlacedProgram(const Program& of, const Cluster& on, const TransferMatching& matched)
    : program(of), cluster(on), matching(matched), places(of.places()) {
  if (cluster.place.size() < ranks())
    throw ConfigError("program of {} ranks on cluster '{}', which was made for {}", ranks(), cluster.name,
                      cluster.place.size());
  for (const Program::Place& place : places) roles_.push_back(&program.roles[place.role]);
  const auto node = [&](std::uint32_t rank) { return cluster.place[rank].node; };
  for (std::uint32_t rank = 1; rank < ranks(); ++rank) many_nodes_ |= node(rank) != node(0);
  may_copy_ = cluster.link.engine == TransferEngine::receiver ||
              (many_nodes_ && cluster.inter_node.engine == TransferEngine::receiver);
  if (!many_nodes_) return;
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

bool PlacedProgram::has_root(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return false;
    case CollectiveKind::broadcast:
      return true;
  }
  throw InternalError("collective of kind {}", static_cast<int>(kind));
}

bool PlacedProgram::is_root(std::uint32_t rank, std::uint32_t i) const {
  return has_root(role(rank).collective[i]) && members(rank, i)[role(rank).root[i]] == rank;
}

std::uint32_t PlacedProgram::copiers(std::uint32_t rank, std::uint32_t i) const {
  if (role(rank).kind[i] != InstructionKind::collective) return 1;
  const auto all = static_cast<std::uint32_t>(members(rank, i).size());
  return has_root(role(rank).collective[i]) ? all - 1 : all;
}

Timeline PlacedProgram::empty_timeline() const {
  Timeline timeline;
  timeline.ranks.resize(ranks());
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    const std::uint32_t size = role(rank).size();
    for (std::vector<double>* times :
         {&timeline.ranks[rank].posted_s, &timeline.ranks[rank].start_s, &timeline.ranks[rank].end_s})
      times->assign(size, 0);
  }
  return timeline;
}

}  // namespace sim
