// Live tensor bytes of every rank, from the Program alone.
//
//   Memory memory = peak_memory(program.roles[0]);
//   memory.peak_bytes; memory.at_peak[int(TensorClass::activation)];
#pragma once

#include <array>
#include <span>

#include "sim/program/program.hpp"

namespace sim {

struct Memory {
  std::int64_t peak_bytes = 0;
  std::array<std::int64_t, kTensorClasses> at_peak{};  // by TensorClass, at the moment of the peak
  std::uint32_t peak_instruction = 0;
  std::int64_t persistent_bytes = 0;
};
Memory peak_memory(const Role& role);
/// The same with what ops allocate while they run: what an allocator sees. `workspace_bytes`: by work (Prices).
double peak_with_workspace(const Role& role, std::span<const double> workspace_bytes);

/// Freed blocks of this size or more are kept for the next request of the very same size (backend/machine/allocator.hpp).
constexpr std::int64_t kReusedFrom = std::int64_t{64} << 10;
/// What such an allocator holds of the system's memory at the end of several steps: blocks of a size that nobody asks
/// for again stay. An op's workspace counts as one block.
double held_with_reuse(const Role& role, std::span<const double> workspace_bytes);

}  // namespace sim
