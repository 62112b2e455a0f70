// Runs a Program against costs: the predicted Timeline.
//
//   Timeline timeline = simulate(program, costs_of(program, *cost_model, cluster), cluster);
//
// A step in which nothing is shared is a longest path through the graph (longest_path.hpp). Where ranks share a device,
// transfers a port of the network, a transport takes core time, or ops slow each other down through the memory, the
// step is simulated event by event: everyone active gets the max-min fair share, and rates change when someone begins
// or ends (fluid.hpp).
#pragma once

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/simulate/durations.hpp"
#include "sim/simulate/placed_program.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// Every op and transfer takes its mean time. Throws ConfigError when the program doesn't fit the cluster. The result
/// has passed `check`.
Timeline simulate(const Program& program, const Costs& costs, const Cluster& cluster);
/// The same where several costs are tried: of many ranks, placing them takes longer than a step.
Timeline simulate(const PlacedProgram& placed, const Costs& costs);

/// The mean step when every op and transfer takes a random time with its cost as mean and its cost's jitter: ranks wait
/// for the slowest of them, so the mean of the steps is longer than the step of the means (the straggler effect).
/// Monte Carlo over DrawnSteps (step.hpp), until their mean's standard error is at most 0.2 % or there are 128; as
/// `simulate` where they don't vary.
StepTime expected_step(const Program& program, const Costs& costs, const Cluster& cluster);

}  // namespace sim
