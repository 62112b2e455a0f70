// Runs calibration tasks (sim/calibrate/tasks.hpp) in the sessions of their worlds.
//
//   Calibrator calibrator(sim::calibration_tasks(jobs), session_of);
//   for (std::size_t t = 0; t < calibrator.tasks().size(); ++t)
//     add(calibrator.visit(t), calibrator.tasks()[t], profile);
//
// What slows a machine down lasts for seconds: many short visits between other work tell more than a long one.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "backend/session.hpp"
#include "sim/calibrate/samples.hpp"
#include "sim/calibrate/tasks.hpp"

namespace backend {

class Calibrator {
 public:
  using SessionOf = std::function<Session&(const std::string& world)>;
  /// No task has more than `most_visits` in a round.
  Calibrator(std::vector<sim::CalibrationTask> tasks, SessionOf session_of, std::uint32_t most_visits = 1);

  [[nodiscard]] const std::vector<sim::CalibrationTask>& tasks() const { return tasks_; }
  /// Runs the task for a moment, so that nothing is cold, and to know how long it takes: that settles its visits and
  /// their steps. Ops take `steps_of_jobs` if given, but at least two: a step's time depends on how many went before
  /// (training changes what a max pool's branches compare, and how well they are predicted).
  void rehearse(std::size_t task, std::optional<std::uint32_t> steps_of_jobs = std::nullopt);
  /// Of a round. 1 until it is rehearsed.
  [[nodiscard]] std::uint32_t visits(std::size_t task) const { return plans_[task].visits; }
  /// Rehearses first, unless that is done.
  sim::CalibrationSamples visit(std::size_t task);

 private:
  struct Plan {
    std::uint32_t warmup_steps = 1, steps = 0, visits = 1;  // no steps: not rehearsed
  };
  [[nodiscard]] RunResult run(std::size_t task, std::uint32_t warmup_steps, std::uint32_t steps) const;

  std::vector<sim::CalibrationTask> tasks_;
  std::vector<Plan> plans_;  // by task
  SessionOf session_of_;
  std::uint32_t most_visits_;
};

/// Steps of a visit: enough that one interruption doesn't dominate it, and that most of them are warm.
std::uint32_t steps_for(double step_s, std::uint32_t least, double visit_s = 0.1);

}  // namespace backend
