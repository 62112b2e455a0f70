// The optimizer: one update per parameter, in the model's order (torch.optim goes through the parameters so).
//
//   before                       after
//   8 compute w5 node=conv1 …    8 compute w5 node=conv1 …
//                                9 update w6 node=conv1.weight : conv1.weight grad.conv1.weight
//                                  conv1.weight.momentum_buffer -> conv1.weight conv1.weight.momentum_buffer
//                               10 update w7 node=conv1.bias : conv1.bias grad.conv1.bias conv1.bias.momentum_buffer
//                                  -> conv1.bias conv1.bias.momentum_buffer
#include "sim/lower/pass/pass.hpp"

namespace sim {

void add_updates(Draft& draft, const Model& model) {
  for (const DraftParameter& parameter : draft.parameters) {
    if (!parameter.is_home) continue;
    const TensorSpec spec = draft.role.tensors[parameter.weight].spec;
    const OpInstance op{model.optimizer.kind, model.optimizer.attributes, {spec}};
    Instruction update{.kind = InstructionKind::update,
                       .work = draft.works->add_elementwise(*op.kind, op.attributes, Pass::update, spec),
                       .node = draft.names->add(parameter.name),
                       .reads = {parameter.weight, parameter.gradient},
                       .writes = {parameter.weight}};
    for (const SavedSpec& state : op.signature().saved) {
      update.writes.push_back(draft.role.add_tensor(parameter.name + "." + state.name, state.spec,
                                                    TensorClass::optimizer, true, {Initial::Kind::constant, 0}));
      update.reads.push_back(update.writes.back());
    }
    draft.list.push_back(std::move(update));
  }
}

}  // namespace sim
