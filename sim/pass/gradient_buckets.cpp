// DDP's gradient buckets, blocking: after the backward each bucket is filled (scaled by 1/replicas), all-reduced,
// waited for and copied back. Buckets are persistent tensors beside the gradients (gradient_as_bucket_view=False,
// PyTorch's default).
//
//   before                                   after
//   8 compute w5 node=conv1 backward …       8 compute w5 node=conv1 backward …
//                                            9 copy w7 node=bucket0 scale=0.5 : grad.fc.bias -> bucket0.0
//                                           10 copy w8 node=bucket0 scale=0.5 : grad.fc.weight -> bucket0.1
//                                           11 collective kind=all_reduce group=data node=bucket0 : bucket0 -> bucket0
//                                           12 wait on=11 node=bucket0
//                                           13 copy w7 node=bucket0 : bucket0.0 -> grad.fc.bias
//                                           14 copy w8 node=bucket0 : bucket0.1 -> grad.fc.weight
#include "sim/pass/pass.hpp"

namespace sim {

std::vector<std::vector<std::uint32_t>> bucket_assignment(const std::vector<std::int64_t>& sizes,
                                                          double first_cap_bytes, double cap_bytes) {
  std::vector<std::vector<std::uint32_t>> buckets;
  double filled = 0, limit = first_cap_bytes;
  std::vector<std::uint32_t> open;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    open.push_back(i);
    filled += static_cast<double>(sizes[i]);
    if (filled < limit) continue;
    buckets.push_back(std::move(open));
    open.clear();
    filled = 0;
    limit = cap_bytes;
  }
  if (!open.empty()) buckets.push_back(std::move(open));
  return buckets;
}

void add_gradient_buckets(Draft& draft, const Strategy& strategy, std::uint32_t replicas, std::uint32_t group,
                          bool transfers) {
  constexpr double kMiB = 1048576;
  std::vector<std::int64_t> sizes;
  for (std::uint32_t parameter : draft.arrival)
    sizes.push_back(draft.role.tensors[draft.parameters[parameter].gradient].spec.bytes());
  const auto buckets = bucket_assignment(sizes, strategy.first_bucket_MiB * kMiB, strategy.bucket_MiB * kMiB);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const std::string name = fmt::format("bucket{}", b);
    const std::uint32_t node = draft.name_index(name);
    std::int64_t elements = 0;
    std::vector<std::uint32_t> gradients, slices;
    for (std::uint32_t i : buckets[b]) {
      gradients.push_back(draft.parameters[draft.arrival[i]].gradient);
      elements += draft.role.tensors[gradients.back()].spec.elements();
    }
    const Dtype dtype = draft.role.tensors[gradients[0]].spec.dtype;
    const std::uint32_t bucket = draft.role.add_tensor(name, {dtype, {elements}}, TensorClass::communication, true,
                                                       {Initial::Kind::constant, 0, 0, 0});
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const TensorSpec& gradient = draft.role.tensors[gradients[i]].spec;
      const std::int64_t bytes = gradient.bytes();
      slices.push_back(
          draft.role.add_view(fmt::format("{}.{}", name, i), {dtype, {gradient.elements()}}, bucket, offset));
      offset += bytes;
      draft.scaled_copy(gradients[i], slices[i], 1.0 / replicas, node);
    }
    if (transfers) {
      Instruction all_reduce;
      all_reduce.kind = InstructionKind::collective;
      all_reduce.collective = CollectiveKind::all_reduce;
      all_reduce.peer = group;
      all_reduce.node = node;
      all_reduce.reads = all_reduce.writes = {bucket};
      draft.wait(draft.post(all_reduce), node);
    }
    for (std::size_t i = 0; i < gradients.size(); ++i) draft.scaled_copy(slices[i], gradients[i], 1, node);
  }
}

}  // namespace sim
