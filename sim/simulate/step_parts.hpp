// What a step's time consists of, once: files, reports and benchmarks iterate this list.
//
//   for (const StepPart& part : kStepParts) fmt::print("{} {}\n", part.name, step.*part.value);
#pragma once

#include <array>
#include <string_view>

#include "sim/simulate/timeline.hpp"

namespace sim {

struct StepPart {
  std::string_view name;  // with the unit
  double StepTime::*value;
};
/// The step first, then what adds up to it.
constexpr std::array<StepPart, 5> kStepParts{{{"step_s", &StepTime::step_s},
                                              {"compute_s", &StepTime::compute_s},
                                              {"exposed_communication_s", &StepTime::exposed_communication_s},
                                              {"bubble_s", &StepTime::bubble_s},
                                              {"host_s", &StepTime::host_s}}};

}  // namespace sim
