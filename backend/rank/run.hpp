// One rank's part of a run, and what the ranks' parts say together.
//
//   std::optional<Executor> executor;
//   RankReport mine = execute(request, communicator, board, dataset, executor);     // on every rank
//   compare_state(request, reference, rank, mine);                         // on every rank, to verify
//   RunResult result = merge(request, {rank0s, rank1s});                // where the session is
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/rank/execute.hpp"
#include "backend/rank/one_clock.hpp"
#include "backend/rank/progress.hpp"
#include "backend/rank/verify.hpp"
#include "backend/session.hpp"

namespace backend {

/// What a rank's probes took; 0: it didn't probe that.
struct SpeedProbe {
  double compute_s = 0, memory_alone_s = 0, memory_together_s = 0, core_to_core_s = 0;
};

/// What one rank has measured.
struct RankReport {
  std::vector<sim::RankTimeline> steps;  // without the warm-up
  std::vector<double> late_s;            // by step: how much later than it should have it began here
  ClockReading clock;                    // of this rank's host, beside rank 0's
  std::vector<double> losses;  // per step, warm-up included: mean over the rank's loss instructions, NaN if none
  RankMemory memory;
  std::vector<std::int64_t> workspace_bytes;  // by instruction
  std::vector<SpeedProbe> probes;             // before the first step and after the last, where asked for
  NamedTensors state;                         // to verify: gradients, parameters, buffers; gone after compare_state
  std::string packed;                         // after training: what it has of the state (backend/train/state.hpp)
  std::vector<VerifiedTensor> compared;       // what compare_state found
};

/// Plays the request on this rank; ranks beyond the program's only keep step. The executor stays with the caller: its
/// tensors must outlive the others' transfers, also when this rank fails. `dataset`: to train on.
RankReport execute(const RunRequest& request, Communicator& communicator, const ProgressBoard& board,
                   const Dataset& dataset, std::optional<Executor>& executor);

/// One device executing the request's partition.
Reference reference_of(const RunRequest& request);

/// Rank 0's reference, on every rank: the others neither play the steps again nor hold their activations. `own`: rank
/// 0's; nothing elsewhere.
Reference share_reference(Control& control, std::optional<Reference> own);

/// Compares the rank's state with the reference and drops it: only numbers go to rank 0, not gigabytes.
void compare_state(const RunRequest& request, const Reference& reference, std::uint32_t rank, RankReport& report);

/// The reports in the order of ranks, idle ones last. `reference`: what they were compared with, where they were.
RunResult merge(const RunRequest& request, std::vector<RankReport> reports, const Reference* reference = nullptr);

/// RankMemory::resident_peak_bytes counts from here on, without what earlier runs have freed.
void reset_resident_peak();

}  // namespace backend
