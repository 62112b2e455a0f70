#include <array>

#include "backend/world/world.hpp"

namespace backend {

const sim::Table<WorldKind>& world_table() {
  static constexpr std::array kWorlds{
      WorldKind{"local",
                "one process, a pinned thread per rank; a transfer is a memory copy (CPU: by the receiver while it "
                "waits; CUDA: on a copy stream)",
                "one host; on CUDA all ranks share the first GPU", false, make_local_world},
      WorldKind{"gloo", "a process per rank (spawned, or torchrun's); c10d's ProcessGroupGloo over TCP",
                "CPU tensors; one host, because times are compared on its clock; when a send or recv was done is known "
                "no sooner than its wait",
                true, make_gloo_world}};
  static constexpr sim::Table<WorldKind> kTable("world", kWorlds);
  return kTable;
}

}  // namespace backend
