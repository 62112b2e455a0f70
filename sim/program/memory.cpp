#include "sim/program/memory.hpp"

#include <algorithm>
#include <map>

#include "sim/error.hpp"

namespace sim {

namespace {

using Live = std::array<std::int64_t, kTensorClasses>;

/// A step's allocations and frees in their order: take(storage), run(instruction) with everything it needs,
/// give(storage).
template <class Take, class Run, class Give>
void play_step(const Role& role, const Take& take, const Run& run, const Give& give) {
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
  play_step(
      role, take, [&](std::uint32_t i) { visit(i, total, live); },
      [&](const Storage& storage) { change(storage, -1); });
}

double workspace_of(const Role& role, std::uint32_t i, std::span<const double> workspace_bytes) {
  return role.work[i] != kNone ? workspace_bytes[role.work[i]] : 0;
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
    const double workspace = i != kNone ? workspace_of(role, i, workspace_bytes) : 0;
    peak = std::max(peak, static_cast<double>(total) + workspace);
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
  const auto take_storage = [&](const Storage& storage) { take(static_cast<double>(storage.bytes)); };
  const auto give_storage = [&](const Storage& storage) { give(static_cast<double>(storage.bytes)); };
  each_persistent(role, take_storage);
  constexpr int kSteps = 2;
  for (int step = 0; step < kSteps; ++step)
    play_step(
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
