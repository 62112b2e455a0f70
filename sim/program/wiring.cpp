#include "sim/program/wiring.hpp"

#include <map>
#include <tuple>
#include <utility>

namespace sim {

Wiring::Wiring(const Program& program) {
  const std::uint32_t ranks = program.ranks();
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t>
      pairs;  // sender's role, receiver's role, tag
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> collectives,
      pair_channels;  // group, ordinal; sender's role, receiver's role
  std::map<std::uint32_t, std::uint32_t> group_channels;
  for (std::uint32_t g = 0; g < program.groups.size(); ++g) {
    list_of.emplace_back(ranks, 0);
    for (std::uint32_t m = 0; m < program.groups[g].members.size(); ++m)
      for (std::uint32_t rank : program.groups[g].members[m]) list_of[g][rank] = m;
  }
  for (std::uint32_t r = 0; r < program.roles.size(); ++r) {
    const Role& role = program.roles[r];
    first.emplace_back(role.size(), kNone);
    std::vector<std::uint32_t> ordinal(program.groups.size(), 0);
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (!is_posted(role.kind[i])) continue;
      const auto next = static_cast<std::uint32_t>(parties.size());
      if (role.kind[i] == InstructionKind::collective) {
        const std::uint32_t group = role.peer[i];
        const auto [entry, is_new] = collectives.emplace(std::pair(group, ordinal[group]++), next);
        if (is_new) {
          const auto [channel_entry, new_channel] = group_channels.emplace(group, channels);
          const auto lists = static_cast<std::uint32_t>(program.groups[group].members.size());
          if (new_channel) channels += lists;
          for (std::uint32_t m = 0; m < lists; ++m) {
            parties.push_back(static_cast<std::uint32_t>(program.groups[group].members[m].size()));
            channel.push_back(channel_entry->second + m);
          }
        }
        first[r][i] = entry->second;
      } else {
        const bool sends = role.kind[i] == InstructionKind::send;
        const std::uint32_t from = sends ? r : role.peer[i], to = sends ? role.peer[i] : r;
        const auto [entry, is_new] = pairs.emplace(std::tuple(from, to, role.tag[i]), next);
        if (is_new) {
          const auto [channel_entry, new_channel] = pair_channels.emplace(std::pair(from, to), channels);
          const auto replicas = static_cast<std::uint32_t>(role.ranks.size());
          if (new_channel) channels += replicas;
          for (std::uint32_t replica = 0; replica < replicas; ++replica) {
            parties.push_back(2);
            channel.push_back(channel_entry->second + replica);
          }
        }
        first[r][i] = entry->second;
      }
    }
  }
}

}  // namespace sim
