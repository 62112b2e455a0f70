// Live tensor bytes of every rank, from the Program and what its transport stages, and whether they fit.
//
//   Memory memory = peak_memory(program.roles[0], staging_of(program, program.roles[0], cluster.link().transport));
//   memory.peak_bytes; memory.at_peak[int(TensorClass::activation)];
//   MemoryFit fit = fit_memory(program, cluster);
//   fit.needed_bytes() <= fit.capacity_bytes
//
// `staging` (by instruction, staging.hpp) counts as communication, from the post to the end of the wait; empty: none.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"
#include "sim/program/staging.hpp"

namespace sim {

struct Memory {
  std::int64_t peak_bytes = 0;
  std::array<std::int64_t, kTensorClasses> at_peak{};  // by TensorClass, at the moment of the peak
  std::uint32_t peak_instruction = 0;
  std::int64_t persistent_bytes = 0;
};
Memory peak_memory(const Role& role, std::span<const Staging> staging = {});
/// The same with what ops allocate while they run: what an allocator sees. `workspace_bytes`: by work (Costs).
double peak_with_workspace(const Role& role, std::span<const double> workspace_bytes,
                           std::span<const Staging> staging = {});

/// What memory is needed for, in the words of a report: parameters with the buffers of batch norm, activations with the
/// inputs; workspace is what ops allocate while they run.
enum class MemoryUse : std::uint8_t {
  parameters,
  gradients,
  optimizer_states,
  activations,
  communication_buffers,
  workspace
};
constexpr int kMemoryUses = 6;
inline constexpr EnumNames<MemoryUse, kMemoryUses> kMemoryUseNames{
    "use of memory",
    {"parameters", "gradients", "optimizer states", "activations", "communication buffers", "workspace"}};
inline std::string_view to_string(MemoryUse use) { return kMemoryUseNames.of(use); }
using MemoryUses = std::array<std::int64_t, kMemoryUses>;  // bytes
/// At the peak of peak_with_workspace. `workspace_bytes` may be empty: none.
MemoryUses uses_at_peak(const Role& role, std::span<const double> workspace_bytes = {},
                        std::span<const Staging> staging = {});

/// The memory that least is left of: of a device, or of this whole machine where the devices are its cores.
struct MemoryFit {
  MemoryUses needed{};
  std::int64_t capacity_bytes = 0;  // 0: not known
  std::uint32_t devices = 0;        // that the ranks sit on; fewer than the ranks: they share

  [[nodiscard]] std::int64_t needed_bytes() const;
};
/// The ranks of one memory are added up as if all had their peak at once. Tensors and workspace only: what the process
/// holds beside them (the framework itself, a CUDA context) isn't in it.
MemoryFit fit_memory(const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes = {});

/// Freed blocks of this size or more are kept for the next request of the very same size (backend/machine/allocator.hpp).
constexpr std::int64_t kReusedFrom = std::int64_t{64} << 10;
/// What such an allocator holds of the system's memory at the end of several steps: blocks of a size that nobody asks
/// for again stay. An op's workspace counts as one block.
double memory_with_reuse(const Role& role, std::span<const double> workspace_bytes,
                         std::span<const Staging> staging = {});

}  // namespace sim
