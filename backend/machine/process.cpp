#include "backend/machine/process.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "sim/error.hpp"
#include "sim/text/system_file.hpp"

namespace backend {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

void take_place(int descriptor, int standard) {
  if (descriptor >= 0) dup2(descriptor, standard);
}

}  // namespace

Process::Process(std::vector<std::string> arguments, const ProcessOptions& options) {
  std::vector<std::string> variables = options.environment;
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  std::array<int, 2> captured{-1, -1};
  if (options.capture_errors && pipe2(captured.data(), O_CLOEXEC) != 0)
    throw sim::RunError("can't start {}: no pipe: {}", arguments[0], std::strerror(errno));
  const pid_t parent = getpid();
  id_ = fork();
  if (id_ == 0) {  // nothing here may allocate: other threads of the parent may have held the heap's lock
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    take_place(options.input, STDIN_FILENO);
    take_place(options.output >= 0 ? options.output : captured[1], STDOUT_FILENO);
    take_place(captured[1], STDERR_FILENO);
    if (options.network_namespace >= 0 && setns(options.network_namespace, CLONE_NEWNET) != 0)
      dprintf(STDERR_FILENO, "can't enter a network namespace: %s\n", std::strerror(errno));
    else if (getppid() == parent) {
      execvpe(argv[0], argv.data(), envp.data());
      dprintf(STDERR_FILENO, "can't execute %s: %s\n", argv[0], std::strerror(errno));
    }
    _exit(127);
  }
  const int error = errno;
  if (captured[1] >= 0) close(captured[1]);
  errors_ = captured[0];
  if (id_ > 0) descriptor_ = static_cast<int>(syscall(SYS_pidfd_open, id_, 0));
  if (descriptor_ >= 0) return;
  const int cause = id_ < 0 ? error : errno;
  if (id_ > 0) {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  if (errors_ >= 0) close(errors_);
  throw sim::RunError("can't start {}: {}", arguments[0], std::strerror(cause));
}

Process::~Process() {
  if (!status_) {
    kill(id_, SIGKILL);
    waitpid(id_, nullptr, 0);
  }
  close(descriptor_);
  if (errors_ >= 0) close(errors_);
}

std::optional<int> Process::status() {
  int status = 0;
  if (!status_ && waitpid(id_, &status, WNOHANG) == id_) status_ = status;
  return status_;
}

bool Process::stopped() const {
  return !status_ && sim::field(fmt::format("/proc/{}/status", id_), "State:").value_or("").starts_with('T');
}

std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& variables,
                                          std::span<const std::string_view> without) {
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (std::ranges::none_of(variables, [&](const auto& v) { return text.starts_with(v.first + "="); }) &&
        std::ranges::none_of(without, [&](std::string_view prefix) { return text.starts_with(prefix); }))
      environment.emplace_back(text);
  }
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

std::optional<std::string> output_of(const std::string& command) {
  std::string text;
  if (FILE* pipe = popen((command + " 2>/dev/null").c_str(), "r")) {
    std::array<char, 256> part{};
    while (std::fgets(part.data(), part.size(), pipe) != nullptr) text += part.data();
    pclose(pipe);
  }
  while (text.ends_with('\n')) text.pop_back();
  return text.empty() ? std::nullopt : std::optional(text);
}

bool succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

std::string describe_status(int status) {
  if (WIFSIGNALED(status)) return fmt::format("died (signal {})", WTERMSIG(status));
  return fmt::format("ended with status {}", WEXITSTATUS(status));
}

}  // namespace backend
