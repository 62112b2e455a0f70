#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "backend/world/world.hpp"
#include "bench/calibration.hpp"
#include "bench/commands.hpp"
#include "bench/machine.hpp"
#include "sim/report.hpp"
#include "sim/simulate.hpp"
#include "sim/spec.hpp"

namespace bench {
namespace {

/// Steps of a cell per round: enough that a small model's round isn't one hiccup.
std::uint32_t steps_for(double step_s, std::uint32_t least) {
  constexpr double kSecondsPerCell = 0.3;
  constexpr std::uint32_t kMost = 100;
  return std::clamp(static_cast<std::uint32_t>(kSecondsPerCell / std::max(step_s, 1e-6)), least,
                    std::max(least, kMost));
}

/// The forecasts of one cell from this round's calibration, the replay of its measured steps, and where they differ.
void add_forecasts(const Job& job, const sim::Profile& profile, const backend::RunResult& run, sim::Round& round) {
  std::vector<sim::Timeline> measured;
  double replayed_s = 0;
  for (const backend::StepResult& step : run.steps) {
    measured.push_back(step.timeline);
    replayed_s +=
        sim::replay(job.program, sim::durations_of(job.program, step.timeline, job.cluster), job.cluster).step_s;
  }
  round.replayed_s = replayed_s / static_cast<double>(run.steps.size());
  for (const sim::CostModelKind& kind : sim::cost_model_table()) {
    const std::unique_ptr<sim::CostModel> cost_model = kind.make(job.cluster, &profile);
    const sim::Timeline predicted =
        sim::simulate(job.program, sim::price(job.program, *cost_model, job.cluster), job.cluster);
    round.predicted[std::string(kind.name)] = sim::step_time(predicted);
    round.attribution[std::string(kind.name)] =
        sim::attribute_cost_error(job.program, job.cluster, predicted, measured).classes;
  }
}

/// One round: everything once, in shuffled order.
class Rounds {
 public:
  Rounds(const CompareOptions& options, const std::vector<Job>& jobs, const Worlds& worlds)
      : options_(options), jobs_(jobs), worlds_(worlds), tasks_(calibration_tasks(jobs, worlds.busy_ranks(), false)) {}

  /// Plays everything for a moment, to know how long it takes; nothing of it is kept.
  void rehearse() {
    for (const Job& job : jobs_) {
      const backend::RunResult run = worlds_.at(job.world).run({.program = job.program, .warmup_steps = 1, .steps = 1});
      steps_.push_back(steps_for(run.steps[0].timeline.step_s, options_.steps));
      fmt::print("compare: {}: {:.1f} ms, {} steps a round\n", to_text(job), run.steps[0].timeline.step_s * 1e3,
                 steps_.back());
      std::fflush(stdout);
    }
    for (CalibrationTask& task : tasks_) {
      const backend::RunResult run =
          worlds_.at(task.world).run({.program = task.program, .warmup_steps = 1, .steps = 1, .copies = task.copies});
      task.steps = steps_for(run.steps[0].timeline.step_s, 2);
    }
  }

  void play(int number, sim::Result& result) {
    std::vector<std::size_t> order(tasks_.size() + jobs_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::shuffle(order.begin(), order.end(), std::mt19937(options_.seed * 1000 + static_cast<unsigned>(number)));
    sim::Profile profile(options_.machine.device);
    std::vector<backend::RunResult> runs(jobs_.size());
    for (const std::size_t i : order) {
      if (i < tasks_.size()) {
        measure_task(tasks_[i], worlds_, profile);
      } else {
        const std::size_t j = i - tasks_.size();
        runs[j] = worlds_.at(jobs_[j].world).run({.program = jobs_[j].program, .warmup_steps = 1, .steps = steps_[j]});
      }
    }
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      sim::Cell& cell = result.cell(jobs_[j].program, jobs_[j].world);
      if (std::any_of(cell.rounds.begin(), cell.rounds.end(), [&](const sim::Round& r) { return r.round == number; }))
        continue;
      sim::Round round;
      round.round = number;
      add_measured(cell, round, runs[j]);
      add_forecasts(jobs_[j], profile, runs[j], round);
      cell.rounds.push_back(std::move(round));
    }
  }

 private:
  const CompareOptions& options_;
  const std::vector<Job>& jobs_;
  const Worlds& worlds_;
  std::vector<CalibrationTask> tasks_;
  std::vector<std::uint32_t> steps_;
};

}  // namespace

int compare(const CompareOptions& options) {
  const double begin_s = backend::now_s();
  const std::vector<Job> jobs = make_jobs(options.subject, options.machine);
  sim::Result result;
  if (!options.output.json.empty()) result = sim::resume_or_new(options.output.json, result.context);
  const Worlds worlds(options.machine, jobs);
  if (worlds.elsewhere()) return *worlds.elsewhere();
  result.context = context(options.machine, worlds);
  for (const Job& job : jobs) result.cell(job.program, job.world);
  const int first = result.next_round();
  if (first > 0) fmt::print("compare: going on with round {}\n", first + 1);
  Rounds rounds(options, jobs, worlds);
  if (first < static_cast<int>(options.rounds)) rounds.rehearse();
  for (int round = first; round < static_cast<int>(options.rounds); ++round) {
    if (options.time_limit_s > 0 && backend::now_s() - begin_s > options.time_limit_s) {
      fmt::print("compare: the time limit of {:g} s has passed after {} of {} rounds\n", options.time_limit_s, round,
                 options.rounds);
      break;
    }
    const double round_begin_s = backend::now_s();
    rounds.play(round, result);
    if (!options.output.json.empty()) sim::save_result(options.output.json, result);
    fmt::print("compare: round {}/{} took {:.1f} s\n", round + 1, options.rounds, backend::now_s() - round_begin_s);
    std::fflush(stdout);
  }
  const sim::Report report = sim::make_report(result);
  fmt::print("\n{}", sim::to_console(report));
  if (!options.output.csv.empty()) sim::write_text_file(options.output.csv, sim::to_csv(report));
  return 0;
}

}  // namespace bench
