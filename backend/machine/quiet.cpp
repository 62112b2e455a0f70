#include "backend/machine/quiet.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <mutex>
#include <string>

#include "sim/text/system_file.hpp"

namespace backend {
namespace {

constexpr const char* kRuntime = "/proc/sys/kernel/sched_rt_runtime_us";

std::string read_setting() { return sim::first_line(kRuntime).value_or(""); }

bool write_setting(const std::string& value) {
  std::ofstream file(kRuntime);
  file << value << std::flush;
  return file.good();
}

/// A process that calls `restore` and lives in a session of its own: nobody's child, so that it outlives whoever is
/// waited for or killed with its group.
template <class Restore>
void start_guardian(Restore restore) {
  const pid_t child = fork();
  if (child != 0) {
    if (child > 0) waitpid(child, nullptr, 0);
    return;
  }
  if (fork() != 0) _exit(0);
  setsid();
  // Who ends all processes of our name must not end the one that tidies up.
  prctl(PR_SET_NAME, "restore_rt");
  for (const int ending : {SIGTERM, SIGINT, SIGHUP}) std::signal(ending, SIG_IGN);
  close_range(0, ~0U, 0);  // nobody must wait for this process because it holds their files
  restore();
  _exit(0);
}

}  // namespace

/// The file of all runs. Its locks belong to this object (open file description locks), and end with the process.
class MeasuringRuns {
 public:
  MeasuringRuns() : descriptor_(open("/run/paragauge-runs", O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)) {}
  ~MeasuringRuns() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  MeasuringRuns(const MeasuringRuns&) = delete;
  [[nodiscard]] bool permitted() const { return descriptor_ >= 0; }

  /// What std::lock_guard calls: meanwhile, nobody else comes or goes.
  void lock() const { lock_byte(F_OFD_SETLKW, F_WRLCK, 0); }
  void unlock() const { lock_byte(F_OFD_SETLK, F_UNLCK, 0); }

  void join() {
    for (place_ = 1; place_ <= kMost && lock_byte(F_OFD_SETLK, F_WRLCK, place_).l_type == F_UNLCK; ++place_) {
    }
  }
  void leave() const { lock_byte(F_OFD_SETLK, F_UNLCK, place_); }
  /// Returns when the run at this place has ended.
  void wait_for(off_t place) const {
    lock_byte(F_OFD_SETLKW, F_WRLCK, place);
    lock_byte(F_OFD_SETLK, F_UNLCK, place);
  }
  [[nodiscard]] off_t place() const { return place_; }
  [[nodiscard]] std::uint32_t others() const {
    std::uint32_t count = 0;
    for (off_t place = 1; place <= kMost; ++place) count += lock_byte(F_OFD_GETLK, F_WRLCK, place).l_type != F_UNLCK;
    return count;
  }

  /// The setting's value before the runs; empty: none has changed it.
  [[nodiscard]] std::string value_before() const {
    std::array<char, 32> text{};
    const ssize_t size = pread(descriptor_, text.data(), text.size() - 1, 0);
    return {text.data(), static_cast<std::size_t>(size > 0 ? size : 0)};
  }
  bool keep(const std::string& value) const {
    return ftruncate(descriptor_, 0) == 0 &&
           pwrite(descriptor_, value.data(), value.size(), 0) == static_cast<ssize_t>(value.size());
  }
  /// While locked: the last one out.
  void restore_if_alone() const {
    if (others() > 0 || value_before().empty()) return;
    if (write_setting(value_before())) keep("");
  }

 private:
  static constexpr off_t kMost = 64;

  /// What fcntl answers; type F_UNLCK where a lock wasn't got.
  struct flock lock_byte(int command, int type, off_t place) const {
    struct flock byte {};
    byte.l_type = static_cast<short>(type);
    byte.l_whence = SEEK_SET;
    byte.l_start = place;
    byte.l_len = 1;
    int result = 0;
    while ((result = fcntl(descriptor_, command, &byte)) != 0 && errno == EINTR) {
    }
    if (result != 0) byte.l_type = F_UNLCK;
    return byte;
  }

  int descriptor_;
  off_t place_ = 0;
};

QuietMachine::QuietMachine(bool hold_still) : runs_(std::make_unique<MeasuringRuns>()) {
  if (runs_->permitted()) {
    const std::lock_guard turn(*runs_);
    runs_->join();
    const std::string before = runs_->value_before().empty() ? read_setting() : runs_->value_before();
    if (hold_still && !before.empty() && before != "-1" && access(kRuntime, W_OK) == 0 && runs_->keep(before) &&
        write_setting("-1"))
      start_guardian([place = runs_->place()] {
        const MeasuringRuns runs;
        runs.wait_for(place);
        const std::lock_guard guardians_turn(runs);
        runs.restore_if_alone();
      });
  }
  if (!hold_still) return;
  latency_request_ = open("/dev/cpu_dma_latency", O_WRONLY | O_CLOEXEC);
  const std::int32_t none_us = 0;
  if (latency_request_ >= 0 && write(latency_request_, &none_us, sizeof none_us) != sizeof none_us) {
    close(latency_request_);
    latency_request_ = -1;
  }
}

QuietMachine::~QuietMachine() {
  if (latency_request_ >= 0) close(latency_request_);
  if (!runs_->permitted()) return;
  const std::lock_guard turn(*runs_);
  runs_->leave();
  runs_->restore_if_alone();
}

void restore_settings() {
  if (access("/run/paragauge-runs", W_OK) != 0) return;
  const MeasuringRuns runs;
  if (!runs.permitted()) return;
  const std::lock_guard turn(runs);
  runs.restore_if_alone();
}

std::optional<std::uint32_t> measuring_runs() {
  const MeasuringRuns runs;
  if (!runs.permitted()) return std::nullopt;
  return runs.others();
}

std::optional<std::int32_t> idle_latency_us() {
  std::int32_t latency_us = 0;
  std::ifstream file("/dev/cpu_dma_latency", std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(&latency_us), sizeof latency_us)) return std::nullopt;
  return latency_us;
}

}  // namespace backend
