#include "sim/memory.hpp"

#include <algorithm>
#include <map>

#include "sim/error.hpp"

namespace sim {

namespace {

using Live = std::array<std::int64_t, kTensorClasses>;

/// Plays allocations and frees: visit(instruction, bytes alive while it runs, the same by class); kNone before the
/// first.
template <class Visit>
void play(const Role& role, Visit visit) {
  Live live{};
  std::vector<bool> allocated(role.storages.size());
  std::int64_t total = 0;
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  auto change = [&](std::uint32_t id, int sign) {
    const Storage& storage = role.storages[id];
    allocated[id] = sign > 0;
    if (total > kMost) throw ConfigError("role '{}' holds more than 2^60 bytes at a time", role.name);
    live[static_cast<std::size_t>(storage.tensor_class)] += sign * storage.bytes;
    total += sign * storage.bytes;
  };
  for (std::uint32_t s = 0; s < role.storages.size(); ++s)
    if (role.storages[s].persistent) change(s, 1);
  visit(kNone, total, live);
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    for (std::uint32_t tensor : role.writes(i))
      if (const std::uint32_t storage = role.tensors[tensor].storage; !allocated[storage]) change(storage, 1);
    visit(i, total, live);
    for (std::uint32_t storage : role.frees(i)) change(storage, -1);
  }
}

}  // namespace

Memory peak_memory(const Role& role) {
  Memory memory;
  play(role, [&](std::uint32_t i, std::int64_t total, const Live& live) {
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
  play(role, [&](std::uint32_t i, std::int64_t total, const Live&) {
    const bool computes = i != kNone && role.work[i] != kNone;
    peak = std::max(peak, static_cast<double>(total) + (computes ? workspace_bytes[role.work[i]] : 0));
  });
  return peak;
}

double held_with_reuse(const Role& role, std::span<const double> workspace_bytes) {
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
  std::vector<bool> allocated(role.storages.size());
  for (std::uint32_t s = 0; s < role.storages.size(); ++s)
    if ((allocated[s] = role.storages[s].persistent)) take(static_cast<double>(role.storages[s].bytes));
  constexpr int kSteps = 2;
  for (int step = 0; step < kSteps; ++step)
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      for (std::uint32_t tensor : role.writes(i))
        if (const std::uint32_t s = role.tensors[tensor].storage; !allocated[s]) {
          allocated[s] = true;
          take(static_cast<double>(role.storages[s].bytes));
        }
      if (const double workspace = role.work[i] != kNone ? workspace_bytes[role.work[i]] : 0; workspace > 0) {
        take(workspace);
        give(workspace);
      }
      for (std::uint32_t s : role.frees(i)) {
        allocated[s] = false;
        give(static_cast<double>(role.storages[s].bytes));
      }
    }
  return held + most_small;
}

}  // namespace sim
