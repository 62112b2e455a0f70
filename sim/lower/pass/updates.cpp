// The optimizer: all parameters that are at home here in one instruction, in the model's order, as torch.optim's fused
// and foreach implementations update them.
//
//   before                       after
//   8 compute w5 node=conv1 …    8 compute w5 node=conv1 …
//                                9 update w6 : conv1.weight conv1.bias grad.conv1.weight grad.conv1.bias
//                                  conv1.weight.momentum_buffer conv1.bias.momentum_buffer -> conv1.weight conv1.bias
//                                  conv1.weight.momentum_buffer conv1.bias.momentum_buffer
//
// Of units the rank's parts are updated. Where the weights are there before the next step (ZeRO 1 and 2), unit by unit,
// because everyone's part then goes to all:
//
//                                9 update w6 node=unit0 : unit0.own unit0.sum -> unit0.own
//                               10 collective t1 kind=all_gather group=dp node=unit0 : unit0.own -> unit0.all
//                               11 wait t1 node=unit0
#include "sim/lower/pass/pass.hpp"

namespace sim {

void add_update(Draft& draft, const OpInstance& optimizer, std::uint32_t label,
                const std::vector<Updated>& parameters) {
  if (parameters.empty()) return;
  OpInstance op{optimizer.kind, optimizer.attributes, {}};
  Instruction update{.kind = InstructionKind::update, .node = label};
  for (const Updated& parameter : parameters) {
    op.inputs.push_back(draft.role.tensors[parameter.weight].spec.flat());
    update.reads.push_back(parameter.weight);
    update.writes.push_back(parameter.weight);
  }
  for (const Updated& parameter : parameters) update.reads.push_back(parameter.gradient);
  const std::vector<SavedSpec> states = op.signature().saved;
  for (std::size_t s = 0; s < states.size(); ++s) {
    const Updated& of = parameters[s % parameters.size()];
    const TensorSpec& like = draft.role.tensors[of.weight].spec;
    const TensorSpec spec = states[s].spec.shape.empty() ? states[s].spec : like;
    update.writes.push_back(draft.role.add_tensor(draft.names->at(of.label) + "." + states[s].name, spec,
                                                  TensorClass::optimizer, true, {Initial::Kind::constant, 0}));
    update.reads.push_back(update.writes.back());
  }
  if (draft.loss_scale) update.reads.push_back(draft.loss_scale->found);
  update.work = draft.works->add({std::move(op), Pass::update, 0});
  draft.list.push_back(std::move(update));
}

void add_updates(Draft& draft, const Model& model) {
  std::vector<Updated> parameters;
  if (draft.units.empty())
    for (const DraftParameter& parameter : draft.parameters)
      if (parameter.is_home)
        parameters.push_back({draft.names->add(parameter.name), parameter.weight, parameter.gradient});
  for (const DraftUnit& unit : draft.units) {
    const Updated part{unit.label, unit.own, unit.sum};
    if (unit.is_frozen) continue;
    if (unit.is_gathered) {
      parameters.push_back(part);
      continue;
    }
    add_update(draft, model.optimizer, unit.label, {part});
    if (unit.is_half) draft.scaled_copy(unit.own, unit.given, 1, unit.label);
    draft.post_collective(CollectiveKind::all_gather, unit.group, 0, {unit.given}, {unit.all}, unit.label);
  }
  add_update(draft, model.optimizer, kNone, parameters);
  if (const std::optional<DraftLossScale>& of = draft.loss_scale)
    draft.copy("update_scale", {}, draft.role.tensors[of->scale].spec, {of->scale, of->growth, of->found},
               {of->scale, of->growth}, draft.names->add("loss_scale"));
}

}  // namespace sim
