#include "sim/program/memory.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "sim/error.hpp"

namespace sim {

namespace {

using Live = std::array<std::int64_t, kTensorClasses>;

/// A step's allocations and frees in their order: take(storage), run(instruction) while everything it needs is
/// allocated, give(storage).
template <class Take, class Run, class Give>
void walk_step(const Role& role, const Take& take, const Run& run, const Give& give) {
  std::vector<bool> allocated(role.storages.size());
  for (std::uint32_t s = 0; s < role.storages.size(); ++s) allocated[s] = role.storages[s].persistent;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    for (std::uint32_t tensor : role.writes(i))
      if (const std::uint32_t s = role.tensors[tensor].storage; !allocated[s]) {
        allocated[s] = true;
        take(role.storages[s]);
      }
    run(i);
    for (std::uint32_t s : role.frees(i)) {
      allocated[s] = false;
      give(role.storages[s]);
    }
  }
}

template <class Visit>
void each_persistent(const Role& role, const Visit& visit) {
  for (const Storage& storage : role.storages)
    if (storage.persistent) visit(storage);
}

/// visit(instruction, bytes alive while it runs, the same by class); kNone before the first.
template <class Visit>
void each_live(const Role& role, const Visit& visit) {
  Live live{};
  std::int64_t total = 0;
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const auto change = [&](const Storage& storage, int sign) {
    if (total > kMost) throw ConfigError("role '{}' holds more than 2^60 bytes at a time", role.name);
    live[static_cast<std::size_t>(storage.tensor_class)] += sign * storage.bytes;
    total += sign * storage.bytes;
  };
  const auto take = [&](const Storage& storage) { change(storage, 1); };
  each_persistent(role, take);
  visit(kNone, total, live);
  walk_step(
      role, take, [&](std::uint32_t i) { visit(i, total, live); },
      [&](const Storage& storage) { change(storage, -1); });
}

double workspace_of(const Role& role, std::uint32_t i, std::span<const double> workspace_bytes) {
  return i != kNone && role.work[i] != kNone && !workspace_bytes.empty() ? workspace_bytes[role.work[i]] : 0;
}

MemoryUse use_of(TensorClass tensor_class) {
  switch (tensor_class) {
    case TensorClass::weight:
    case TensorClass::buffer:
      return MemoryUse::parameters;
    case TensorClass::gradient:
      return MemoryUse::gradients;
    case TensorClass::optimizer:
      return MemoryUse::optimizer_states;
    case TensorClass::activation:
    case TensorClass::input:
      return MemoryUse::activations;
    case TensorClass::communication:
      return MemoryUse::communication_buffers;
  }
  throw InternalError("no such tensor class");
}

}  // namespace

Memory peak_memory(const Role& role) {
  Memory memory;
  each_live(role, [&](std::uint32_t i, std::int64_t total, const Live& live) {
    if (i == kNone) memory.persistent_bytes = total;
    if (i != kNone && total <= memory.peak_bytes) return;
    memory.peak_bytes = total;
    memory.at_peak = live;
    memory.peak_instruction = i == kNone ? 0 : i;
  });
  return memory;
}

double peak_with_workspace(const Role& role, std::span<const double> workspace_bytes) {
  double peak = 0;
  each_live(role, [&](std::uint32_t i, std::int64_t total, const Live&) {
    peak = std::max(peak, static_cast<double>(total) + workspace_of(role, i, workspace_bytes));
  });
  return peak;
}

std::string_view to_string(MemoryUse use) {
  switch (use) {
    case MemoryUse::parameters:
      return "parameters";
    case MemoryUse::gradients:
      return "gradients";
    case MemoryUse::optimizer_states:
      return "optimizer states";
    case MemoryUse::activations:
      return "activations";
    case MemoryUse::communication_buffers:
      return "communication buffers";
    case MemoryUse::workspace:
      return "workspace";
  }
  throw InternalError("no such use of memory");
}

MemoryUses uses_at_peak(const Role& role, std::span<const double> workspace_bytes) {
  MemoryUses uses{};
  double peak = -1;
  each_live(role, [&](std::uint32_t i, std::int64_t total, const Live& live) {
    const double workspace = workspace_of(role, i, workspace_bytes);
    if (static_cast<double>(total) + workspace <= peak) return;
    peak = static_cast<double>(total) + workspace;
    uses = {};
    for (std::size_t c = 0; c < live.size(); ++c)
      uses[static_cast<std::size_t>(use_of(static_cast<TensorClass>(c)))] += live[c];
    uses[static_cast<std::size_t>(MemoryUse::workspace)] = static_cast<std::int64_t>(workspace);
  });
  return uses;
}

std::int64_t MemoryFit::needed_bytes() const { return std::accumulate(needed.begin(), needed.end(), std::int64_t{0}); }

MemoryFit fit_memory(const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes) {
  std::map<std::uint32_t, MemoryUses> by_memory;  // by node where the ranks of a node share it, else by device
  std::set<std::uint32_t> devices;
  for (const Role& role : program.roles) {
    const MemoryUses uses = uses_at_peak(role, workspace_bytes);
    for (const std::uint32_t rank : role.ranks) {
      const RankPlace& place = cluster.place.at(rank);
      devices.insert(place.device);
      MemoryUses& sum = by_memory[cluster.host ? place.node : place.device];
      for (std::size_t use = 0; use < uses.size(); ++use) sum[use] += uses[use];
    }
  }
  MemoryFit fit{.devices = static_cast<std::uint32_t>(devices.size())};
  fit.capacity_bytes =
      static_cast<std::int64_t>((cluster.host ? cluster.host->memory : cluster.device.memory_capacity).base());
  for (const auto& [where, uses] : by_memory)
    if (const MemoryFit one{.needed = uses}; one.needed_bytes() > fit.needed_bytes()) fit.needed = uses;
  return fit;
}

double memory_with_reuse(const Role& role, std::span<const double> workspace_bytes) {
  std::map<double, std::int64_t> unused;  // blocks by size
  double held = 0, small = 0, most_small = 0;
  const auto take = [&](double bytes) {
    if (bytes < static_cast<double>(kReusedFrom)) {
      most_small = std::max(most_small, small += bytes);
    } else if (std::int64_t& blocks = unused[bytes]; blocks > 0) {
      --blocks;
    } else {
      held += bytes;
    }
  };
  const auto give = [&](double bytes) {
    if (bytes < static_cast<double>(kReusedFrom))
      small -= bytes;
    else
      ++unused[bytes];
  };
  const auto take_storage = [&](const Storage& storage) { take(static_cast<double>(storage.bytes)); };
  const auto give_storage = [&](const Storage& storage) { give(static_cast<double>(storage.bytes)); };
  each_persistent(role, take_storage);
  constexpr int kSteps = 2;
  for (int step = 0; step < kSteps; ++step)
    walk_step(
        role, take_storage,
        [&](std::uint32_t i) {
          if (const double workspace = workspace_of(role, i, workspace_bytes); workspace > 0) {
            take(workspace);
            give(workspace);
          }
        },
        give_storage);
  return held + most_small;
}

}  // namespace sim
