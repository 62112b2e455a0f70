// Where and how urgently a rank's threads run.
//
//   pin_to_core(core_of_rank(rank));              // rank r stays on the r-th core that this process may use
//   const RealTime urgent(kComputePriority);      // SCHED_FIFO until the end of the scope, where permitted
//   if (!urgent.permitted()) …                    // time-shared, as before
//
// Communication goes before compute, so that a transfer's progress pre-empts compute on the same core. A new thread
// inherits core and policy from the one that starts it.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace backend {

constexpr int kComputePriority = 10;
constexpr int kCommunicationPriority = 11;
constexpr int kIdlePriority = 1;

/// Cores that this process may use; asked once, before anything is pinned.
std::uint32_t usable_cores();
/// Ranks beyond the number of usable cores start again at the first.
std::uint32_t core_of_rank(std::uint32_t rank);
/// Pins the calling thread.
void pin_to_core(std::uint32_t core);

/// Runs the calling thread under SCHED_FIFO for a scope.
class RealTime {
 public:
  explicit RealTime(int priority, bool wanted = true);
  ~RealTime();
  RealTime(const RealTime&) = delete;
  RealTime& operator=(const RealTime&) = delete;
  [[nodiscard]] bool permitted() const { return permitted_; }

 private:
  bool permitted_ = false;
  int previous_policy_ = 0;
  int previous_priority_ = 0;
};

/// Keeps the calling thread's core from going idle during a step. A virtual core that idles while its rank waits is
/// given to others by the host, and what comes next is slower: 5 % of a model-parallel ResNet-50 step where this was
/// seen. A second thread on the core spins below all ranks' priority; kernel threads that are time-shared wait for it,
/// so it is not for worlds whose transfers need ksoftirqd (gloo).
class KeepAwake {
 public:
  KeepAwake() = default;
  ~KeepAwake();
  KeepAwake(const KeepAwake&) = delete;
  KeepAwake& operator=(const KeepAwake&) = delete;
  /// On the rank's thread. Does nothing where the thread has no real-time priority to stay below.
  void begin();
  void end();

 private:
  enum State : int { kParked, kSpinning, kEnding };
  void serve();
  std::atomic<int> state_{kParked};
  std::thread thread_;  // started by the first step
};

}  // namespace backend
