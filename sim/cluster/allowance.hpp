// How much of this machine the process may have: less than there is in a container, in a Slurm job, under taskset.
//
//   core_list()      // {0, 2}: where it may run, as taskset says
//   usable_cores()   // 2; 1 where the control group has the time of 1.5 cores (docker run --cpus=1.5), or of less than 1
//   usable_memory()  // bytes: the machine's, or what the control group is limited to (docker run --memory=4g)
//   free_memory()    // bytes that it could still get
//
// Swap, and limits that only slow down (memory.high), aren't looked at. Control groups of both versions are understood: those that the process is in, and all above. `root` is where proc and
// sys lie, for tests.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace sim {

/// Cores that this process may run on, as it was started: asked once, which must be before any thread is pinned.
const std::vector<std::uint32_t>& core_list();
/// How many of them it may keep busy: whole ones, at least 1.
std::uint32_t usable_cores();
/// The time that its control groups give it, in cores; none where they set no limit.
std::optional<double> cores_of_group(const std::string& root = "");

/// Bytes.
double usable_memory(const std::string& root = "");
/// Bytes, what the page cache holds included; none where Linux doesn't say.
std::optional<double> free_memory(const std::string& root = "");
/// The part of its memory that the machine, or the control group that has least of its own left, could still give: 0 to 1.
double free_share(const std::string& root = "");

}  // namespace sim
