#include "sim/program/transfers.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace sim {

TransferMatching::TransferMatching(const Program& program) {
  const std::uint32_t ranks = program.ranks();
  std::vector<std::vector<std::uint32_t>> collectives;  // [group][member list]: how many
  for (const Group& group : program.groups) {
    collectives.emplace_back(group.members.size(), 0);
    list_of.emplace_back(ranks, kNone);
    for (std::uint32_t m = 0; m < group.members.size(); ++m)
      for (std::uint32_t rank : group.members[m]) list_of.back()[rank] = m;
  }

  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> pairs;  // from, to (roles), tag
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> pair_channels;
  for (std::uint32_t r = 0; r < program.roles.size(); ++r) {
    const Role& role = program.roles[r];
    std::vector<std::uint32_t>& first = first_.emplace_back(role.size(), kNone);
    std::vector<std::uint32_t> posted(program.groups.size(), 0);  // collectives
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (!is_posted(role.kind[i])) continue;
      const std::uint32_t peer = role.peer[i];
      if (role.kind[i] == InstructionKind::collective) {
        first[i] = posted[peer]++;
        continue;
      }
      const bool sends = role.kind[i] == InstructionKind::send;
      const std::uint32_t from = sends ? r : peer, to = sends ? peer : r;
      const auto [entry, is_new] =
          pairs.emplace(std::tuple(from, to, role.tag[i]), static_cast<std::uint32_t>(participants.size()));
      if (is_new) {
        const auto replicas = static_cast<std::uint32_t>(std::max(role.ranks.size(), program.roles[peer].ranks.size()));
        const auto [channel_entry, new_channel] = pair_channels.emplace(std::pair(from, to), channels);
        if (new_channel) channels += replicas;
        for (std::uint32_t replica = 0; replica < replicas; ++replica) {
          participants.push_back(2);
          channel.push_back(channel_entry->second + replica);
        }
      }
      first[i] = entry->second;
    }
    for (std::uint32_t g = 0; g < program.groups.size(); ++g)
      for (std::uint32_t rank : role.ranks)
        if (const std::uint32_t list = list_of[g][rank]; list != kNone)
          collectives[g][list] = std::max(collectives[g][list], posted[g]);
  }

  for (std::uint32_t g = 0; g < program.groups.size(); ++g) {
    first_of_list_.emplace_back(ranks, kNone);
    for (std::uint32_t m = 0; m < program.groups[g].members.size(); ++m) {
      const std::vector<std::uint32_t>& members = program.groups[g].members[m];
      for (std::uint32_t rank : members) first_of_list_[g][rank] = static_cast<std::uint32_t>(participants.size());
      participants.insert(participants.end(), collectives[g][m], static_cast<std::uint32_t>(members.size()));
      channel.insert(channel.end(), collectives[g][m], channels);
      if (collectives[g][m] > 0) ++channels;
    }
  }
}

}  // namespace sim
