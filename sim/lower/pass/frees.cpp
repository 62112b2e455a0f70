// Frees every storage after its last use. What a transfer reads or writes is in use until its wait.
//
//   before                                   after
//   3 compute w1 node=fc1 backward : …       3 compute w1 node=fc1 backward : … ; free relu1#0 grad.fc1#0
#include "sim/lower/pass/pass.hpp"

namespace sim {

void add_frees(Draft& draft) {
  std::vector<std::size_t> last(draft.role.storages.size(), 0);
  std::vector<bool> used(draft.role.storages.size());
  std::vector<std::size_t> posted(draft.tickets, 0);
  auto use = [&](const Instruction& instruction, std::size_t at) {
    for (const auto* operands : {&instruction.reads, &instruction.writes})
      for (std::uint32_t tensor : *operands) {
        const std::uint32_t storage = draft.role.tensors[tensor].storage;
        last[storage] = at;
        used[storage] = true;
      }
  };
  for (std::size_t i = 0; i < draft.list.size(); ++i) {
    const DraftInstruction& item = draft.list[i];
    use(item.instruction, i);
    if (item.ticket != kNone) posted[item.ticket] = i;
    if (item.instruction.kind == InstructionKind::wait) use(draft.list[posted[item.instruction.awaits]].instruction, i);
  }
  for (std::uint32_t s = 0; s < last.size(); ++s)
    if (used[s] && !draft.role.storages[s].persistent) draft.list[last[s]].instruction.frees.push_back(s);
}

}  // namespace sim
