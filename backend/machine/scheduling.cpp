#include "backend/machine/scheduling.hpp"

#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "sim/cluster/allowance.hpp"

namespace backend {
namespace {

/// Sets the cores of the thread with this number; 0: of the calling one.
void set_affinity(pid_t thread, const std::vector<std::uint32_t>& cores) {
  sim::core_list();  // what is usable is asked before the first pinning narrows it
  const std::size_t most = cores.empty() ? 1 : 1 + *std::ranges::max_element(cores), size = CPU_ALLOC_SIZE(most);
  cpu_set_t* set = CPU_ALLOC(most);
  CPU_ZERO_S(size, set);
  for (const std::uint32_t core : cores) CPU_SET_S(core, size, set);
  sched_setaffinity(thread, size, set);
  CPU_FREE(set);
}

}  // namespace

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

std::uint32_t core_of_rank(std::uint32_t rank) { return sim::core_list()[rank % sim::usable_cores()]; }

double turn_after_s(std::uint32_t rank) {
  constexpr double kTurn_s = 10e-6;  // two timers' interrupts
  return kTurn_s * (rank / sim::usable_cores());
}

std::vector<std::uint32_t> cores_of_rank(std::uint32_t rank, std::uint32_t threads) {
  std::vector<std::uint32_t> cores;
  for (std::uint32_t thread = 0; thread < threads; ++thread) cores.push_back(core_of_rank(rank * threads + thread));
  return cores;
}

void pin_to_core(std::uint32_t core) { pin({core}); }

void pin(const std::vector<std::uint32_t>& cores) { set_affinity(0, cores); }

void pin_process(const std::vector<std::uint32_t>& cores) {
  DIR* const threads = opendir("/proc/self/task");
  if (threads == nullptr) return;
  while (const dirent* const thread = readdir(threads))
    if (const pid_t number = std::atoi(thread->d_name);  // which may have ended
        number > 0 && sched_getscheduler(number) != SCHED_IDLE)
      set_affinity(number, cores);
  closedir(threads);
}

RealTime::RealTime(int priority, bool wanted, Turn turn) {
  sched_param param{};
  if (!wanted || pthread_getschedparam(pthread_self(), &previous_policy_, &param) != 0) return;
  previous_priority_ = param.sched_priority;
  param.sched_priority = priority;
  permitted_ = pthread_setschedparam(pthread_self(), turn == Turn::limited ? SCHED_RR : SCHED_FIFO, &param) == 0;
}

RealTime::~RealTime() {
  if (!permitted_) return;
  const sched_param param{.sched_priority = previous_priority_};
  pthread_setschedparam(pthread_self(), previous_policy_, &param);
}

}  // namespace backend
