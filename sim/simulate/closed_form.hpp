// A step in which nothing is shared, as a longest path through the graph.
//
//   std::optional<Timeline> timeline = closed_form(placed, costs);    // nullopt: simulate_shared(placed, costs)
#pragma once

#include <optional>

#include "sim/simulate/placed_program.hpp"
#include "sim/simulate/step_costs.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// Nothing when something is shared: two ranks on a device, a transfer that takes core time, ops that slow each other
/// down; or when things meet that may as well not have met: two flows at one port of the network, messages of one
/// channel that overtake each other, a rank that waits and could copy another transfer meanwhile. A step in which
/// nothing has met is exactly what simulate_shared would say.
std::optional<Timeline> closed_form(const PlacedProgram& placed, const StepCosts& costs);

}  // namespace sim
