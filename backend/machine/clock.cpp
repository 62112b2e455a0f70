#include "backend/machine/clock.hpp"

#include <time.h>

#include <cmath>

namespace backend {

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void sleep_until(double moment_s, bool precisely) {
  constexpr double kSpin_s = 50e-6;
  const double wake_s = precisely ? moment_s - kSpin_s : moment_s;
  if (now_s() < wake_s) {
    const double whole = std::floor(wake_s);
    const timespec until{static_cast<time_t>(whole), static_cast<long>((wake_s - whole) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) != 0) {
    }
  }
  while (now_s() < moment_s) {
  }
}

}  // namespace backend
