// What has to be measured so that jobs can be forecast.
//
//   for (const CalibrationTask& task : calibration_tasks(jobs, {.other_sizes = true}))
//     fmt::print("{}\n", task.label);
//
// Ops are measured in the order of the strategy's own program: the lists of its roles without each other (`alone`),
// first in turns, then at once; transfers, notifications and core shares by probes (probe.hpp). No step with
// more than one rank is ever run for its own forecast; a one-rank strategy's program is its ops, though, and so is
// measured itself, in other visits than those that it is compared with.
//
// Ranks of more than one thread are measured with as many, on cores as in the job.
//
// A job's tasks depend on that job alone, not on the others in the list; jobs that need the very same one share it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/cost/cost_model.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/program.hpp"

namespace sim {

struct CalibrationTask {
  enum class Kind : std::uint8_t {
    ops,           // of a model as a strategy runs them
    pace,          // ops that several ranks run at once: how far ranks lie apart
    memory,        // memory_probe: for forecasts of other shapes
    transfers,     // transfer_probe of `question`
    notification,  // notification_probe
    core_share     // overlap_probe
  };
  Kind kind = Kind::ops;
  std::string label;  // for people
  std::string world;
  Program program;
  Cluster cluster;
  TransferQuestion question = {};  // transfers; of the others the participants
  bool in_turns = false;           // ops: of several ranks, one computes at a time
  std::vector<std::size_t> jobs =
      {};               // whose costs these are, ascending; none: for forecasts of other shapes and sizes
  std::string id = {};  // of the content: another program or world has another one

  [[nodiscard]] std::uint32_t ranks() const { return program.ranks(); }
  /// Ranks that wait for nobody; else a probe of what goes between them.
  [[nodiscard]] bool only_computes() const { return kind <= Kind::memory; }
  /// How many devices compute at the same time.
  [[nodiscard]] std::uint32_t busy_devices() const;
  /// Ranks that share a device wait for it, and that isn't what the machine does to a rank. Idle ones don't count.
  [[nodiscard]] bool shares_devices() const;
  /// Half of a probe's messages come before their receiver is ready.
  [[nodiscard]] bool has_unexpected() const;
};

struct CalibrationScope {
  /// Transfers at powers of 4 from 4 KiB to 64 MiB and the memory probe, for forecasts of other shapes and sizes.
  bool other_sizes = false;
  /// Ops are measured on 1, 2, … so many ranks at once; 0: as many as the job's ranks have devices. At the highest
  /// level all roles' lists run at once where each rank has a device (a list is slowed down by the others beside it,
  /// not by copies of itself); where ranks take turns on a device, all ranks run, so that each finds the caches as the
  /// others have left them.
  std::uint32_t busy_ranks = 0;
};

/// The tasks in a fixed order without repetitions.
std::vector<CalibrationTask> calibration_tasks(const std::vector<Job>& jobs, const CalibrationScope& scope = {});

}  // namespace sim
