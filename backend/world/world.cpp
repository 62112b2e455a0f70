#include "backend/world/world.hpp"

namespace backend {

std::vector<at::Tensor> blocks_of(sim::Moved moved, std::span<const at::Tensor> tensors, std::uint32_t members) {
  if (moved != sim::Moved::parts || tensors.size() != 1) return {tensors.begin(), tensors.end()};
  const at::Tensor flat = tensors[0].view({-1});
  const std::int64_t each = flat.numel() / members;
  std::vector<at::Tensor> blocks;
  for (std::int64_t k = 0; k < members; ++k) blocks.push_back(flat.narrow(0, k * each, each));
  return blocks;
}

}  // namespace backend
