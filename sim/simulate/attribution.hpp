// Why a forecast is off: which instructions took another time than predicted, and what that did to the step.
//
//   MeasuredSteps measured;
//   for (const Timeline& step : timelines) measured.add(program, step, durations_of(program, step, cluster));
//   CostAttribution why = attribute_cost_error(program, cluster, predicted, expected_s, measured);
//   why.classes[0].name;   // "conv2d.backward"
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// One class of instructions ("conv2d.backward", "all_reduce", "host") and its part in predicted − measured.
struct ClassError {
  std::string name;
  double predicted_s = 0, measured_s = 0;  // sum of a step's durations on the critical rank
  double effect_s = 0;                     // predicted step − predicted step with this class as measured
  friend bool operator==(const ClassError&, const ClassError&) = default;
};

/// The largest effect first.
void sort_by_effect(std::vector<ClassError>& classes);

/// What is kept of measured steps: sums, however many steps there are.
struct MeasuredSteps {
  /// `of_step`: durations_of that timeline. Every step is of the same program.
  void add(const Program& program, const Timeline& timeline, const Durations& of_step);

  std::size_t count = 0;
  double step_s = 0;
  std::vector<double> end_s;  // of the step, by rank
  Durations durations;
};

inline constexpr const char* kRestOfEffects = "rest";  // a class: see attribute_cost_error

/// The difference between forecast and measurement by class of instruction.
struct CostAttribution {
  std::size_t critical_rank = 0;    // the last to end in the measured steps
  double difference_s = 0;          // expected step − mean measured step
  std::vector<ClassError> classes;  // the largest effect first, then "rest": the effects sum to the difference
};

/// Substitutes measured durations (means over the steps) class by class into the predicted timeline's and replays.
/// Classes: op kind and pass ("conv2d.backward"), transfer kind ("send", "all_reduce", "broadcast"), and "host" (the
/// time before instructions). An effect is positive where the class made the forecast too slow. "jitter": what the
/// forecast adds for waiting for the slowest rank, `expected_s` (expected_step) less the predicted timeline's step.
/// "rest": what measured steps lose by that (the substituted durations are means), structure error, and what classes do
/// together only.
CostAttribution attribute_cost_error(const Program& program, const Cluster& cluster, const Timeline& predicted,
                                     double expected_s, const MeasuredSteps& measured);

}  // namespace sim
