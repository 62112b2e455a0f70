#include <time.h>

#include <array>
#include <cmath>

#include "backend/world/world.hpp"

namespace backend {

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void sleep_until(double moment, bool precisely) {
  constexpr double kSpin = 50e-6;
  const double wake = precisely ? moment - kSpin : moment;
  if (now_s() < wake) {
    const double whole = std::floor(wake);
    const timespec until{static_cast<time_t>(whole), static_cast<long>((wake - whole) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
    }
  }
  while (now_s() < moment) {
  }
}

const sim::Table<WorldKind>& world_table() {
  static constexpr std::array kWorlds{
      WorldKind{"local",
                "one process, a pinned thread per rank; a transfer is a memory copy (CPU: by the receiver while it "
                "waits; CUDA: on a copy stream)",
                "one host; on CUDA all ranks share the first GPU", false, make_local_world},
      WorldKind{"gloo", "a process per rank (spawned, or torchrun's); c10d's ProcessGroupGloo over TCP",
                "CPU tensors; one host, because times are compared on its clock; when a send or recv was done is known "
                "no sooner than its wait",
                true, make_gloo_world}};
  static constexpr sim::Table<WorldKind> kTable("world", kWorlds);
  return kTable;
}

}  // namespace backend
