#include "sim/program/rewritten.hpp"

#include <map>
#include <utility>

namespace sim {

std::vector<std::optional<double>> bytes_until_rewritten(const Program& program, const Role& role) {
  std::vector<std::optional<double>> bytes(role.size());
  std::vector<double> moved_before(role.size());
  double moved = 0;
  std::vector<bool> allocated(role.storages.size());
  for (std::uint32_t s = 0; s < role.storages.size(); ++s) allocated[s] = role.storages[s].persistent;
  // The collectives that have read a storage since it was written, and freed blocks, the last ones last; kNone: none.
  std::vector<std::uint32_t> given(role.storages.size(), kNone);
  std::map<std::int64_t, std::vector<std::uint32_t>> freed;  // by bytes
  const auto write = [&](std::uint32_t s) {
    if (!allocated[s]) {
      allocated[s] = true;
      std::vector<std::uint32_t>& blocks = freed[role.storages[s].bytes];
      if (!blocks.empty()) {
        given[s] = blocks.back();
        blocks.pop_back();
      }
    }
    if (const std::uint32_t i = std::exchange(given[s], kNone); i != kNone && !bytes[i])
      bytes[i] = moved - moved_before[i];
  };
  for (int step = 0; step < 2; ++step)
    role.play(1, [&](std::uint32_t i) {
      for (const std::uint32_t tensor : role.writes(i)) write(role.tensors[tensor].storage);
      if (is_computed(role.kind[i])) moved += program.works[role.work[i]].demand().bytes;
      if (role.kind[i] == InstructionKind::collective) {
        moved_before[i] = moved;
        for (const std::uint32_t tensor : role.reads(i)) given[role.tensors[tensor].storage] = i;
      }
      for (const std::uint32_t s : role.frees(i)) {
        allocated[s] = false;
        freed[role.storages[s].bytes].push_back(std::exchange(given[s], kNone));
      }
    });
  return bytes;
}

}  // namespace sim
