// A program whose steps reach into each other (sections: program.hpp), as one flat list:
// what plays only lists plays that.
//
//   const Program five = unroll(program, 5);                  // prologue, five bodies, epilogue
//   five.steps_in_list();                                     // training steps
//   step_time(five, simulate(five, costs_of(five, *cost_model, cluster), cluster));   // of one of them: the period
//
// Both ends of a message count how often it has been sent: its tag becomes another one each time. A storage that is
// written again after it was freed becomes another one, too ("fc'2", the third). Where bodies begin is kept.
#pragma once

#include <cstdint>

#include "sim/program/program.hpp"

namespace sim {

/// `bodies`: two at least.
Program unroll(const Program& program, std::uint32_t bodies);

}  // namespace sim
