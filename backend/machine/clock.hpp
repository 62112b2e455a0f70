// The clock on which everything is measured, and sleeping until a moment of it.
//
//   const double begin_s = now_s();
//   sleep_until(begin_s + 1e-3, /*precisely=*/true);
#pragma once

namespace backend {

/// Seconds on CLOCK_MONOTONIC: one clock for all threads and processes of a host.
double now_s();

/// Returns at `moment_s` on now_s(), within a microsecond when `precisely` (the last 50 µs are spent spinning).
void sleep_until(double moment_s, bool precisely);

}  // namespace backend
