// Child processes that never outlive us.
//
//   Process child({"python3", "serve.py"}, {.environment = environment_with({{"RANK", "0"}}), .capture_errors = true});
//   pollfd end{child.descriptor(), POLLIN, 0};              // readable when the process has ended
//   poll(&end, 1, 1000);
//   if (const std::optional<int> status = child.status()) fmt::print("{}\n", describe_status(*status));
//
// The child gets SIGKILL when the thread that started it ends, however that happens, and when its Process is destroyed.
#pragma once

#include <sys/types.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace backend {

struct ProcessOptions {
  std::vector<std::string> environment;  // "NAME=value"; environment_with({}) is this process's own
  int network_namespace = -1;            // a descriptor for setns; -1: this process's
  int input = -1, output = -1;           // descriptors for its stdin and stdout; -1: this process's
  bool capture_errors = false;           // its stderr, and its stdout unless `output` is given, go to `errors()`
};

class Process {
 public:
  /// `arguments`: argv, the program first; looked for in PATH. RunError when no process can be started; one that can't
  /// execute the program says so on its stderr and ends with status 127.
  Process(std::vector<std::string> arguments, const ProcessOptions& options);
  ~Process();
  Process(const Process&) = delete;

  [[nodiscard]] pid_t id() const { return id_; }
  /// The descriptor for poll: readable when the process has ended; -1 (poll ignores it) once `status` has told so.
  [[nodiscard]] int descriptor() const { return status_ ? -1 : descriptor_; }
  /// The captured output's end to read from; -1 without.
  [[nodiscard]] int errors() const { return errors_; }
  /// waitpid's status, if the process has ended.
  std::optional<int> status();
  /// Whether it stands still because of SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU.
  [[nodiscard]] bool stopped() const;

 private:
  pid_t id_ = -1;
  int descriptor_ = -1, errors_ = -1;
  std::optional<int> status_;
};

/// This process's environment with these variables set, without those whose "NAME=value" begins with a `without`.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& variables,
                                          std::span<const std::string_view> without = {});

/// What a shell command prints, without the last line's end; its errors are dropped. None where that is nothing.
std::optional<std::string> output_of(const std::string& command);

bool succeeded(int status);
/// "died (signal 9)", "ended with status 2".
std::string describe_status(int status);

}  // namespace backend
