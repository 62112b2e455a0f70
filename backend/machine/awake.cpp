#include "backend/machine/awake.hpp"

#include <pthread.h>
#include <sched.h>

#include <optional>
#include <stop_token>
#include <string>

#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/text/system_file.hpp"

namespace backend {
namespace {

/// Lets a core that two threads share do more for the other.
void relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

}  // namespace

bool AwakeCores::wanted() {
  if (sim::first_line("/sys/devices/system/cpu/cpuidle/current_driver").value_or("none") != "none") return false;
  return !sim::cores_of_group();
}

AwakeCores::AwakeCores(bool spin) {
  if (!spin) return;
  for (std::uint32_t core = 0; core < sim::usable_cores(); ++core) {
    threads_.emplace_back([core = core_of_rank(core)](const std::stop_token& end) {
      pin_to_core(core);
      const sched_param param{};
      if (pthread_setschedparam(pthread_self(), SCHED_IDLE, &param) != 0) return;  // rather none than one in the way
      while (!end.stop_requested()) relax();
    });
  }
}

}  // namespace backend
