// R5: parameters live at the root; before the forward everyone else gets a copy, many in one flat tensor
// (torch/nn/parallel/replicate.py → broadcast_coalesced). The others' weights are views of what they receive.
//
//   root                                                          the others
//   0 copy w7 node=parameters0 : fc.weight -> parameters0.0
//   1 collective t0 kind=broadcast … : parameters0 -> parameters0 0 collective t0 kind=broadcast … : -> parameters0
//   2 wait t0 node=parameters0                                    1 wait t0 node=parameters0
#include "sim/lower/pass/pass.hpp"

namespace sim {

void add_parameter_copies(Draft& draft, const ParameterCycle& cycle, const GroupOf& group_of) {
  std::vector<std::uint32_t> copied;
  for (std::uint32_t p = 0; p < draft.parameters.size(); ++p)
    if (draft.parameters[p].copy_axes != 0) copied.push_back(p);
  for (const ParameterBucket& bucket : parameter_buckets(draft, copied, cycle, &DraftParameter::copy_axes)) {
    const std::string name = fmt::format("parameters{}", bucket.index);
    const std::uint32_t label = draft.names->add(name);
    const bool is_home = draft.parameters[bucket.parameters[0]].is_home;
    const Draft::Flat flat = draft.add_flat(name, bucket.specs);
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      DraftParameter& parameter = draft.parameters[bucket.parameters[i]];
      if (is_home)
        draft.scaled_copy(parameter.weight, flat.slices[i], 1, label);
      else
        parameter.weight = draft.role.add_view(parameter.name, parameter.spec, flat.slices[i]);
    }
    std::vector<std::uint32_t> given;
    if (is_home) given = {flat.tensor};
    draft.wait(draft.post_collective(CollectiveKind::broadcast, group_of(bucket.axes), 0, given, {flat.tensor}, label),
               label);
  }
}

}  // namespace sim
