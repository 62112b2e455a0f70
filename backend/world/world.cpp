#include "backend/world/world.hpp"

#include <ATen/ops/maximum.h>

#include <algorithm>

#include "sim/error.hpp"

namespace backend {

double SharedClock::late_s(double here_s) const {
  if (starts.empty()) return 0;
  const auto start = std::ranges::lower_bound(starts, here_s, {}, &Start::here_s);
  sim::check_internal(start != starts.end() && start->here_s == here_s, "no step has begun at {} s", here_s);
  return host.on_reference(here_s) - start->reference_s;
}

std::vector<at::Tensor> blocks_of(sim::Moved moved, std::span<const at::Tensor> tensors, std::uint32_t members) {
  if (moved != sim::Moved::parts || tensors.size() != 1) return {tensors.begin(), tensors.end()};
  const at::Tensor flat = tensors[0].view({-1});
  const std::int64_t each = flat.numel() / members;
  std::vector<at::Tensor> blocks;
  for (std::int64_t k = 0; k < members; ++k) blocks.push_back(flat.narrow(0, k * each, each));
  return blocks;
}

void copy_to_itself(std::span<const at::Tensor> reads, std::span<const at::Tensor> writes) {
  for (std::size_t k = 0; k < writes.size(); ++k)
    if (!writes[k].is_same(reads[k])) writes[k].view(-1).copy_(reads[k].view(-1), /*non_blocking=*/true);
}

void reduce_into(at::Tensor& total, const at::Tensor& part, sim::Reduction reduction, bool is_first) {
  if (is_first)
    total.copy_(part, /*non_blocking=*/true);
  else if (reduction == sim::Reduction::max)
    at::maximum_out(total, total, part);
  else
    total.add_(part);
}

}  // namespace backend
