#include "sim/simulate/placed_program.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "sim/error.hpp"

namespace sim {

namespace {

/// The group of the level that each player is in: where groups are alike, in the first of them.
std::vector<std::uint32_t> groups_of_players(const Program& program, const Cluster& cluster, std::size_t level) {
  std::map<std::uint32_t, std::vector<std::uint32_t>> ranks;  // by group
  for (std::uint32_t rank = 0, all = program.ranks(); rank < all; ++rank)
    ranks[cluster.group_of(cluster.place[rank].device, level)].push_back(rank);
  std::vector<std::uint32_t> groups(program.players(), kNone);
  for (const auto& [group, in_group] : ranks)
    if (groups[program.player_of(in_group.front())] == kNone)
      for (const std::uint32_t rank : in_group) groups[program.player_of(rank)] = group;
  return groups;
}

}  // namespace

PlacedProgram::PlacedProgram(const Program& of, const Cluster& on)
    : program(of), cluster(on), matching(of), places(of.places()) {
  if (cluster.place.size() < program.ranks())
    throw ConfigError("program of {} ranks on cluster '{}', which was made for {}", program.ranks(), cluster.name,
                      cluster.place.size());
  place_ranks();
  for (const Level& level : cluster.levels) {
    may_copy |= level.link.engine == TransferEngine::receiver;
    const std::size_t l = levels_.size();
    levels_.push_back({.first = ports_, .is_bus = level.link.shared});
    std::uint32_t units = 0;
    for (std::uint32_t rank = 0, all = program.ranks(); rank < all; ++rank)
      units = std::max(units, unit_of(rank, l) + 1);
    ports_ += level.link.shared ? units : 2 * units;
  }
  for (std::uint32_t g = 0; g < program.groups.size(); ++g) {
    const std::vector<std::vector<std::uint32_t>>& all = program.groups[g].members;
    const std::vector<std::uint32_t>& list_of = matching.list_of[g];
    std::vector<MemberList>& lists = lists_.emplace_back(all.size());
    for (std::uint32_t rank = 0; rank < ranks(); ++rank)
      if (list_of[rank] != kNone) lists[list_of[rank]].members.push_back(rank);
    for (std::uint32_t m = 0; m < lists.size(); ++m)
      if (cluster.levels.size() > 1 && !lists[m].members.empty()) lists[m].level = cluster.spread(all[m]).size() - 1;
  }
  find_ports();
}

void PlacedProgram::place_ranks() {
  std::vector<bool> taken;  // by device
  const std::vector<std::uint32_t> node = groups_of_players(program, cluster, cluster.node_level);
  for (std::uint32_t rank = 0; rank < ranks(); ++rank) {
    roles_.push_back(&program.roles[places[rank].role]);
    const std::uint32_t device = program.classes ? rank : cluster.place[rank].device;
    on_.push_back({.device = device, .node = node[rank], .alike = 0});
    devices = std::max(devices, device + 1);
    nodes = std::max(nodes, node[rank] + 1);
    taken.resize(devices, false);
    shares_devices |= taken[device];
    taken[device] = true;
  }
  for (std::uint32_t rank = 0, all = program.ranks(); rank < all; ++rank)
    if (Place& place = on_[program.player_of(rank)]; cluster.node_of(rank) == place.node) ++place.alike;
}

/// Goes through all ranks' transfers, and counts where players' are.
void PlacedProgram::find_ports() {
  std::vector<std::vector<std::uint32_t>> played;  // [level][player]: its unit; where units are alike, the first
  for (std::size_t l = 0; l < levels_.size(); ++l) {
    if (l > 0 || levels_[l].is_bus) {
      played.push_back(groups_of_players(program, cluster, levels_[l].is_bus ? l : l - 1));
      continue;
    }
    std::vector<std::uint32_t>& themselves = played.emplace_back();
    for (std::uint32_t player = 0; player < ranks(); ++player) themselves.push_back(program.rank_of(player));
  }
  ports_of_channel_.resize(matching.channels);
  const auto add = [&](std::uint32_t channel, std::size_t l, std::uint32_t rank, bool in) {
    if (const std::uint32_t unit = unit_of(rank, l); played[l][program.player_of(rank)] == unit)
      ports_of_channel_[channel].push_back({levels_[l].port(unit, in), static_cast<std::uint32_t>(l)});
  };
  std::vector<std::vector<std::uint32_t>> channel_of_list;  // [group][member list]
  for (const Group& group : program.groups) channel_of_list.emplace_back(group.members.size(), kNone);
  for (std::uint32_t player = 0; player < ranks(); ++player) {
    if (places[player].index != 0) continue;  // of each role the first
    const Role& list = role(player);
    std::set<std::uint32_t> seen;  // channels: the others of the role have as many
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      const bool is_collective = list.kind[i] == InstructionKind::collective;
      if (!is_collective && list.kind[i] != InstructionKind::send) continue;
      if (!seen.insert(matching.channel[transfer(player, i)]).second) continue;
      for (const std::uint32_t rank : list.ranks) {
        const std::uint32_t of_class = program.player_of(rank);
        const std::uint32_t channel = matching.channel[transfer(of_class, i)];
        if (is_collective) {
          channel_of_list[list.peer[i]][matching.list_of[list.peer[i]][of_class]] = channel;
          continue;
        }
        const std::uint32_t other = program.partner(list, rank, i);
        const std::size_t top = levels_.size() == 1 ? 0 : cluster.level_between(rank, other);
        for (std::size_t l = 0; l <= top; ++l) {
          add(channel, l, rank, /*in=*/false);
          if (!levels_[l].is_bus || unit_of(rank, l) != unit_of(other, l)) add(channel, l, other, /*in=*/true);
        }
      }
    }
  }
  for (std::uint32_t g = 0; g < program.groups.size(); ++g)
    for (const std::vector<std::uint32_t>& members : program.groups[g].members) {
      const std::uint32_t of_class = matching.list_of[g][program.player_of(members.front())];
      const std::uint32_t channel = of_class == kNone ? kNone : channel_of_list[g][of_class];
      if (channel == kNone) continue;
      for (std::size_t l = 0; l <= lists_[g][of_class].level; ++l) {
        std::set<std::uint32_t> units;
        for (const std::uint32_t rank : members)
          if (units.insert(unit_of(rank, l)).second)
            for (const bool in : {false, true})
              if (!in || !levels_[l].is_bus) add(channel, l, rank, in);
      }
    }
  for (std::vector<PortUse>& uses : ports_of_channel_) {
    std::ranges::sort(uses, {}, &PortUse::port);
    std::size_t last = 0;
    for (std::size_t next = 1; next < uses.size(); ++next)
      if (uses[next].port == uses[last].port)
        ++uses[last].times;
      else
        uses[++last] = uses[next];
    if (!uses.empty()) uses.resize(last + 1);
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
