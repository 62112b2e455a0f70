// DDP's broadcast_buffers: before each forward, rank 0's buffers go to all replicas, coalesced into one flat tensor per
// dtype. Source: torch/nn/parallel/distributed.py _sync_buffers → torch::distributed broadcast_coalesced.
//
//   before                       after
//   0 compute w0 node=conv1 …    0 copy w6 node=buffers.f32 : bn1.running_mean bn1.running_var -> buffers.f32
//                                1 collective t0 kind=broadcast group=dp root=0 … : buffers.f32 -> buffers.f32
//                                2 wait t0 node=buffers.f32
//                                3 copy w7 node=buffers.f32 : buffers.f32.0 -> bn1.running_mean
//                                4 copy w7 node=buffers.f32 : buffers.f32.1 -> bn1.running_var
//                                5 compute w0 node=conv1 …
#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/lower/pass/pass.hpp"

namespace sim {

void add_buffer_broadcast(Draft& draft, std::uint32_t group) {
  std::vector<Dtype> dtypes;
  for (std::uint32_t buffer : draft.buffers)
    if (const Dtype dtype = draft.role.tensors[buffer].spec.dtype;
        std::find(dtypes.begin(), dtypes.end(), dtype) == dtypes.end())
      dtypes.push_back(dtype);

  std::vector<Instruction> rest = std::exchange(draft.list, {});
  for (const Dtype dtype : dtypes) {
    std::vector<std::uint32_t> buffers;
    std::vector<TensorSpec> specs;
    for (std::uint32_t buffer : draft.buffers)
      if (draft.role.tensors[buffer].spec.dtype == dtype) {
        buffers.push_back(buffer);
        specs.push_back(draft.role.tensors[buffer].spec);
      }
    const std::string name = fmt::format("buffers.{}", to_string(dtype));
    const std::uint32_t node = draft.names->add(name);
    const Draft::Flat flat = draft.add_flat(name, specs);
    draft.copy("cat", {}, draft.role.tensors[flat.tensor].spec, buffers, {flat.tensor}, node);
    draft.post_collective(CollectiveKind::broadcast, group, flat.tensor, node);
    for (std::size_t i = 0; i < buffers.size(); ++i) draft.scaled_copy(flat.slices[i], buffers[i], 1, node);
  }
  std::ranges::move(rest, std::back_inserter(draft.list));
}

}  // namespace sim
