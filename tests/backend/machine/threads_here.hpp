// The threads of this process, and on which cores each may run.
#pragma once

#include <dirent.h>
#include <sched.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <set>

namespace backend::testing {

using Cores = std::set<std::uint32_t>;

inline Cores cores_of(pid_t thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(thread, sizeof set, &set);
  Cores cores;
  for (std::uint32_t core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.insert(core);
  return cores;
}

/// By number.
inline std::map<pid_t, Cores> threads_here() {
  std::map<pid_t, Cores> threads;
  DIR* const folder = opendir("/proc/self/task");
  while (const dirent* const entry = readdir(folder))
    if (const pid_t number = std::atoi(entry->d_name); number > 0) threads[number] = cores_of(number);
  closedir(folder);
  return threads;
}

}  // namespace backend::testing
