#include "sim/memory.hpp"

#include "sim/error.hpp"

namespace sim {

Memory peak_memory(const Role& role) {
  Memory memory;
  std::array<std::int64_t, kTensorClasses> live{};
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
  memory.persistent_bytes = memory.peak_bytes = total;
  memory.at_peak = live;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    for (std::uint32_t tensor : role.writes(i))
      if (const std::uint32_t storage = role.tensors[tensor].storage; !allocated[storage]) change(storage, 1);
    if (total > memory.peak_bytes) {
      memory.peak_bytes = total;
      memory.at_peak = live;
      memory.peak_instruction = i;
    }
    for (std::uint32_t storage : role.frees(i)) change(storage, -1);
  }
  return memory;
}

}  // namespace sim
