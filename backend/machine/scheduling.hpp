// Where, how urgently and until when a rank's threads run, and the clock on which everything is measured.
//
//   pin_to_core(core_of_rank(rank));              // rank r stays on the r-th core that this process may use
//   pin_process(cores_of_rank(1, /*threads=*/2));   // all threads of a process on the third and fourth core
//   const RealTime urgent(kComputePriority);      // real-time until the end of the scope, where permitted
//   if (!urgent.permitted()) fmt::print("time-shared, as before\n");
//   sleep_until(now_s() + 1e-3, /*precisely=*/true);
//
// Communication goes before compute, so that a transfer's progress pre-empts compute on the same core. A new thread
// inherits core and policy from the one that starts it. Everything is SCHED_FIFO: ranks that share a core run one after
// the other, and nobody loses the core while it holds a lock. Only a thread that polls for others of its priority
// without blocking must let them have the core (SCHED_RR, in turns of 100 ms): gloo's event loop.
#pragma once

#include <cstdint>
#include <vector>

namespace backend {

constexpr int kComputePriority = 10;
constexpr int kCommunicationPriority = 11;
// Of the kernel's network threads while a network of bench/network.sh is up, which reads it here.
constexpr int kNetworkPriority = 12;

/// Seconds on CLOCK_MONOTONIC: one clock for all threads and processes of a host.
double now_s();
/// Returns at `moment_s` on now_s(), within a microsecond when `precisely` (the last 50 µs are spent spinning).
void sleep_until(double moment_s, bool precisely);

/// Ranks beyond the number of usable cores (sim/cluster/allowance.hpp) start again at the first.
std::uint32_t core_of_rank(std::uint32_t rank);
/// After a moment that all ranks sleep until, a rank sleeps so much longer: those of a core begin in the order of their
/// numbers, each when the one before it first waits, as the simulator plays them. What begins by chance goes on by chance.
double turn_after_s(std::uint32_t rank);
/// The cores of a rank, `threads` for each: as sim::with_threads places them. There must be as many.
std::vector<std::uint32_t> cores_of_rank(std::uint32_t rank, std::uint32_t threads);
/// Pins the calling thread.
void pin_to_core(std::uint32_t core);
/// The calling thread, or all threads that this process has but those that keep cores awake (awake.hpp), may run on any
/// of these.
void pin(const std::vector<std::uint32_t>& cores);
void pin_process(const std::vector<std::uint32_t>& cores);

enum class Turn : std::uint8_t { until_it_waits, limited };  // SCHED_FIFO, SCHED_RR

/// Runs the calling thread under a real-time policy for a scope.
class RealTime {
 public:
  explicit RealTime(int priority, bool wanted = true, Turn turn = Turn::until_it_waits);
  ~RealTime();
  RealTime(const RealTime&) = delete;
  RealTime& operator=(const RealTime&) = delete;
  [[nodiscard]] bool permitted() const { return permitted_; }

 private:
  bool permitted_ = false;
  int previous_policy_ = 0;
  int previous_priority_ = 0;
};

}  // namespace backend
