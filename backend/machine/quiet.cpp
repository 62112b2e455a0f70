#include "backend/machine/quiet.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <string>

#include "backend/machine/system_file.hpp"

namespace backend {
namespace {

constexpr const char* kRuntime = "/proc/sys/kernel/sched_rt_runtime_us";

std::string read_setting() { return first_line(kRuntime).value_or(""); }

bool write_setting(const std::string& value) {
  std::ofstream file(kRuntime);
  file << value << std::flush;
  return file.good();
}

/// A process that restores the setting when the pipe's other end is gone, however that happened.
int restore_at_the_end(const std::string& value) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return -1;
  const pid_t child = fork();
  if (child < 0) {
    close(ends[0]);
    close(ends[1]);
    return -1;
  }
  if (child == 0) {
    if (fork() != 0) _exit(0);  // nobody's child: it outlives whoever is waited for or killed with its group
    setsid();
    // Who ends all processes of our name must not end the one that tidies up.
    prctl(PR_SET_NAME, "restore_rt");
    for (const int ending : {SIGTERM, SIGINT, SIGHUP}) std::signal(ending, SIG_IGN);
    dup2(ends[0], 0);
    close_range(1, ~0U, 0);  // nobody must wait for this process because it holds their files
    char nothing = 0;
    while (read(0, &nothing, 1) > 0) {
    }
    write_setting(value);
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  close(ends[0]);
  return ends[1];
}

}  // namespace

QuietMachine::QuietMachine(bool wanted) {
  if (!wanted) return;
  latency_request_ = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
  const std::int32_t none_us = 0;
  if (latency_request_ >= 0 && write(latency_request_, &none_us, sizeof none_us) != sizeof none_us) {
    close(latency_request_);
    latency_request_ = -1;
  }
  const std::string before = read_setting();
  if (before.empty() || before == "-1" || access(kRuntime, W_OK) != 0) return;
  guardian_ = restore_at_the_end(before);
  if (guardian_ >= 0) write_setting("-1");
}

QuietMachine::~QuietMachine() {
  if (latency_request_ >= 0) close(latency_request_);
  if (guardian_ >= 0) close(guardian_);
}

std::optional<std::int32_t> idle_latency_us() {
  std::int32_t latency_us = 0;
  std::ifstream file("/dev/cpu_dma_latency", std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(&latency_us), sizeof latency_us)) return std::nullopt;
  return latency_us;
}

}  // namespace backend
