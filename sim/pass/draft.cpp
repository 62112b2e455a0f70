#include "sim/error.hpp"
#include "sim/pass/pass.hpp"

namespace sim {

std::uint32_t Draft::name_index(const std::string& name) {
  // Names are shared by all drafts of a program.
  if (names_.empty())
    for (std::uint32_t i = 0; i < program->names.size(); ++i) names_.emplace(program->names[i], i);
  const auto [entry, is_new] = names_.emplace(name, static_cast<std::uint32_t>(program->names.size()));
  if (is_new) program->names.push_back(name);
  return entry->second;
}

std::uint32_t Draft::post(const Instruction& instruction) {
  list.push_back({instruction, tickets});
  return tickets++;
}

void Draft::wait(std::uint32_t ticket, std::uint32_t node, std::int32_t microbatch) {
  Instruction wait;
  wait.kind = InstructionKind::wait;
  wait.awaits = ticket;
  wait.node = node;
  wait.microbatch = microbatch;
  list.push_back({wait, kNone});
}

void Draft::scaled_copy(std::uint32_t source, std::uint32_t destination, double scale, std::uint32_t node) {
  Instruction copy;
  copy.kind = InstructionKind::copy;
  // Only the size matters for the cost: flat, so that tensors of equal size share one work.
  const TensorSpec flat{role.tensors[source].spec.dtype, {role.tensors[source].spec.elements()}};
  copy.work = works->add({{&op_table().at("scaled_copy"), {}, {flat}}, Pass::forward, 0});
  copy.node = node;
  copy.scale = scale;
  copy.reads = {source};
  copy.writes = {destination};
  list.push_back({copy, kNone});
}

Role Draft::finish() && {
  std::vector<std::uint32_t> index(tickets, kNone);
  for (DraftInstruction& draft : list) {
    if (draft.instruction.kind == InstructionKind::wait) {
      check_internal(index[draft.instruction.awaits] != kNone, "ticket {} awaited before it is posted",
                     draft.instruction.awaits);
      draft.instruction.awaits = index[draft.instruction.awaits];
    }
    const std::uint32_t at = role.add(draft.instruction);
    if (draft.ticket != kNone) index[draft.ticket] = at;
  }
  return std::move(role);
}

}  // namespace sim
