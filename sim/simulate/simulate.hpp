// Plays a Program against prices: the predicted Timeline.
//
//   Timeline timeline = simulate(program, price(program, *cost_model, cluster), cluster);
//
// Compute on a device instance that nobody shares, and transfers on links that nobody shares, advance in closed form (a
// longest-path pass). What is shared (two ranks on one core, two flows on one link, a transfer that takes core time
// from compute, ranks whose ops slow each other down through the memory) is a fluid: at each moment everyone active
// gets the max-min fair share, and rates change when someone starts or ends.
#pragma once

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/simulate/durations.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// Every op and transfer takes its price. Throws ConfigError when the program doesn't fit the cluster. The result has
/// passed `check`.
Timeline simulate(const Program& program, const Prices& prices, const Cluster& cluster);

/// The mean step when every op and transfer takes a random time with its price as mean and its price's jitter: ranks
/// wait for the slowest of them, so the mean of the steps is longer than the step of the means (the straggler effect).
/// Monte Carlo over the steps of sim/simulate/jitter.hpp; as `simulate` where there are none.
StepTime expected_step(const Program& program, const Prices& prices, const Cluster& cluster);

}  // namespace sim
