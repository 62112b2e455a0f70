// What a comparison collects: for every cell (model × strategy × world × executor) and round, the forecasts and the
// measured steps.
//
//   Result result = resume_or_new("r.json", environment);
//   Cell& cell = result.cell(program, "local");
//   place(cell, program, cluster);
//   cell.rounds.push_back({.round = result.next_round(), .predicted = {{"profiled", step_time(timeline)}}, …});
//   save_result("r.json", result);     // sim/report/report.hpp; after each round, so that a later run can resume
//
// File format "paragauge-result-1" (JSON):
//   context  object: whatever the program wrote about the machine, the build and its options
//   cells    [{model, strategy, world, executor, ranks, replicas, microbatches, global_batch, skipped, verify_error,
//              memory, rounds}]
//     skipped       why the cell could not run, or null
//     verify_error  largest |difference| / ‖reference‖₂ of the verified tensors, or null
//     device        what the ranks sat on (a GPU's name, a CPU's); devices: how many of them; may be missing
//     memory        {predicted_peak_bytes, measured_peak_bytes, allocator_peak_bytes, predicted_allocator_peak_bytes,
//                    predicted_resident_peak_bytes, resident_peak_bytes}: of the rank with the largest; capacity_bytes:
//                    of its device. null or missing: not known. predicted_at_peak_bytes: {tensor class: bytes};
//                    needed_bytes: {use: bytes}, of the device that least is left of (may be missing)
//     rounds        [{round, predicted, replayed_s, measured, attribution}]
//       predicted     {cost model: {step_s, compute_s, exposed_communication_s, bubble_s, host_s}}
//       replayed_s    step time with the measured durations put into the predicted dependencies, or null
//       measured      {step_s: [one per step], compute_s: […], exposed_communication_s: […], bubble_s: […], host_s: […]}
//       attribution   {cost model: [{class, predicted_s, measured_s, effect_s}]}, see `ClassError`
//   columns, rows, summary   computed from the cells when written (sim/report/report.hpp says what they mean), not read
//                            back
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/attribution.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

struct Round {
  int round = 0;
  std::map<std::string, StepTime> predicted;  // by cost model
  std::optional<double> replayed_s;
  std::vector<StepTime> measured;
  std::map<std::string, std::vector<ClassError>> attribution;  // by cost model
  friend bool operator==(const Round&, const Round&) = default;
};

/// Bytes at the peak, of the rank where its live tensors are largest.
struct CellMemory {
  std::optional<std::int64_t> predicted_peak_bytes, measured_peak_bytes;  // what the Program holds: should be equal
  std::optional<std::int64_t> allocator_peak_bytes;                       // with the ops' own workspace
  std::optional<std::int64_t> predicted_allocator_peak_bytes;             // by the cost model `profiled`
  std::optional<std::int64_t> resident_peak_bytes;                        // of the process
  std::optional<std::int64_t> predicted_resident_peak_bytes;              // by the cost model `profiled`
  std::map<std::string, std::int64_t> predicted_at_peak_bytes;            // by tensor class
  // Of the device that least is left of, all of its ranks together (sim/program/memory.hpp, MemoryFit):
  std::map<std::string, std::int64_t> needed_bytes;  // by MemoryUse; empty: not known
  std::optional<std::int64_t> capacity_bytes;
  friend bool operator==(const CellMemory&, const CellMemory&) = default;

  [[nodiscard]] std::optional<std::int64_t> needed() const;  // the sum of needed_bytes
  /// Whether they fit: known where both sides are.
  [[nodiscard]] std::optional<bool> fits() const;
};

struct Cell {
  std::string model, strategy, world;  // canonical texts
  /// Who ran the steps; a peer (plain PyTorch) is a cell of its own with the same forecasts.
  std::string executor = "paragauge";
  std::int64_t ranks = 1, replicas = 1, microbatches = 1, global_batch = 1;
  std::string device;        // Cluster::device_name(); empty: not known
  std::int64_t devices = 0;  // that the ranks sit on; 0: not known
  std::string skipped;       // why it could not run; empty: it could
  std::optional<double> verify_error;
  CellMemory memory;
  std::vector<Round> rounds;
  friend bool operator==(const Cell&, const Cell&) = default;
};

struct Result {
  nlohmann::json context = nlohmann::json::object();
  std::vector<Cell> cells;

  /// The cell of this name, added at the end if there is none. Valid until the next one is added.
  Cell& cell(std::string_view model, std::string_view strategy, std::string_view world,
             std::string_view executor = "paragauge");
  /// The same for a program, with its ranks and microbatches filled in.
  Cell& cell(const Program& program, std::string_view world, std::string_view executor = "paragauge");
  /// The first round that some cell (not skipped) hasn't got: where a later run goes on.
  [[nodiscard]] int next_round() const;
};

/// Fills in where the ranks sit and what memory the Program needs. `workspace_bytes`: by work (Prices), where known.
void place(Cell& cell, const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes = {});

nlohmann::ordered_json to_json(const Cell& cell);
/// `where` names the text in messages. ConfigError when it is truncated, of another version, or says something that
/// can't be.
Result result_from_json(std::string_view text, const std::string& where);
Result load_result(const std::filesystem::path& path);
/// The file's content if it exists, else an empty result with this context. ConfigError when a file is there that is no
/// result.
Result resume_or_new(const std::filesystem::path& path, const nlohmann::json& context);

}  // namespace sim
