#include "sim/program/capture.hpp"

#include <algorithm>

#include "sim/cluster/world.hpp"
#include "sim/error.hpp"

namespace sim {

void check_capture(const Program& program, std::string_view world, bool asynchronous) {
  if (!asynchronous)
    throw ConfigError("graph: a CPU core executes each instruction itself, nothing is launched; allowed: device=cuda");
  if (std::ranges::any_of(program.works, [](const Work& work) { return work.op.kind->on_host; }))
    throw ConfigError("graph: '{}' works on the host in every step, which a replay leaves out; allowed: timing=step",
                      program.model);
  if (program.bodies() > 1)
    throw ConfigError(
        "graph: '{}' plays {} steps between two barriers, and a replay has the time of all together only; allowed: "
        "bodies=1, and strategies whose steps don't reach into each other, such as heat_blocking",
        program.strategy, program.steps_in_list());
  if (!world_kind(world).processes && program.ranks() > 1)
    throw ConfigError(
        "graph: the {} ranks of '{}' share a process in world '{}', and what orders them is in no rank's own graph; "
        "allowed: one rank, or world=nccl",
        program.ranks(), program.strategy, world);
}

}  // namespace sim
