#include "sim/program/memory.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "sim/error.hpp"

namespace sim {

namespace {

using Live = std::array<std::int64_t, kTensorClasses>;

/// The allocations and frees of so many bodies in their order: change(class, bytes, 1 or −1), run(instruction) while
/// all that it needs is allocated, and once run(kNone) before the first, with the persistent storages.
template <class Change, class Run>
void walk(const Role& role, std::span<const Staging> staging, std::uint32_t bodies, const Change& change,
          const Run& run) {
  const auto change_storage = [&](std::uint32_t s, int sign) {
    change(role.storages[s].tensor_class, role.storages[s].bytes, sign);
  };
  const auto change_staging = [&](const Staging& staged, int sign) {
    for (const std::int64_t bytes : {staged.sent_bytes, staged.received_bytes})
      if (bytes > 0) change(TensorClass::communication, bytes, sign);
  };
  std::vector<Staging> staged(role.tickets());  // of what is in flight
  for (std::uint32_t s = 0; s < role.storages.size(); ++s)
    if (role.storages[s].persistent) change_storage(s, 1);
  run(kNone);
  std::vector<bool> allocated(role.storages.size());
  for (std::uint32_t s = 0; s < role.storages.size(); ++s) allocated[s] = role.storages[s].persistent;
  role.play(bodies, [&](std::uint32_t i) {
    for (std::uint32_t tensor : role.writes(i))
      if (const std::uint32_t s = role.tensors[tensor].storage; !allocated[s]) {
        allocated[s] = true;
        change_storage(s, 1);
      }
    if (is_posted(role.kind[i]) && !staging.empty()) change_staging(staged[role.ticket[i]] = staging[i], 1);
    run(i);
    if (role.kind[i] == InstructionKind::wait && !staging.empty())
      change_staging(std::exchange(staged.at(role.ticket[i]), {}), -1);
    for (std::uint32_t s : role.frees(i)) {
      allocated[s] = false;
      change_storage(s, -1);
    }
  });
}

/// visit(instruction, bytes alive while it runs, the same by class); kNone before the first.
template <class Visit>
void each_live(const Role& role, std::span<const Staging> staging, const Visit& visit) {
  Live live{};
  std::int64_t total = 0;
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const auto change = [&](TensorClass tensor_class, std::int64_t bytes, int sign) {
    if (total > kMost) throw ConfigError("role '{}' holds more than 2^60 bytes at a time", role.name);
    live[static_cast<std::size_t>(tensor_class)] += sign * bytes;
    total += sign * bytes;
  };
  walk(role, staging, 1, change, [&](std::uint32_t i) { visit(i, total, live); });
}

double workspace_of(const Role& role, std::uint32_t i, std::span<const double> workspace_bytes) {
  return i != kNone && role.work[i] != kNone && !workspace_bytes.empty() ? workspace_bytes[role.work[i]] : 0;
}

/// By TensorClass.
constexpr std::array<MemoryUse, kTensorClasses> kUseOf{
    MemoryUse::parameters, MemoryUse::gradients,   MemoryUse::optimizer_states,     MemoryUse::activations,
    MemoryUse::parameters, MemoryUse::activations, MemoryUse::communication_buffers};

struct Peak {
  double bytes = -1;
  MemoryUses uses{};
};

Peak peak_of(const Role& role, std::span<const double> workspace_bytes, std::span<const Staging> staging) {
  Peak peak;
  each_live(role, staging, [&](std::uint32_t i, std::int64_t total, const Live& live) {
    const double workspace = workspace_of(role, i, workspace_bytes);
    if (static_cast<double>(total) + workspace <= peak.bytes) return;
    peak = {.bytes = static_cast<double>(total) + workspace};
    for (std::size_t c = 0; c < live.size(); ++c) peak.uses[static_cast<std::size_t>(kUseOf[c])] += live[c];
    peak.uses[static_cast<std::size_t>(MemoryUse::workspace)] = static_cast<std::int64_t>(workspace);
  });
  return peak;
}

}  // namespace

Memory peak_memory(const Role& role, std::span<const Staging> staging) {
  Memory memory;
  each_live(role, staging, [&](std::uint32_t i, std::int64_t total, const Live& live) {
    if (i == kNone) memory.persistent_bytes = total;
    if (i != kNone && total <= memory.peak_bytes) return;
    memory.peak_bytes = total;
    memory.at_peak = live;
    memory.peak_instruction = i == kNone ? 0 : i;
  });
  return memory;
}

double peak_with_workspace(const Role& role, std::span<const double> workspace_bytes,
                           std::span<const Staging> staging) {
  return peak_of(role, workspace_bytes, staging).bytes;
}

MemoryUses uses_at_peak(const Role& role, std::span<const double> workspace_bytes, std::span<const Staging> staging) {
  return peak_of(role, workspace_bytes, staging).uses;
}

std::int64_t MemoryFit::needed_bytes() const { return std::accumulate(needed.begin(), needed.end(), std::int64_t{0}); }

MemoryFit fit_memory(const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes) {
  std::map<std::uint32_t, MemoryUses> by_memory;  // by node where the ranks of a node share it, else by device
  std::set<std::uint32_t> devices;
  for (const Role& role : program.roles) {
    const MemoryUses uses = uses_at_peak(role, workspace_bytes, staging_of(program, role, cluster.link().transport));
    for (const std::uint32_t rank : role.ranks) {
      const RankPlace& place = cluster.place.at(rank);
      devices.insert(place.device);
      MemoryUses& sum = by_memory[cluster.host ? cluster.group_of(place.device, cluster.node_level) : place.device];
      for (std::size_t use = 0; use < uses.size(); ++use) sum[use] += uses[use];
    }
  }
  // A rank with more cores shares none of them.
  MemoryFit fit{.devices = static_cast<std::uint32_t>(devices.size()) * program.threads};
  fit.capacity_bytes = static_cast<std::int64_t>(
      (cluster.host ? cluster.host->memory : cluster.device.times(program.threads).memory_capacity).base());
  for (const auto& [where, uses] : by_memory)
    if (const MemoryFit one{.needed = uses}; one.needed_bytes() > fit.needed_bytes()) fit.needed = uses;
  return fit;
}

double memory_with_reuse(const Role& role, std::span<const double> workspace_bytes, std::span<const Staging> staging) {
  constexpr std::uint32_t kBodies = 2;
  std::map<double, std::int64_t> unused;  // blocks by size
  double held = 0, small = 0, most_small = 0;
  const auto change = [&](double bytes, int sign) {
    if (bytes < static_cast<double>(kReusedFrom))
      most_small = std::max(most_small, small += sign * bytes);
    else if (std::int64_t& blocks = unused[bytes]; sign < 0 || blocks > 0)
      blocks -= sign;
    else
      held += bytes;
  };
  walk(
      role, staging, kBodies,
      [&](TensorClass, std::int64_t bytes, int sign) { change(static_cast<double>(bytes), sign); },
      [&](std::uint32_t i) {
        const double workspace = workspace_of(role, i, workspace_bytes);
        change(workspace, 1);
        change(workspace, -1);
      });
  return held + most_small;
}

}  // namespace sim
