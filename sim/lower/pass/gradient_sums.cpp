// The sums of gradients that ranks have made of a part of the samples each.
//
// DDP's buckets: each is filled (scaled by 1/replicas), all-reduced, waited for and copied back. Buckets are persistent
// tensors beside the gradients (gradient_as_bucket_view=False, PyTorch's default).
//
//   before                                   after, blocking: one bucket after the other, after the backward
//   7 compute w4 node=fc backward …          7 compute w4 node=fc backward …
//   8 compute w5 node=conv1 backward …       8 compute w5 node=conv1 backward …
//                                            9 copy w7 node=bucket0 scale=0.5 : grad.fc.bias -> bucket0.0
//                                           10 copy w8 node=bucket0 scale=0.5 : grad.fc.weight -> bucket0.1
//                                           11 collective t0 kind=all_reduce group=dp node=bucket0 : bucket0 -> bucket0
//                                           12 wait t0 node=bucket0
//                                           13 copy w7 node=bucket0 : bucket0.0 -> grad.fc.bias
//                                           14 copy w8 node=bucket0 : bucket0.1 -> grad.fc.weight
//
//   before                                   after, overlap: as PyTorch's reducer does from its second step on
//   7 compute w4 node=fc backward …          7 compute w4 node=fc backward …
//                                            8 copy w7 node=bucket0 scale=0.5 : grad.fc.bias -> bucket0.0
//                                            9 copy w8 node=bucket0 scale=0.5 : grad.fc.weight -> bucket0.1
//                                           10 collective t0 kind=all_reduce group=dp node=bucket0 : bucket0 -> bucket0
//   8 compute w5 node=conv1 backward …      11 compute w5 node=conv1 backward …
//                                           12 wait t0 node=bucket0
//                                           13 copy w7 node=bucket0 : bucket0.0 -> grad.fc.bias
//                                           14 copy w8 node=bucket0 : bucket0.1 -> grad.fc.weight
//
// With microbatches this is done in the last one's backward, or in every one's: then the gradients, which already hold
// the sums of the earlier ones, are sent again, as DDP does outside of no_sync. Where a rank's microbatches reach into each
// other, one's gradients are summed when all of them are there: what came in early would be lost with the copy back.
//
// Where parameters live at the root (R5), buckets are made anew each step, in the parameters' order, and summed there
// only; the updates read the sums in them. The gradients themselves live until all are summed, on the root, too:
// nn.DataParallel hands the lists of all replicas to one call (torch/nn/parallel/_functions.py, ReduceAddCoalesced).
//
//   root                                                          the others
//   9 copy w7 node=bucket0 : grad.fc.weight -> bucket0.0          9 copy w7 node=bucket0 : grad.fc.weight -> bucket0.0
//   10 collective t0 kind=reduce … : bucket0 -> bucket0           10 collective t0 kind=reduce … : bucket0 ->
//   11 wait t0 node=bucket0 ; free grad.fc.weight                 11 wait t0 node=bucket0 ; free bucket0 grad.fc.weight
//
// In place (R3), each gradient is all-reduced where it lies; or, if the layout is rooted, reduced to the first rank
// and broadcast.
#include <algorithm>
#include <utility>

#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"

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
    buckets.push_back(std::exchange(open, {}));
    filled = 0;
    limit = cap_bytes;
  }
  if (!open.empty()) buckets.push_back(std::move(open));
  return buckets;
}

std::vector<std::vector<std::uint32_t>> chunk_assignment(const std::vector<std::int64_t>& sizes, double cap_bytes) {
  std::vector<std::vector<std::uint32_t>> chunks;
  double filled = 0;
  for (std::uint32_t i = 0; i < sizes.size(); ++i) {
    const auto size = static_cast<double>(sizes[i]);
    if (chunks.empty() || (filled > 0 && filled + size > cap_bytes)) {
      chunks.emplace_back();
      filled = 0;
    }
    chunks.back().push_back(i);
    filled += size;
  }
  return chunks;
}

std::vector<ParameterBucket> parameter_buckets(const Draft& draft, const std::vector<std::uint32_t>& parameters,
                                               const ParameterCycle& cycle, std::uint32_t DraftParameter::*axes) {
  constexpr double kMiB = 1048576;
  std::vector<std::uint32_t> masks;
  for (const std::uint32_t p : parameters)
    if (const std::uint32_t mask = draft.parameters[p].*axes; std::ranges::find(masks, mask) == masks.end())
      masks.push_back(mask);
  std::vector<ParameterBucket> buckets;
  for (const std::uint32_t mask : masks) {
    std::vector<std::uint32_t> of_mask;
    std::vector<std::int64_t> sizes;
    for (const std::uint32_t p : parameters)
      if (draft.parameters[p].*axes == mask) {
        of_mask.push_back(p);
        sizes.push_back(draft.parameters[p].spec.bytes());
      }
    const double cap = cycle.bucket_MiB * kMiB;
    for (const auto& indices :
         cycle.at_root ? chunk_assignment(sizes, cap) : bucket_assignment(sizes, cycle.first_bucket_MiB * kMiB, cap)) {
      ParameterBucket& bucket = buckets.emplace_back(ParameterBucket{buckets.size(), mask, {}, {}});
      for (const std::uint32_t i : indices) {
        bucket.parameters.push_back(of_mask[i]);
        bucket.specs.push_back(draft.parameters[of_mask[i]].spec);
      }
    }
  }
  if (cycle.at_root) return buckets;
  // They are sent in the order in which they are full, whatever axes they are summed over.
  std::ranges::stable_sort(buckets, {}, [&](const ParameterBucket& bucket) {
    return std::ranges::find(parameters, bucket.parameters.back()) - parameters.begin();
  });
  for (std::size_t b = 0; b < buckets.size(); ++b) buckets[b].index = b;
  return buckets;
}

namespace {

void sum_in_place(Draft& draft, const std::vector<std::uint32_t>& parameters, bool rooted, const GroupOf& group_of) {
  for (const std::uint32_t p : parameters) {
    const DraftParameter& parameter = draft.parameters[p];
    const std::uint32_t group = group_of(parameter.sum_axes), label = draft.names->add(parameter.name);
    if (!rooted) {
      draft.wait(draft.post_collective(CollectiveKind::all_reduce, group, parameter.gradient, label), label);
      continue;
    }
    const std::vector<std::uint32_t> all{parameter.gradient}, at_first(parameter.is_first ? 1 : 0, parameter.gradient);
    draft.wait(draft.post_collective(CollectiveKind::reduce, group, 0, all, at_first, label), label);
    draft.wait(draft.post_collective(CollectiveKind::broadcast, group, 0, at_first, all, label), label);
  }
}

struct Bucket {
  std::uint32_t label = kNone, group = kNone;
  ParameterBucket of;
  std::vector<std::uint32_t> gradients;  // tensors
  Draft::Flat flat;
};

std::vector<Bucket> make_buckets(Draft& draft, const std::vector<std::uint32_t>& parameters,
                                 const ParameterCycle& cycle, const GroupOf& group_of) {
  std::vector<Bucket> buckets;
  for (ParameterBucket& of : parameter_buckets(draft, parameters, cycle, &DraftParameter::sum_axes)) {
    const std::string name = fmt::format("bucket{}", of.index);
    Bucket& bucket = buckets.emplace_back(Bucket{draft.names->add(name), group_of(of.axes), std::move(of), {}, {}});
    for (const std::uint32_t p : bucket.of.parameters) bucket.gradients.push_back(draft.parameters[p].gradient);
    bucket.flat = draft.add_flat(name, bucket.of.specs, /*persistent=*/!cycle.at_root);
  }
  return buckets;
}

}  // namespace

void add_gradient_sums(Draft& draft, const Layout& layout, bool mean, const GroupOf& group_of) {
  const ParameterCycle& cycle = layout.parameters;
  const std::uint32_t axes_of_rows = Plan::axes_of(layout.rows, Placement::Kind::shard);
  std::vector<std::uint32_t> parameters;
  for (const std::uint32_t p : draft.arrival)
    if (draft.parameters[p].sum_axes != 0) parameters.push_back(p);
  if (cycle.at_root) std::ranges::sort(parameters);
  if (cycle.in_place) return sum_in_place(draft, parameters, layout.rooted, group_of);
  const std::vector<Bucket> buckets = make_buckets(draft, parameters, cycle, group_of);
  std::vector<std::uint32_t> tickets(buckets.size(), kNone);
  const auto fill = [&](const Bucket& bucket, std::size_t i) {
    const double ranks = cycle.is_mean && mean ? layout.mesh.ranks_along(bucket.of.axes & axes_of_rows) : 1;
    draft.scaled_copy(bucket.gradients[i], bucket.flat.slices[i], 1.0 / ranks, bucket.label);
  };
  const auto post = [&](std::size_t b) {
    const Bucket& bucket = buckets[b];
    if (!cycle.at_root) {
      tickets[b] = draft.post_collective(CollectiveKind::all_reduce, bucket.group, bucket.flat.tensor, bucket.label);
      return;
    }
    const bool is_root = draft.parameters[bucket.of.parameters[0]].is_home;
    const std::vector<std::uint32_t> sum(is_root ? 1 : 0, bucket.flat.tensor);
    tickets[b] =
        draft.post_collective(CollectiveKind::reduce, bucket.group, 0, {bucket.flat.tensor}, sum, bucket.label);
  };
  const auto empty = [&](std::size_t b) {
    const Bucket& bucket = buckets[b];
    draft.wait(tickets[b], bucket.label);
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      DraftParameter& parameter = draft.parameters[bucket.of.parameters[i]];
      if (!cycle.at_root)
        draft.scaled_copy(bucket.flat.slices[i], bucket.gradients[i], 1, bucket.label);
      else if (parameter.is_home)
        parameter.gradient = draft.role.add_view("sum." + parameter.name, parameter.spec, bucket.flat.slices[i]);
    }
  };

  const std::vector<std::vector<std::size_t>> written = draft.writes();
  const std::size_t rounds = cycle.every_microbatch ? static_cast<std::size_t>(layout.microbatches) : 1;
  // After which instruction; each microbatch writes it as often as there are nodes that read its parameter.
  const auto complete = [&](std::size_t round, std::uint32_t gradient) {
    return written[gradient].at((round + 1) * written[gradient].size() / rounds - 1);
  };
  bool overlap = cycle.overlap;
  for (std::size_t r = 0; r + 1 < rounds; ++r) {
    std::size_t last = 0, next = draft.list.size();  // of this microbatch, and the next one's first
    for (const Bucket& bucket : buckets)
      for (const std::uint32_t gradient : bucket.gradients) {
        last = std::max(last, complete(r, gradient));
        next = std::min(next, written[gradient].at((r + 1) * written[gradient].size() / rounds));
      }
    overlap = overlap && last < next;
  }
  std::vector<Instruction> backward = std::exchange(draft.list, {});
  std::size_t round = 0, b = 0, i = 0;  // the next gradient to be put into its bucket; they arrive in this order
  for (std::size_t at = 0; at < backward.size(); ++at) {
    draft.list.push_back(std::move(backward[at]));
    while (b < buckets.size() && complete(round, buckets[b].gradients[i]) <= at) {
      if (overlap) fill(buckets[b], i);
      if (++i < buckets[b].gradients.size()) continue;
      if (overlap) post(b);
      ++b;
      i = 0;
    }
    const bool is_over = round + 1 == rounds ? at + 1 == backward.size() : b == buckets.size();
    if (!is_over || buckets.empty()) continue;
    for (std::size_t k = 0; k < buckets.size(); ++k) {
      for (std::size_t g = 0; !overlap && g < buckets[k].gradients.size(); ++g) fill(buckets[k], g);
      if (!overlap) post(k);
      empty(k);
    }
    ++round;
    b = 0;
  }
  if (cycle.at_root)
    for (const Bucket& bucket : buckets)
      for (const std::uint32_t gradient : bucket.gradients)
        draft.kept.emplace_back(gradient, static_cast<std::uint32_t>(draft.list.size()) - 1);
}

}  // namespace sim
