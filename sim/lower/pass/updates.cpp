// The optimizer: one update per parameter, in the model's order (torch.optim goes through the parameters so).
//
//   before                       after
//   8 compute w5 node=conv1 …    8 compute w5 node=conv1 …
//                                9 update w6 node=conv1.weight : conv1.weight grad.conv1.weight
//                                  conv1.weight.momentum_buffer -> conv1.weight conv1.weight.momentum_buffer
//                               10 update w7 node=conv1.bias : conv1.bias grad.conv1.bias conv1.bias.momentum_buffer
//                                  -> conv1.bias conv1.bias.momentum_buffer
//
// Of a unit the rank's part is updated. Where the weights are there before the next step (ZeRO 1 and 2), everyone's part
// then goes to all:
//
//                                9 update w6 node=unit0 : unit0.own unit0.sum -> unit0.own
//                               10 collective t1 kind=all_gather group=dp node=unit0 : unit0.own -> unit0.all
//                               11 wait t1 node=unit0
#include <utility>

#include "sim/lower/pass/pass.hpp"

namespace sim {
namespace {

void add_update(Draft& draft, const OpInstance& optimizer, std::uint32_t label, std::uint32_t weight,
                std::uint32_t gradient) {
  const TensorSpec spec = draft.role.tensors[weight].spec;
  const OpInstance op{optimizer.kind, optimizer.attributes, {spec}};
  Instruction update{.kind = InstructionKind::update,
                     .work = draft.works->add_elementwise(*op.kind, op.attributes, Pass::update, spec),
                     .node = label,
                     .reads = {weight, gradient},
                     .writes = {weight}};
  for (const SavedSpec& state : op.signature().saved) {
    update.writes.push_back(draft.role.add_tensor(draft.names->at(label) + "." + state.name, state.spec,
                                                  TensorClass::optimizer, true, {Initial::Kind::constant, 0}));
    update.reads.push_back(update.writes.back());
  }
  draft.list.push_back(std::move(update));
}

}  // namespace

void add_updates(Draft& draft, const Model& model) {
  if (draft.units.empty()) {
    for (const DraftParameter& parameter : draft.parameters)
      if (parameter.is_home)
        add_update(draft, model.optimizer, draft.names->add(parameter.name), parameter.weight, parameter.gradient);
    return;
  }
  std::vector<std::pair<std::uint32_t, std::uint32_t>> posted;  // tickets, labels
  for (const DraftUnit& unit : draft.units) {
    add_update(draft, model.optimizer, unit.label, unit.own, unit.sum);
    if (unit.is_gathered) continue;
    posted.emplace_back(
        draft.post_collective(CollectiveKind::all_gather, unit.group, 0, {unit.own}, {unit.all}, unit.label),
        unit.label);
  }
  for (const auto& [ticket, label] : posted) draft.wait(ticket, label);
}

}  // namespace sim
