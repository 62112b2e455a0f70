// DDP's gradient buckets: each is filled (scaled by 1/replicas), all-reduced, waited for and copied back. Buckets are
// persistent tensors beside the gradients (gradient_as_bucket_view=False, PyTorch's default).
//
//   before                                   after, blocking: one bucket after the other, after the backward
//   7 compute w4 node=fc backward …          7 compute w4 node=fc backward …
//   8 compute w5 node=conv1 backward …       8 compute w5 node=conv1 backward …
//                                            9 copy w7 node=bucket0 scale=0.5 : grad.fc.bias -> bucket0.0
//                                           10 copy w8 node=bucket0 scale=0.5 : grad.fc.weight -> bucket0.1
//                                           11 collective kind=all_reduce group=data node=bucket0 : bucket0 -> bucket0
//                                           12 wait on=11 node=bucket0
//                                           13 copy w7 node=bucket0 : bucket0.0 -> grad.fc.bias
//                                           14 copy w8 node=bucket0 : bucket0.1 -> grad.fc.weight
//
//   before                                   after, overlap: as PyTorch's reducer does from its second step on
//   7 compute w4 node=fc backward …          7 compute w4 node=fc backward …
//                                            8 copy w7 node=bucket0 scale=0.5 : grad.fc.bias -> bucket0.0
//                                            9 copy w8 node=bucket0 scale=0.5 : grad.fc.weight -> bucket0.1
//                                           10 collective kind=all_reduce group=data node=bucket0 : bucket0 -> bucket0
//   8 compute w5 node=conv1 backward …      11 compute w5 node=conv1 backward …
//                                           12 wait on=10 node=bucket0
//                                           13 copy w7 node=bucket0 : bucket0.0 -> grad.fc.bias
//                                           14 copy w8 node=bucket0 : bucket0.1 -> grad.fc.weight
#include <utility>

#include "sim/lower/pass/pass.hpp"

namespace sim {
namespace {

struct Bucket {
  std::uint32_t node = kNone;
  std::vector<std::uint32_t> gradients;  // tensors
  Draft::Flat flat;
};

std::vector<Bucket> make_buckets(Draft& draft, const Strategy& strategy) {
  constexpr double kMiB = 1048576;
  std::vector<std::int64_t> sizes;
  for (std::uint32_t parameter : draft.arrival)
    sizes.push_back(draft.role.tensors[draft.parameters[parameter].gradient].spec.bytes());
  std::vector<Bucket> buckets;
  for (const auto& indices : bucket_assignment(sizes, strategy.first_bucket_MiB * kMiB, strategy.bucket_MiB * kMiB)) {
    const std::string name = fmt::format("bucket{}", buckets.size());
    Bucket& bucket = buckets.emplace_back();
    bucket.node = draft.names->add(name);
    for (std::uint32_t i : indices) bucket.gradients.push_back(draft.parameters[draft.arrival[i]].gradient);
    bucket.flat = draft.add_flat(name, bucket.gradients, /*persistent=*/true);
  }
  return buckets;
}

}  // namespace

std::vector<std::vector<std::uint32_t>> bucket_assignment(const std::vector<std::int64_t>& sizes,
                                                          double first_cap_bytes, double cap_bytes) {
  std::vector<std::vector<std::uint32_t>> buckets;
  double filled = 0, limit = first_cap_bytes;
  std::vector<std::uint32_t> open;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    open.push_back(i);
    filled += static_cast<double>(sizes[i]);
    if (filled < limit) continue;
    buckets.push_back(std::exchange(open, {}));
    filled = 0;
    limit = cap_bytes;
  }
  if (!open.empty()) buckets.push_back(std::move(open));
  return buckets;
}

void add_gradient_buckets(Draft& draft, const Strategy& strategy, std::uint32_t replicas, std::uint32_t group) {
  const std::vector<Bucket> buckets = make_buckets(draft, strategy);
  std::vector<std::uint32_t> tickets(buckets.size(), kNone);
  auto fill = [&](const Bucket& bucket, std::size_t i) {
    draft.scaled_copy(bucket.gradients[i], bucket.flat.slices[i], 1.0 / replicas, bucket.node);
  };
  auto post = [&](std::size_t b) {
    tickets[b] = draft.post_collective(CollectiveKind::all_reduce, group, buckets[b].flat.tensor, buckets[b].node);
  };
  auto empty = [&](std::size_t b) {
    draft.wait(tickets[b], buckets[b].node);
    for (std::size_t i = 0; i < buckets[b].gradients.size(); ++i)
      draft.scaled_copy(buckets[b].flat.slices[i], buckets[b].gradients[i], 1, buckets[b].node);
  };

  if (!strategy.overlap) {
    for (std::size_t b = 0; b < buckets.size(); ++b) {
      for (std::size_t i = 0; i < buckets[b].gradients.size(); ++i) fill(buckets[b], i);
      post(b);
      empty(b);
    }
    return;
  }
  const std::vector<DraftInstruction> backward = std::exchange(draft.list, {});
  std::vector<std::size_t> complete(draft.role.tensors.size(), 0);  // by tensor: the last instruction that writes it
  for (std::size_t at = 0; at < backward.size(); ++at)
    for (std::uint32_t tensor : backward[at].instruction.writes) complete[tensor] = at;
  std::size_t b = 0, i = 0;  // the next gradient to be put into its bucket; they arrive in this order
  for (std::size_t at = 0; at < backward.size(); ++at) {
    draft.list.push_back(backward[at]);
    while (b < buckets.size() && complete[buckets[b].gradients[i]] <= at) {
      fill(buckets[b], i);
      if (++i < buckets[b].gradients.size()) continue;
      post(b++);
      i = 0;
    }
  }
  for (std::size_t done = 0; done < buckets.size(); ++done) empty(done);
}

}  // namespace sim
