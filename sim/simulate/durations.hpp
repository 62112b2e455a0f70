// Measured times put into the program's order: what still differs from the measured step is structure (order, lanes,
// waits), not the durations of single instructions.
//
//   const Durations durations = durations_of(program, measured, cluster);
//   const double structure_error_s = replay(program, durations, cluster).step_s - measured.step_s;
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// [rank][instruction], in seconds.
struct Durations {
  /// The duration of compute, on an asynchronous device from when its host had issued it; of a transfer from when its
  /// bytes begin to move until the waiting rank goes on, as that rank saw it; of a send that is waited for only later,
  /// until it was received.
  std::vector<std::vector<double>> seconds;
  std::vector<std::vector<double>> host_s;  // host time before each instruction
  /// Transfers that the ranks' threads copy while they wait: [rank] → (wait, transfer copied in it), in list order.
  std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> copied_in;
};
Durations durations_of(const Program& program, const Timeline& measured, const Cluster& cluster);

/// Compute and transfers take exactly these durations; nothing is shared, since what sharing costs is inside of them.
Timeline replay(const Program& program, const Durations& durations, const Cluster& cluster);

}  // namespace sim
