#include "sim/program/unroll.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace sim {

Program unroll(const Program& program, std::uint32_t bodies) {
  std::uint32_t tags = 0;  // that the program uses
  for (const Role& role : program.roles)
    for (const std::uint32_t tag : role.tag) tags = std::max(tags, tag + 1);
  Program flat = program;
  flat.steps = 1;
  for (Role& role : flat.roles) {
    Role list;
    list.name = role.name;
    list.ranks = role.ranks;
    list.tensors = std::move(role.tensors);
    list.storages = std::move(role.storages);
    std::map<std::tuple<InstructionKind, std::uint32_t, std::int32_t, std::uint32_t>, std::uint32_t>
        times;  // of a message
    role.play(bodies, [&](std::uint32_t i) {
      Instruction instruction = role.at(i);
      if (is_message(instruction.kind))
        instruction.tag += tags * times[{instruction.kind, instruction.peer, instruction.by, instruction.tag}]++;
      list.add(instruction);
    });
    role = std::move(list);
  }
  return flat;
}

}  // namespace sim
