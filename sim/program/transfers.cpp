#include "sim/program/transfers.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace sim {

TransferMatching::TransferMatching(const Program& program) {
  const std::vector<Program::Place> places = program.places();
  const auto players = static_cast<std::uint32_t>(places.size());
  for (const Group& group : program.groups) {
    std::vector<std::uint32_t>& lists = list_of.emplace_back(players, kNone);
    for (std::uint32_t m = 0; m < group.members.size(); ++m)
      if (lists[program.player_of(group.members[m].front())] == kNone)
        for (const std::uint32_t rank : group.members[m]) lists[program.player_of(rank)] = m;
  }
  std::vector<std::vector<std::uint32_t>> posted;  // [role][group]: collectives
  for (const Role& role : program.roles) {
    std::vector<std::uint32_t>& first = first_.emplace_back(role.size(), kNone);
    std::vector<std::uint32_t>& of_role = posted.emplace_back(program.groups.size(), 0);
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::collective) first[i] = of_role[role.peer[i]]++;
  }
  match_messages(program, places);

  for (std::uint32_t g = 0; g < program.groups.size(); ++g) {
    struct List {
      std::uint32_t players = 0, times = 0, collectives = 0, first = 0;
    };
    std::vector<List> lists(program.groups[g].members.size());
    for (const std::vector<std::uint32_t>& members : program.groups[g].members)
      if (const std::uint32_t list = list_of[g][program.player_of(members.front())]; list != kNone) ++lists[list].times;
    for (std::uint32_t player = 0; player < players; ++player) {
      if (list_of[g][player] == kNone) continue;
      List& list = lists[list_of[g][player]];
      ++list.players;
      list.collectives = std::max(list.collectives, posted[places[player].role][g]);
    }
    for (List& list : lists) {
      list.first = static_cast<std::uint32_t>(participants.size());
      participants.insert(participants.end(), list.collectives, list.players);
      times.insert(times.end(), list.collectives, list.times);
      channel.insert(channel.end(), list.collectives, channels);
      if (list.collectives > 0) ++channels;
    }
    std::vector<std::uint32_t>& first = first_of_list_.emplace_back();
    for (const std::uint32_t list : list_of[g]) first.push_back(list == kNone ? kNone : lists[list].first);
  }
}

/// A message is known by its sender, the direction in which it goes and its tag. One
/// that nobody sends, by its receiver.
void TransferMatching::match_messages(const Program& program, const std::vector<Program::Place>& places) {
  std::vector<std::vector<std::uint32_t>> players(program.roles.size());  // by role
  for (std::uint32_t r = 0; r < players.size(); ++r)
    for (const std::uint32_t rank : program.roles[r].ranks)
      if (const std::uint32_t player = program.player_of(rank); program.rank_of(player) == rank)
        players[r].push_back(player);
  using Messages = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t>;
  Messages sent, unsent;                                                                        // role, axis, by, tag
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> directions;  // their channels
  const auto add = [&](Messages& messages, std::uint32_t r, std::uint32_t axis, std::uint32_t by, std::uint32_t tag) {
    const auto of_role = static_cast<std::uint32_t>(players[r].size());
    const auto [entry, is_new] =
        messages.emplace(std::tuple(r, axis, by, tag), static_cast<std::uint32_t>(participants.size()));
    if (!is_new) return entry->second;
    const auto [direction, is_new_direction] = directions.emplace(std::tuple(r, axis, by), channels);
    if (is_new_direction) channels += of_role;
    for (std::uint32_t index = 0; index < of_role; ++index) {
      participants.push_back(2);
      times.push_back(program.ranks_of(players[r][index]));
      channel.push_back(direction->second + index);
    }
    return entry->second;
  };
  const auto each = [&](InstructionKind kind, const auto& visit) {
    for (std::uint32_t r = 0; r < program.roles.size(); ++r) {
      const Role& role = program.roles[r];
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.kind[i] != kind) continue;
        const auto size = static_cast<std::int64_t>(program.mesh.axes.at(role.peer[i]).size);
        const auto by =
            static_cast<std::uint32_t>(((kind == InstructionKind::send ? 1 : -1) * role.by[i] % size + size) % size);
        visit(r, i, by == 0 ? 0 : role.peer[i], by);  // to itself: along whatever axis
      }
    }
  };
  each(InstructionKind::send, [&](std::uint32_t r, std::uint32_t i, std::uint32_t axis, std::uint32_t by) {
    first_[r][i] = add(sent, r, axis, by, program.roles[r].tag[i]);
  });
  each(InstructionKind::recv, [&](std::uint32_t r, std::uint32_t i, std::uint32_t axis, std::uint32_t by) {
    const Role& role = program.roles[r];
    first_[r][i] = static_cast<std::uint32_t>(received_.size());
    for (std::uint32_t index = 0; index < players[r].size(); ++index) {
      const std::uint32_t rank = program.rank_of(players[r][index]);
      const Program::Place& source = places[program.player_of(program.partner(role, rank, i))];
      const auto message = sent.find(std::tuple(source.role, axis, by, role.tag[i]));
      received_.push_back(message != sent.end() ? message->second + source.index
                                                : add(unsent, r, axis, by, role.tag[i]) + index);
    }
  });
}

}  // namespace sim
