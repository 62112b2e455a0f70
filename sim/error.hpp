// A user's error is not our error. Both checks are always on.
//
//   throw ConfigError("split_size=3 must divide global_batch={} of model '{}'", batch, model.name);  // input is wrong
//   check_internal(index < size, "tensor id {} of {}", index, size);                                 // we are
//
// A message says what is wrong, where, and what is allowed, in one line. Programs print it and exit with
// exit_status(error); library code never calls exit().
//
//   throw ConfigError("unknown command '{}'{}", name, did_you_mean(name, names));  // …; did you mean 'predict'?
//   fmt::print(stderr, "{}\n", printable(error.what()));                          // names may come from anywhere
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sim {

/// The input (file, option, name, value) is wrong; the text is for the user.
class ConfigError : public std::runtime_error {
 public:
  template <class... Args>
  explicit ConfigError(fmt::format_string<Args...> text, Args&&... args)
      : std::runtime_error(fmt::format(text, std::forward<Args>(args)...)) {}
};

/// A run on real devices failed (a rank died, a timeout, a port in use): nothing is wrong with the input as such.
class RunError : public std::runtime_error {
 public:
  template <class... Args>
  explicit RunError(fmt::format_string<Args...> text, Args&&... args)
      : std::runtime_error(fmt::format(text, std::forward<Args>(args)...)) {}
};

/// paragauge itself is wrong.
class InternalError : public std::logic_error {
 public:
  template <class... Args>
  explicit InternalError(fmt::format_string<Args...> text, Args&&... args)
      : std::logic_error("internal error: " + fmt::format(text, std::forward<Args>(args)...)) {}
};

// What programs exit with when they fail, beside 1 (a result that was verified is wrong).
constexpr int kConfigErrorStatus = 2;     // ConfigError, and a command line that can't be read
constexpr int kInternalErrorStatus = 70;  // EX_SOFTWARE: InternalError, and what nobody expected
constexpr int kRunErrorStatus = 75;       // EX_TEMPFAIL: RunError, std::bad_alloc
int exit_status(const std::exception& error);

template <class... Args>
void check_internal(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw InternalError(text, std::forward<Args>(args)...);
}

/// "; did you mean 'predict'?", for the name that is the most alike; empty when none is
/// (a third of the letters differ).
std::string did_you_mean(std::string_view wrong, const std::vector<std::string_view>& names);

/// What a terminal may be given: control characters but the line feed become "\x1b", bytes that are no UTF-8 "\xff".
std::string printable(std::string_view text);

}  // namespace sim
