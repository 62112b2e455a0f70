// A program whose steps reach into each other (sections: program.hpp), as one flat list:
// what plays only lists plays that.
//
//   const Program five = unroll(program, 5);                  // prologue, five bodies, epilogue
//   simulate(five, costs_of(five, *cost_model, cluster), cluster);
//   // a training step: the time of five bodies less that of two, by 3 × program.steps (sim::forecast)
//
// Both ends of a message count how often it has been sent: its tag becomes another one each time.
#pragma once

#include <cstdint>

#include "sim/program/program.hpp"

namespace sim {

Program unroll(const Program& program, std::uint32_t bodies);

}  // namespace sim
