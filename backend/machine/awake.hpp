// Keeps cores from idling while a step is measured, where the kernel can't.
//
//   const AwakeCores awake(AwakeCores::wanted());   // until the end of the scope
//   awake.cores();                                  // 0 where nothing is to be done
//
// A virtual machine's core that idles is given away by the host, and woken late: after a rest of more than 0.2 ms the
// next halts take 0.15 to 0.2 ms each, and an all-reduce of gloo's is five wake-ups in turn. /dev/cpu_dma_latency
// (quiet.hpp) makes idle cores poll where the kernel has a driver for idle states; most virtual machines have none.
// There a thread for each core spins instead whenever nobody else wants the core (SCHED_IDLE).
#pragma once

#include <cstdint>
#include <thread>
#include <vector>

namespace backend {

class AwakeCores {
 public:
  /// Whether this kernel can't keep cores awake by itself and this process's group has no quota of time, which a thread
  /// that spins would use up.
  static bool wanted();

  /// A thread for each core that this process may use; none unless `spin`.
  explicit AwakeCores(bool spin);
  [[nodiscard]] std::uint32_t cores() const { return static_cast<std::uint32_t>(threads_.size()); }

 private:
  std::vector<std::jthread> threads_;
};

}  // namespace backend
