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

  for (std::uint32_t r = 0; r < program.roles.size(); ++r) {
    const Role& role = program.roles[r];
    std::vector<std::uint32_t>& first = first_.emplace_back(role.size(), kNone);
    std::vector<std::uint32_t> posted(program.groups.size(), 0);  // collectives
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::collective) first[i] = posted[role.peer[i]]++;
    for (std::uint32_t g = 0; g < program.groups.size(); ++g)
      for (std::uint32_t rank : role.ranks)
        if (const std::uint32_t list = list_of[g][rank]; list != kNone)
          collectives[g][list] = std::max(collectives[g][list], posted[g]);
  }
  match_messages(program);

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

/// A message is known by its sender, the direction in which it goes and its tag. One
/// that nobody sends, by its receiver.
void TransferMatching::match_messages(const Program& program) {
  using Messages = std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t>;
  Messages sent, unsent;                                                                        // role, axis, by, tag
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> directions;  // their channels
  const auto add = [&](Messages& messages, std::uint32_t r, std::uint32_t axis, std::uint32_t by, std::uint32_t tag) {
    const auto ranks = static_cast<std::uint32_t>(program.roles[r].ranks.size());
    const auto [entry, is_new] =
        messages.emplace(std::tuple(r, axis, by, tag), static_cast<std::uint32_t>(participants.size()));
    if (!is_new) return entry->second;
    const auto [direction, is_new_direction] = directions.emplace(std::tuple(r, axis, by), channels);
    if (is_new_direction) channels += ranks;
    for (std::uint32_t index = 0; index < ranks; ++index) {
      participants.push_back(2);
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
  const std::vector<Program::Place> places = program.places();
  each(InstructionKind::recv, [&](std::uint32_t r, std::uint32_t i, std::uint32_t axis, std::uint32_t by) {
    const Role& role = program.roles[r];
    first_[r][i] = static_cast<std::uint32_t>(received_.size());
    for (std::uint32_t index = 0; index < role.ranks.size(); ++index) {
      const Program::Place& source = places[program.partner(role, role.ranks[index], i)];
      const auto message = sent.find(std::tuple(source.role, axis, by, role.tag[i]));
      received_.push_back(message != sent.end() ? message->second + source.index
                                                : add(unsent, r, axis, by, role.tag[i]) + index);
    }
  });
}

}  // namespace sim
