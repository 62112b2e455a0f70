// The host of an asynchronous device (a GPU): it runs ahead of the device, so an instruction starts at the earliest
// when it has been issued.
//
//   const std::vector<std::vector<double>> issued_s = issue_times(placed, costs.launch_s);   // [rank][instruction]
#pragma once

#include <vector>

#include "sim/simulate/placed_program.hpp"

namespace sim {

/// Every instruction takes launch_s of its host thread. A thread of one rank never waits. A thread that issues for all
/// ranks of a node (Cluster::one_host_thread) goes through their lists in turn, each as far as what it waits for has
/// been issued.
std::vector<std::vector<double>> issue_times(const PlacedProgram& placed, double launch_s);

}  // namespace sim
