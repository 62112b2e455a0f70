// What sessions must play rightly in whatever world they are: the suites beside this file open them, and call this.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "backend/session.hpp"
#include "sim/program/program.hpp"

namespace backend {

sim::Program lowered(const std::string& model_text, const std::string& strategy);

/// What a call's error says; "no error" where there is none.
template <class Error>
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The memory is what the Program and its transport say, to the byte.
void expect_right_memory(const sim::Program& program, const RunResult& result);
/// The numbers are right, the memory, too, the times add up (merge calls sim::check).
void expect_right(const sim::Program& program, const RunResult& result, std::uint32_t steps);

/// Models and strategies of at most two ranks.
extern const std::vector<std::pair<std::string, std::string>> kCases;
/// One session executes all of these after each other, also those for fewer ranks than it has.
void execute_all(Session& session);
/// 3 and 4 ranks, also with parts of other sizes.
void execute_with_many(Session& session);
/// Each preset by its name, without further keys; 4 ranks.
void execute_presets(Session& session);
/// The memory is right in half precision, too, and the losses are f32's, nearly; 2 ranks.
void execute_in_half_precision(Session& session);
/// Weights that are kept in f32, and travel in half precision, as far as float64 can tell; 4 ranks.
void execute_half_parameters(Session& session);
/// R3's two convolutions: every choice for both on 2, 3 and 4 ranks and on nested levels of two, in both forms. What the
/// ranks have is one device's to the rounding of the numbers' type.
void execute_hypar(Session& session);
/// How fast the machine is, a rank alone, and both at once, where it is asked for; 2 ranks.
void probe_speeds(Session& session);

}  // namespace backend
