// What programs exit with when they fail, beside 1 (a result that was verified is wrong).
//
//   try {
//     lower(model, strategy);
//   } catch (const std::exception& error) {
//     std::exit(exit_status(error));
//   }
#pragma once

#include <exception>

#include "sim/error.hpp"

namespace sim {

constexpr int kConfigErrorStatus = 2;     // ConfigError, and a command line that can't be read
constexpr int kInternalErrorStatus = 70;  // EX_SOFTWARE: InternalError, and what nobody expected
constexpr int kRunErrorStatus = 75;       // EX_TEMPFAIL: RunError

inline int exit_status(const std::exception& error) {
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return kConfigErrorStatus;
  if (dynamic_cast<const RunError*>(&error) != nullptr) return kRunErrorStatus;
  return kInternalErrorStatus;
}

}  // namespace sim
