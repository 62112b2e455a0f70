#include "backend/calibrate.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "sim/cluster/world.hpp"

namespace backend {

using Kind = sim::CalibrationTask::Kind;

std::uint32_t steps_for(double step_s, std::uint32_t least, double visit_s) {
  constexpr std::uint32_t kMost = 40;
  return std::clamp(static_cast<std::uint32_t>(visit_s / std::max(step_s, 1e-6)), least, std::max(least, kMost));
}

Calibrator::Calibrator(std::vector<sim::CalibrationTask> tasks, SessionOf session_of, std::uint32_t most_visits)
    : tasks_(std::move(tasks)), plans_(tasks_.size()), session_of_(std::move(session_of)), most_visits_(most_visits) {}

RunResult Calibrator::run(std::size_t t, std::uint32_t warmup_steps, std::uint32_t steps, bool probe_speed) const {
  const sim::CalibrationTask& task = tasks_[t];
  // What the host takes for an op shows where it doesn't lead, what the device takes where it does.
  return session_of_(task.world)
      .run({.program = task.program,
            .warmup_steps = warmup_steps,
            .steps = steps,
            .host_leads_every = task.only_computes() ? 2U : 1U,
            .probe_speed = probe_speed});
}

void Calibrator::rehearse(std::size_t t, std::optional<std::uint32_t> steps_of_jobs) {
  constexpr double kSecondsPerTask = 0.4, kSecondsPerVisit = 0.1, kSecondsPerLink = 0.05;
  constexpr std::uint32_t kLeastForSpread = 2;  // in one visit: else the steps' hiccups aren't known
  const bool computes = tasks_[t].only_computes();
  double step_s = std::numeric_limits<double>::infinity();  // the shortest: another may have been interrupted
  const RunResult rehearsal = run(t, 1, computes ? 2 : 1, /*probe_speed=*/false);
  for (const StepResult& step : rehearsal.steps) step_s = std::min(step_s, step.timeline.step_s);
  Plan& plan = plans_[t];
  if (computes && tasks_[t].kind != Kind::memory) {
    plan.steps = steps_of_jobs ? std::max(*steps_of_jobs, kLeastForSpread) : steps_for(step_s, kLeastForSpread);
    // As often as the jobs: each visit meets the machine at another speed, and both sides' means should be as good.
    plan.visits = steps_of_jobs ? most_visits_
                                : std::clamp(static_cast<std::uint32_t>(kSecondsPerTask / (plan.steps * step_s)), 1U,
                                             most_visits_);
    return;
  }
  const bool slow_link = !computes && step_s > kSecondsPerVisit;  // its probe repeats the transfer itself
  if (slow_link) plan.warmup_steps = 0;
  const std::uint32_t steps =
      steps_for(step_s, slow_link ? 1 : kLeastForSpread, computes ? kSecondsPerVisit : kSecondsPerLink);
  plan.visits = std::clamp(steps / kLeastForSpread, 1U, most_visits_);
  plan.steps = (steps + plan.visits - 1) / plan.visits;
}

sim::CalibrationSamples Calibrator::visit(std::size_t t) {
  if (plans_[t].steps == 0) rehearse(t);
  RunResult result = run(t, plans_[t].warmup_steps, plans_[t].steps, /*probe_speed=*/true);
  std::vector<sim::Timeline> timelines;
  for (StepResult& step : result.steps) timelines.push_back(std::move(step.timeline));
  sim::CalibrationSamples samples = samples_of(tasks_[t], timelines);
  samples.speed = result.speed;
  if (tasks_[t].kind != Kind::ops) return samples;
  const bool processes = sim::world_kind(tasks_[t].world).processes;
  std::vector<std::int64_t> resident_peaks;  // a process's threads all tell the process's
  for (std::size_t process = 0; process < (processes ? result.memory.size() : 1); ++process)
    resident_peaks.push_back(result.memory[process].resident_peak_bytes);
  add_memory(tasks_[t], result.workspace_bytes, resident_peaks, samples);
  return samples;
}

}  // namespace backend
