// The optimizer: one update per parameter, in the model's order (torch.optim goes through the parameters so).
//
//   before                                   after
//   (backward done)                          9 update w6 node=conv1.weight : conv1.weight grad.conv1.weight
//   conv1.weight.momentum_buffer
#include "sim/lower/pass/pass.hpp"

namespace sim {

void add_updates(Draft& draft, const Model& model) {
  for (const DraftParameter& parameter : draft.parameters) {
    const TensorSpec spec = draft.role.tensors[parameter.weight].spec;
    const OpInstance op{model.optimizer.kind, model.optimizer.attributes, {spec}};
    Instruction update;
    update.kind = InstructionKind::update;
    // An update is elementwise: tensors of equal size share one work.
    update.work = draft.works->add({{op.kind, op.attributes, {{spec.dtype, {spec.elements()}}}}, Pass::update, 0});
    update.node = draft.name_index(parameter.name);
    update.reads = {parameter.weight, parameter.gradient};
    for (const SavedSpec& state : op.signature().saved)
      update.reads.push_back(draft.role.add_tensor(parameter.name + "." + state.name, state.spec,
                                                   TensorClass::optimizer, true, {Initial::Kind::constant, 0, 0, 0}));
    draft.list.push_back({update, kNone});
  }
}

}  // namespace sim
