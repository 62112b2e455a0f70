// A step in which things are shared, event by event.
//
//   Timeline timeline = simulate_shared(placed, costs);
//
// Ranks go through their lists; what takes time is an activity of a Fluid: compute and host time use the rank's device,
// bytes use the ports of the network, a transport's threads take their share of the cores at its ends.
//
// Ranks that share a device share its time as the cluster's scheduling says. `fair`: in equal parts. `run_until_wait`:
// one rank has the core until it waits for something that isn't there yet or is done with its step; then the rank that
// has been ready for longest gets it.
//
// Ops that run beside those of other ranks of the node are slower by contention for caches and memory, as measured with
// that many ranks computing (Costs::busy_levels).
#pragma once

#include "sim/simulate/placed_program.hpp"
#include "sim/simulate/step_costs.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// InternalError when a rank waits for ever: the program wasn't validated.
Timeline simulate_shared(const PlacedProgram& placed, const StepCosts& costs);

}  // namespace sim
