// Makes the machine hold still while it is measured, where that is permitted (root).
//
//   const QuietMachine quiet(true);        // until the end of the scope, also if this process is killed
//   idle_latency_us()                            // 0 if it was permitted; result files record it
//
// Two things that a virtual machine's kernel does between a rank's instructions, and that no forecast of a strategy can
// know (measured here: README, "How accurate it is"):
//   idle states    a core that idles while its rank waits is given away by the host; what comes after the wait is
//                  slower. /dev/cpu_dma_latency held at 0 makes idle cores poll instead.
//   RT throttling  a SCHED_FIFO thread that computes for 0.95 s is stopped for 0.05 s: ranks that never wait are 5 %
//                  slower than ranks that do. kernel.sched_rt_runtime_us = -1 ends that; the value before is restored.
#pragma once

#include <cstdint>
#include <optional>

namespace backend {

class QuietMachine {
 public:
  explicit QuietMachine(bool wanted);
  ~QuietMachine();
  QuietMachine(const QuietMachine&) = delete;
  QuietMachine& operator=(const QuietMachine&) = delete;

 private:
  int latency_request_ = -1;  // the kernel forgets the request when this is closed
  int guardian_ = -1;         // a pipe; who reads it restores the setting when it is closed
};

/// What is asked of idle cores at this moment, by anybody: 0 makes them poll. nullopt where it can't be read.
std::optional<std::int32_t> idle_latency_us();

}  // namespace backend
