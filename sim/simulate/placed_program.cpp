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
    nodes = std::max(nodes, cluster.node_of(rank) + 1);
    taken.resize(devices, false);
    shares_devices |= taken[place.device];
    taken[place.device] = true;
  }
  for (std::size_t l = 0; l < cluster.levels.size(); ++l) {
    const Level& level = cluster.levels[l];
    may_copy |= level.link.engine == TransferEngine::receiver;
    levels_.push_back({.first = ports_, .is_bus = level.link.shared});
    std::uint32_t units = 0;
    for (std::uint32_t rank = 0; rank < ranks(); ++rank)
      units = std::max(units, unit_of(rank, l, level.link.shared) + 1);
    ports_ += level.link.shared ? units : 2 * units;
  }
  for (const Group& group : program.groups) {
    std::vector<MemberList>& lists = lists_.emplace_back();
    for (const std::vector<std::uint32_t>& members : group.members) {
      MemberList& list = lists.emplace_back();
      if (cluster.levels.size() > 1) list.level = cluster.spread(members).size() - 1;
      for (std::size_t l = 0; l <= list.level; ++l) {
        std::vector<std::uint32_t>& units = list.units.emplace_back();
        if (l == 0 && !levels_[l].is_bus) continue;  // the members themselves
        for (const std::uint32_t rank : members) units.push_back(unit_of(rank, l, levels_[l].is_bus));
        std::ranges::sort(units);
        units.erase(std::ranges::unique(units).begin(), units.end());
      }
    }
  }
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
