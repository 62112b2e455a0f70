// Makes the machine hold still while it is measured, where that is permitted (root), and knows who else measures.
//
//   restore_settings();                    // first thing in a program: what a run that was killed has left behind
//   const QuietMachine quiet(true);        // until the end of the scope, also if this process is killed
//   idle_latency_us()                      // 0 if it was permitted; result files record it
//   measuring_runs()                       // 1: nobody else measures on this machine
//
// Two things that a virtual machine's kernel does between a rank's instructions, and that no forecast of a strategy can
// know:
//   idle states    a core that idles while its rank waits is given away by the host; what comes after the wait is
//                  slower. /dev/cpu_dma_latency held at 0 makes idle cores poll instead, for as long as it is open,
//                  where the kernel has a driver for idle states (where not: awake.hpp).
//   RT throttling  a SCHED_FIFO thread that computes for 0.95 s is stopped for 0.05 s: ranks that never wait are 5 %
//                  slower than ranks that do. kernel.sched_rt_runtime_us = -1 ends that.
//
// /run/paragauge-runs holds the latter's value before, and every run a lock on a byte of it, which ends with the
// process. The last run to end writes the value back; for one that is killed, a process of its own does (the guardian);
// and where that was killed as well (with the container both were in), the next start of any program here. A container
// with a /run of its own is on its own.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace backend {

class MeasuringRuns;

class QuietMachine {
 public:
  /// `hold_still`: changes the settings, too; else this run is only counted.
  explicit QuietMachine(bool hold_still);
  ~QuietMachine();

 private:
  int latency_request_ = -1;  // the kernel forgets the request when this is closed
  std::unique_ptr<MeasuringRuns> runs_;
};

/// Writes back what a run that is dead has changed, unless another still measures.
void restore_settings();

/// QuietMachines of all processes on this machine, this one's or its supervisor's included. nullopt without permission.
std::optional<std::uint32_t> measuring_runs();

/// What is asked of idle cores at this moment, by anybody: 0 makes them poll. nullopt where it can't be read.
std::optional<std::int32_t> idle_latency_us();

}  // namespace backend
