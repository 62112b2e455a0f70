// One rank's part of a run, and what the ranks' parts say together.
//
//   std::optional<Executor> executor;
//   RankReport mine = play(request, communicator, board, executor);     // on every rank
//   RunResult result = merge(request, {rank0s, rank1s});                // where the session is
#pragma once

#include <optional>
#include <vector>

#include "backend/execute.hpp"
#include "backend/session.hpp"
#include "backend/supervise.hpp"

namespace backend {

/// What one rank has measured.
struct RankReport {
  std::vector<sim::RankTimeline> steps;  // without the warm-up
  std::vector<double> losses;  // per step, warm-up included: mean over the rank's loss instructions, NaN if none
  RankMemory memory;
  NamedTensors state;  // for `verify`
};

/// Plays the request on this rank; ranks beyond the program's only keep step. The executor stays with the caller: its
/// tensors must outlive the others' transfers, also when this rank fails.
RankReport play(const RunRequest& request, Communicator& communicator, const ProgressBoard& board,
                std::optional<Executor>& executor);

/// The reports in the order of ranks, idle ones last.
RunResult merge(const RunRequest& request, std::vector<RankReport> reports);

/// RankMemory::resident_peak_bytes counts from here on.
void reset_resident_peak();

}  // namespace backend
