// Why a forecast is off: which instructions took another time than predicted, and what that did to the step.
//
//   CostAttribution why = attribute_cost_error(program, cluster, predicted, expected_s, measured_timelines);
//   why.classes[0].name;   // "conv2d.backward"
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "sim/cluster.hpp"
#include "sim/program.hpp"
#include "sim/result.hpp"
#include "sim/timeline.hpp"

namespace sim {

/// The largest effect first.
void sort_by_effect(std::vector<ClassError>& classes);

/// The difference between forecast and measurement by class of instruction.
struct CostAttribution {
  std::size_t critical_rank = 0;    // the last to end in the measured steps
  double difference_s = 0;          // expected step − mean measured step
  std::vector<ClassError> classes;  // the largest effect first, then "rest": the effects sum to the difference
};

/// Substitutes measured durations (means over the timelines) class by class into the predicted timeline's and replays.
/// Classes: op kind and pass ("conv2d.backward"), transfer kind ("send", "all_reduce", "broadcast"), and "host" (the
/// time before instructions). An effect is positive where the class made the forecast too slow. "jitter": what the
/// forecast adds for waiting for the slowest rank, `expected_s` (expected_step) less the predicted timeline's step.
/// "rest": what measured steps lose by that (the substituted durations are means), structure error, and what classes do
/// together only.
CostAttribution attribute_cost_error(const Program& program, const Cluster& cluster, const Timeline& predicted,
                                     double expected_s, std::span<const Timeline> measured);

}  // namespace sim
