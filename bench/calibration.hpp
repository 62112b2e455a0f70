// Calibration: what has to be measured to forecast some jobs, and measuring it.
//
//   for (CalibrationTask& task : calibration_tasks(jobs, worlds.busy_ranks(), true)) {
//     rehearse_task(task, worlds, 1);
//     add(measure_task(task, worlds), task, profile);
//   }
//
// Ops are played in model order by one-rank programs (sim::calibration_program) in the job's world, on one rank alone
// and on several at once; links by probes of the sizes that the jobs' transfers have. No step that is going to be
// predicted is ever played.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/machine.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/cost/profile.hpp"

namespace bench {

struct CalibrationTask {
  std::string label;  // of no other task
  std::string world;
  sim::Program program;
  sim::Cluster cluster;
  std::uint32_t copies = 0;             // ops: ranks that play the program at the same time; 0: a link's probe
  sim::TransferQuestion question = {};  // links
  bool overlap = false;                 // compute beside the transfers: what they or their notes take from the cores
  bool rendezvous = false;              // a link's probe: half of its messages are unexpected
  std::uint32_t warmup_steps = 1, steps = 1, visits = 1;
  std::vector<std::size_t> jobs = {};  // ops: whose programs these are, for one rank; none: the memory's probe
};

/// In a fixed order without repetitions. `ladder`: links at powers of 4 from 4 KiB to 64 MiB and the memory probe too,
/// for forecasts of other sizes.
std::vector<CalibrationTask> calibration_tasks(const std::vector<Job>& jobs, std::uint32_t busy_ranks, bool ladder);

/// Steps per visit: enough that a small model's visit isn't one hiccup, and most of its steps are warm. Every step
/// begins with a barrier (2 ms on gloo). What slows this kind of machine down lasts for seconds: many short visits tell
/// more than a long one.
std::uint32_t steps_for(double step_s, std::uint32_t least, double visit_s = 0.1);

/// Of a rehearsal: one of its steps may have been interrupted.
double shortest_step_s(const backend::RunResult& run);

/// Plays the task for a moment, to know how long it takes, and sets its steps and visits (up to `most_visits`); nothing
/// else is kept. Ops: a visit has as many steps as one of the jobs' own, if that is given, but at least two. Training
/// changes what the ops compute on and so their times: a max pool's branches are predicted worse from step to step.
void rehearse_task(CalibrationTask& task, const Worlds& worlds, std::uint32_t most_visits,
                   std::optional<std::uint32_t> steps_of_jobs = std::nullopt);

/// Seconds; the posts as in sim::PostTimes.
struct LinkSamples {
  std::vector<double> transfers, posts, recv_posts;
};

/// What a task's measurement has given, in seconds.
struct CalibrationSamples {
  std::map<std::string, std::vector<double>> works;  // by sim::work_key
  LinkSamples link, unexpected;                      // of a link; point to point where the sender came first
  std::vector<double> notes;                         // of the other's core, as in sim::Rendezvous
  std::vector<double> launches;
  std::vector<double> core_shares;                 // 0…1, one per step
  std::map<std::string, std::int64_t> workspaces;  // bytes, by sim::work_key
  sim::RankSpread rank_spread;                     // ops on several ranks
  sim::Interruptions interruptions;                // of the works and transfers, which are without
  std::vector<double> process_bytes;               // by process: what it holds beside its ranks' tensors
};
CalibrationSamples measure_task(const CalibrationTask& task, const Worlds& worlds);
void add(const CalibrationSamples& samples, const CalibrationTask& task, sim::Profile& profile);
/// Only what doesn't depend on what was played: how far ranks lie apart, and what interrupts them.
void add_machine(const CalibrationSamples& samples, const CalibrationTask& task, sim::Profile& profile);

}  // namespace bench
