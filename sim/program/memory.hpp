// Live tensor bytes of every rank, from the Program and what its transport stages, and whether they fit.
//
//   Memory memory = peak_memory(program.roles[0], staging_of(program, program.roles[0], cluster.link().transport));
//   memory.peak_bytes; memory.at_peak[int(TensorClass::activation)];
//   MemoryFit fit = fit_memory(program, cluster);
//   fit.needed_bytes() <= fit.capacity_bytes         // also what a process holds of a GPU beside the Program's tensors
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

/// What memory is needed for, in the words of a report: parameters with the buffers of batch norm, parameter copies in
/// another dtype (torch.autocast's, kept for the backward), activations with the inputs; workspace is what ops allocate
/// while they run. The last three are what PyTorch holds of a GPU beside the Program: what its optimizer makes while it updates (OpKind::foreach_copies), the process's context
/// (Device::context), and the buffers of NCCL's communicators.
enum class MemoryUse : std::uint8_t {
  parameters,
  parameter_copies,
  gradients,
  optimizer_states,
  activations,
  communication_buffers,
  workspace,
  optimizer_temporaries,
  device_context,
  communicators
};
constexpr int kMemoryUses = 10;
inline constexpr EnumNames<MemoryUse, kMemoryUses> kMemoryUseNames{
    "use of memory",
    {"parameters", "parameter copies", "gradients", "optimizer states", "activations", "communication buffers",
     "workspace", "optimizer temporaries", "device context", "communicators"}};
inline std::string_view to_string(MemoryUse use) { return kMemoryUseNames.of(use); }
using MemoryUses = std::array<std::int64_t, kMemoryUses>;  // bytes
/// The uses at the peak of peak_with_workspace. `workspace_bytes` may be empty:
/// none. `temporaries`: held during every update.
MemoryUses uses_at_peak(const Role& role, std::span<const double> workspace_bytes = {},
                        std::span<const Staging> staging = {}, std::int64_t temporaries = 0);
/// Bytes that torch.optim holds beside the states while it updates the role's parameters, with foreach=True.
std::int64_t foreach_temporaries(const Program& program, const Role& role);
/// NCCL communicators of each of the role's ranks: one for every group that it plays a collective in, and one for every
/// rank that it sends to or receives from (torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp).
std::size_t communicators_of(const Program& program, const Role& role);
/// What one of them holds of a GPU, unless the cluster's file says. NCCL gives every ring 20 GB/s of the link and makes
/// two channels of it, at most 32 (src/graph/topo.h, connect.cc). In each a rank has two neighbours, and for each 10
/// MiB to receive in, since the buffers of the three protocols (4 MiB + 4.69 MiB + 0.5 MiB, src/init.cc) and their
/// flags are allocated in units of 2 MiB, and 2 MiB to send (seen in github.com/NVIDIA/nccl/issues/1685).
/// That is 528 MiB on an A100's NVLink, where 544 to 688 MiB were measured (github.com/NVIDIA/nccl/issues/964).
Bytes communicator_memory(const Cluster& cluster);

std::int64_t sum_of(const MemoryUses& uses);

/// Devices (or this whole machine, where they are its cores) that need the same.
struct MemoryNeed {
  std::vector<std::uint32_t> ranks;  // that sit on them, ascending
  std::uint32_t devices = 0;
  MemoryUses uses{};
  std::int64_t capacity_bytes = 0;  // of one
  /// What of it are the Program's tensors and the ops' workspace where updates are fused, as our own executor's are.
  std::int64_t executor_bytes = 0;

  /// The need with the optimizer's fused=True: another instruction's may be the peak then.
  [[nodiscard]] std::int64_t fused_bytes() const;
};
struct MemoryFit {
  MemoryUses needed{};              // of the memory that least is left of
  std::vector<MemoryNeed> each;     // by their first rank
  std::int64_t capacity_bytes = 0;  // of that one; 0: not known
  /// The most of each; of devices of several kinds: capacity_bytes less the least that would be left.
  std::int64_t fused_bytes = 0, executor_bytes = 0;
  std::uint32_t devices = 0;  // that the ranks sit on; fewer than the ranks: they share

  [[nodiscard]] std::int64_t needed_bytes() const { return sum_of(needed); }
};
/// The ranks of one memory are added up as if all had their peak at once. What a process holds of a host's memory
/// beside tensors isn't in it (the framework itself), and neither
/// are cuDNN's workspaces, unless `workspace_bytes` knows them.
MemoryFit fit_memory(const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes = {});

/// Freed blocks of this size or more are kept for the next request
/// of the very same size (backend/machine/allocator.hpp).
constexpr std::int64_t kReusedFrom = std::int64_t{64} << 10;
/// What such an allocator holds of the system's memory at the end of several steps: blocks of a size that nobody asks
/// for again stay. An op's workspace counts as one block.
double memory_with_reuse(const Role& role, std::span<const double> workspace_bytes,
                         std::span<const Staging> staging = {});

}  // namespace sim
