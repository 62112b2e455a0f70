// Frees every storage after its last use. What a transfer reads or writes is in use until its wait.
//
//   before                                   after
//   3 compute w1 node=fc1 backward : …       3 compute w1 node=fc1 backward : … ; free relu1#0 grad.fc1#0
#include <algorithm>

#include "sim/lower/pass/pass.hpp"

namespace sim {

void add_frees(const Draft& draft, std::vector<Instruction>& list, const std::vector<bool>& stays) {
  std::vector<std::uint32_t> last(draft.role.storages.size(), kNone), posted(draft.tickets, kNone);
  auto use = [&](const Instruction& instruction, std::uint32_t at) {
    for (const auto* operands : {&instruction.reads, &instruction.writes})
      for (std::uint32_t tensor : *operands) last[draft.role.tensors[tensor].storage] = at;
  };
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    const Instruction& instruction = list[i];
    use(instruction, i);
    if (is_posted(instruction.kind)) posted[instruction.ticket] = i;
    if (instruction.kind == InstructionKind::wait && posted[instruction.ticket] != kNone)
      use(list[posted[instruction.ticket]], i);
  }
  for (const auto& [tensor, until] : draft.kept) {
    std::uint32_t& end = last[draft.role.tensors[tensor].storage];
    if (end != kNone) end = std::max(end, until);
  }
  for (std::uint32_t s = 0; s < last.size(); ++s)
    if (last[s] != kNone && !draft.role.storages[s].persistent && (stays.empty() || !stays[s]))
      list[last[s]].frees.push_back(s);
}

void add_frees(Draft& draft) { add_frees(draft, draft.list, {}); }

}  // namespace sim
