// Devices of several kinds: which of a program's works run on which.
//
//   const Program cut = by_kind(program, cluster);     // of each role's ranks those on one kind of device
//   cluster.kind(cut.works.at(0).kind).name            // the device that this work runs on
//
// What a rank does stays as it is; how long an op takes follows from its work, which is of one kind (Work::kind). On a
// cluster with one kind of device a program stays as it is. For who forecasts: who runs ranks takes it uncut.
#pragma once

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"

namespace sim {

/// Cuts roles whose ranks sit on several kinds of devices, and names what is of the second kind and further ones by it:
/// "stage0 on rtx-3090". Of a program that was cut for another cluster, the kinds are this one's. ConfigError when the
/// cluster has fewer places than the program ranks.
Program by_kind(Program program, const Cluster& cluster);
/// InternalError unless each rank's works are of the kind of device that it sits on.
void check_kinds(const Program& program, const Cluster& cluster);

}  // namespace sim
