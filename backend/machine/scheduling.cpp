#include "backend/machine/scheduling.hpp"

#include <pthread.h>
#include <sched.h>
#include <time.h>

#include <cmath>
#include <vector>

namespace backend {
namespace {

const std::vector<std::uint32_t>& core_list() {
  static const std::vector<std::uint32_t> cores = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    std::vector<std::uint32_t> list;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
      for (std::uint32_t core = 0; core < CPU_SETSIZE; ++core)
        if (CPU_ISSET(core, &set)) list.push_back(core);
    if (list.empty()) list.push_back(0);
    return list;
  }();
  return cores;
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

std::uint32_t usable_cores() { return static_cast<std::uint32_t>(core_list().size()); }

std::uint32_t core_of_rank(std::uint32_t rank) { return core_list()[rank % core_list().size()]; }

void pin_to_core(std::uint32_t core) {
  core_list();  // what is usable is asked before the first pinning narrows it
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
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
