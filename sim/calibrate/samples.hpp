// From the timelines of a calibration task to a profile.
//
//   CalibrationSamples samples = samples_of(task, timelines);      // of one visit's steps
//   add(samples, task, profile);
//
// A profile holds means, so that an op that takes long now and then is charged for it. Only interruptions by the
// machine (sim::Interruptions) and transfers that are late by far (sim::LateTransfers) are counted apart: with few
// samples, it would be chance which op or size they are charged to.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/calibrate/machine_speed.hpp"
#include "sim/calibrate/tasks.hpp"
#include "sim/cost/profile.hpp"
#include "sim/cost/statistic.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// Seconds: from ready to done, the overheads of posting a send or collective, and a recv, and TransferCost::engaged_s.
struct LinkSamples {
  std::vector<double> transfers, send_overheads, recv_overheads, engaged;
  std::vector<std::vector<double>> rewritings;  // rewriting_times, by rank: noise may be negative
  std::vector<double> core_times;               // core_time, one per step; a ratio
};
/// TransferCost::rewriting_s: the ranks' medians, their mean.
double rewriting_s(const LinkSamples& link);

/// What one visit shows; times in seconds.
struct CalibrationSamples {
  std::map<std::string, std::vector<double>> works;   // by sim::work_key
  LinkSamples link, unexpected;                       // the latter: messages that came before their receiver
  std::vector<double> notifications;                  // taken from the core of the other end; noise may be negative
  std::vector<double> launches, gaps;                 // Profile::launch, gap_s
  std::map<std::string, std::vector<double>> issues;  // of an asynchronous device's host, by sim::work_key
  std::vector<double> core_shares;                    // 0…1, one per step
  std::map<std::string, std::int64_t> workspaces;     // bytes, by sim::work_key
  RankSpread rank_spread;
  Interruptions interruptions;
  LateTransfers late_transfers;
  std::vector<double> process_bytes;  // by process: what it holds beside its ranks' tensors
  std::optional<MachineSpeed> speed;  // beside the visit
};

/// The samples of one visit: steps that were run one after the other.
CalibrationSamples samples_of(const CalibrationTask& task, std::span<const Timeline> steps);

/// Adds the memory of an ops task: the workspace of each [rank][instruction], and the resident peaks of the processes
/// that its ranks were spread over: one for all, or one for each.
void add_memory(const CalibrationTask& task, std::span<const std::vector<std::int64_t>> workspace_bytes,
                std::span<const std::int64_t> resident_peak_bytes, CalibrationSamples& samples);

/// What the works of an ops task's step take of a rank, mean over its ranks: for how much rounds differ. Nothing of
/// other tasks, and where the visit doesn't show every work.
std::optional<double> seconds_of(const CalibrationTask& task, const CalibrationSamples& samples);

/// All that the samples say.
void add(const CalibrationSamples& samples, const CalibrationTask& task, Profile& profile);

/// What they say for the forecast of job `j` of the `jobs` that the tasks were made for. Of the job's own tasks that is
/// everything; of those of other jobs with as many ranks in the same world, only how far ranks lie apart and how often
/// they are interrupted, which doesn't depend on what is run. So a forecast doesn't depend on comparisons with other
/// numbers of ranks.
void add_for_job(const CalibrationSamples& samples, const CalibrationTask& task, const std::vector<Job>& jobs,
                 std::size_t j, Profile& profile);

}  // namespace sim
