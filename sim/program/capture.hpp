// Steps that are captured and replayed (a CUDA graph): the host of an asynchronous device launches all of a rank's list
// at once (Cluster::one_launch).
//
//   check_capture(program, "nccl", /*asynchronous=*/true);
#pragma once

#include <string_view>

#include "sim/program/program.hpp"

namespace sim {

/// ConfigError where there is nothing to capture, or a replay would not be the step: on a CPU; where the host works in
/// the step (Timing); where ranks that share a process exchange something, since the events that order them are in no
/// rank's own graph.
void check_capture(const Program& program, std::string_view world, bool asynchronous);

}  // namespace sim
