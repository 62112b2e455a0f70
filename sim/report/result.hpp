// What a comparison collects: for every cell (model × strategy × world × executor) and round, the forecasts and the
// measured steps.
//
//   Result result = resume_or_new("r.json", "compare");
//   result.begin_session(context, "r.json");        // ConfigError where its rounds were taken under other conditions
//   Cell& cell = result.cell(program, "local");
//   place(cell, program, cluster);
//   cell.rounds.push_back({.round = result.next_round(), .predicted = {{"profiled", f.step}}});
//   save_result("r.json", result);                  // sim/report/report.hpp; after each round, to be resumed
//
// File format "paragauge-result-4" (JSON, numbers of 5 digits, deviations and effects of 3). A list of five numbers is a
// StepTime in the order of sim/simulate/timeline.hpp.
//   kind      the command that made it: compare, measure, predict, report
//   sessions  [{first_round, context}]: what each run wrote about the machine, the build and its options
//   cells     [{model, strategy, world, executor, ranks, replicas, microbatches, global_batch, device, devices,
//               program, skipped, verify_error, memory, attribution, rounds}]
//     settings      of a peer: what isn't PyTorch's default ("fused updates, channels_last"); "graph": the steps are
//                   replays of a captured one; may be missing
//     sent_bytes    in a step, and in how many transfers, by the rank that sends most; may be missing
//     device        what the ranks sat on (a GPU's name, a CPU's) or ""; devices: how many of them, 0: not known
//     program       hash of the Program's text or "": rounds of another one are refused
//     skipped       why the cell could not run, or null
//     verify_error  largest |difference| / ‖reference‖₂ of the verified tensors, or null
//     memory        {predicted_peak_bytes, measured_peak_bytes, allocator_peak_bytes, predicted_allocator_peak_bytes,
//                    predicted_resident_peak_bytes, resident_peak_bytes}: of the rank with the largest; capacity_bytes:
//                    of its device. Missing: not known. predicted_at_peak_bytes: {tensor class: bytes};
//                    needed_bytes: {use: bytes}, of the device that least is left of, and fused_needed_bytes in all if
//                    its optimizer's updates were fused; by_device: [{ranks: "1-3", devices, needed_bytes}], of each,
//                    alike ones together, needed_bytes where they are others than those (all may be missing)
//     attribution   {cost model: {rounds, effects_s: {class: effect}}}: means over so many rounds, see
//                   `ClassError::effect_s`; of less than a two-thousandth of the step in "rest"
//     as_ours       true: the rounds of this peer have predicted, stated_90, novelty, guesses and speed of our cell's,
//                   which stands before it; may be missing
//     rounds        {round, predicted, replayed_s, measured, speed}: the values of all rounds by name, as lists of
//                   equal length; null where a round has none, such as {round: [0, 1], replayed_s: [0.25, null]}.
//                   Of each round:
//       predicted     {cost model: [5]}
//       stated_90     {cost model: [low_s, high_s]}: a forecast's own 90 % interval (sim/simulate/forecast.hpp); may be
//                     missing
//       as_before     [cost model]: whose predicted, stated_90, novelty and guesses are as in the round before; may be
//                     missing
//       novelty       {cost model: share}: how much of the step is unlike what the profile has (Forecast::novelty);
//                     missing: 0
//       guesses       {cost model: [what]}: what the profile lacks, and what answered (Forecast::guesses); missing:
//                     nothing
//       replayed_s    step time with the measured durations put into the predicted dependencies; missing where there are none
//       measured      {count, mean: [5], sd_s, median_s} of the round's steps; samples: [[5], …] if asked for
//       speed         [compute_s, memory_alone_s, memory_together_s, change, core_to_core_s]: the machine's, mean of the
//                     visits (MachineSpeed); may be missing, and the last value, too
//   columns, rows, summary   only in a file of `predict`, `plan` and `report`: computed from the cells when written
//                            (sim/report/report.hpp says what they mean), not read back
// Older ones are read, too: until "paragauge-result-3" `rounds` was a list, of an object for each round; in -2 `ddp` was
// what is `ddp_blocking` today, and `ddp,overlap=1` what is `ddp` (of `mesh` alike); -1 had one `context`, all samples,
// attribution by round.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/calibrate/machine_speed.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/report/measurement.hpp"
#include "sim/simulate/attribution.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// Who ran the steps of a cell: we, or a peer: the same step in plain PyTorch, as people write it, and at its best
/// (fused updates; channels_last where that is faster).
constexpr std::array<std::string_view, 3> kExecutors{"paragauge", "pytorch", "pytorch_best"};
constexpr std::string_view kOurs = kExecutors[0];
constexpr std::span kPeers = std::span(kExecutors).subspan<1>();

/// The measured steps of one round, and what they say.
struct RoundSteps {
  RoundSteps() = default;
  RoundSteps(std::initializer_list<StepTime> steps) { add({steps.begin(), steps.size()}); }
  void add(std::span<const StepTime> steps);
  [[nodiscard]] bool empty() const { return count == 0; }
  friend bool operator==(const RoundSteps&, const RoundSteps&) = default;

  std::size_t count = 0;
  StepTime mean;
  double sd_s = 0;  // of the steps, of the sample (n − 1); 0 of a single one
  double median_s = 0;
  std::vector<StepTime> samples;  // in the order they were run; empty when only their numbers are known
};

struct Round {
  int round = 0;
  std::map<std::string, StepTime> predicted;  // by cost model
  std::map<std::string, Interval> stated_90;  // of the step, by cost models that say how well they know it
  std::map<std::string, double> novelty;      // Forecast::novelty, where it isn't 0
  std::map<std::string, std::vector<std::string>> guesses;  // Forecast::guesses, where there are any
  std::optional<double> replayed_s;
  RoundSteps measured;
  std::optional<MachineSpeed> speed;  // of the machine, beside the visits: mean

  void add_forecast(const std::string& cost_model, const Forecast& forecast);
  friend bool operator==(const Round&, const Round&) = default;
};

/// What carries the error of a cell's forecasts by one cost model: means over the rounds that say.
struct Attribution {
  std::size_t rounds = 0;
  std::map<std::string, double> effects_s;  // ClassError::effect_s by class
  /// One more round. A class that a round lacks counts 0 there.
  void add(const std::vector<ClassError>& of_round);
  friend bool operator==(const Attribution&, const Attribution&) = default;
};

/// What devices need that need the same (sim/program/memory.hpp, MemoryNeed).
struct DeviceNeed {
  std::string ranks;  // that sit on them: "0", "1-3", "0,8,16,…,120"
  std::int64_t devices = 0;
  std::map<std::string, std::int64_t> needed_bytes;  // by MemoryUse, nothing of what isn't needed
  friend bool operator==(const DeviceNeed&, const DeviceNeed&) = default;

  [[nodiscard]] std::int64_t needed() const;
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
  std::optional<std::int64_t> fused_needed_bytes;  // the same with fused=True, where the optimizer's default is another
  std::optional<std::int64_t> capacity_bytes;
  std::vector<DeviceNeed> by_device;  // by their first rank; empty: not known
  friend bool operator==(const CellMemory&, const CellMemory&) = default;

  [[nodiscard]] std::optional<std::int64_t> needed() const;        // the sum of needed_bytes
  [[nodiscard]] std::optional<std::int64_t> least_needed() const;  // of the device that needs least
  /// Whether they fit: known where both sides are.
  [[nodiscard]] std::optional<bool> fits() const;
};

struct Cell {
  std::string model, strategy, world;  // canonical texts
  /// Who ran the steps; a peer (plain PyTorch) is a cell of its own with the same forecasts.
  std::string executor{kOurs};
  std::string settings;  // of a peer: what isn't PyTorch's default; "graph": steps are replays; empty: nothing
  std::int64_t ranks = 1, replicas = 1, microbatches = 1, global_batch = 1;
  std::int64_t threads = 1;                           // of each rank
  std::string device;                                 // Cluster::device_name(); empty: not known
  std::int64_t devices = 0;                           // that the ranks sit on; 0: not known
  std::int64_t cores = 0;                             // that there are; 0: not known, or the devices are no cores
  std::optional<std::int64_t> sent_bytes, transfers;  // of the rank that sends most in a step (sim/program/traffic.hpp)
  std::string program;                                // hash of its text; empty: not known
  std::string skipped;                                // why it could not run; empty: it could
  std::optional<double> verify_error;
  CellMemory memory;
  std::map<std::string, Attribution> attribution;  // by cost model
  /// How well the kinds of cost of its forecasts are known, by cost model; where it isn't measured. Not in the file.
  std::map<std::string, std::vector<KindSpread>> spreads;
  std::vector<Round> rounds;
  friend bool operator==(const Cell&, const Cell&) = default;
};

/// One run of a command: what it wrote of the machine, the build and its options.
struct Session {
  int first_round = 0;
  nlohmann::json context = nlohmann::json::object();
};

struct Result {
  std::string kind;  // the command
  std::vector<Session> sessions;
  std::vector<Cell> cells;

  /// The index of the cell of this name.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view model, std::string_view strategy,
                                                std::string_view world, std::string_view executor) const;
  /// The cell of this name, added at the end if there is none. Valid until the next one is added.
  Cell& cell(std::string_view model, std::string_view strategy, std::string_view world,
             std::string_view executor = kOurs);
  /// The same for a program, with its ranks and microbatches filled in.
  Cell& cell(const Program& program, std::string_view world, std::string_view executor = kOurs);
  /// The first round that some cell (not skipped) hasn't got: where a later run goes on.
  [[nodiscard]] int next_round() const;
  /// ConfigError when `context` differs from an earlier session's in what changes times: device, network, scheduling,
  /// CPU, GPUs, cores, and the command's own `options`. What one of them doesn't say isn't compared. `where` names the
  /// file.
  void check_conditions(const nlohmann::json& context, const std::string& where) const;
  /// The same, and the next rounds are this session's.
  void begin_session(const nlohmann::json& context, const std::string& where);
};

/// A cell that can't run: `strategy` is a text as people wrote it, for which there is no Program.
Cell skipped_cell(const Model& model, std::string_view strategy, std::string_view world, std::string_view why);
/// ConfigError with the reasons, each once, where there are cells and all of them are skipped.
void check_not_all_skipped(const Result& result);
/// Fills in where the ranks sit and what memory the Program needs. `workspace_bytes`: by work (Costs), where known.
void place(Cell& cell, const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes = {});
/// ConfigError when the cell's rounds are of another Program: its model's file, or the code that lowers it, has
/// changed.
void check_program(Cell& cell, const Program& program, const std::string& where);

/// `with_samples`: every measured step, too, where it is known. `ours`: for a peer, our cell if it stands before it in the
/// file.
nlohmann::ordered_json to_json(const Cell& cell, bool with_samples = false, const Cell* ours = nullptr);
/// `where` names the text in messages. ConfigError when it is truncated, of another version, or says something that
/// can't be.
Result result_from_json(std::string_view text, const std::string& where);
Result load_result(const std::filesystem::path& path);
/// The file's content if it is there and not empty, else a new result of this kind. ConfigError when the file is no
/// result of this kind.
Result resume_or_new(const std::filesystem::path& path, std::string_view kind);
/// ConfigError when writing a result of this kind would replace something else: a result of another kind, or a file
/// that is none. A device, a pipe, an empty or no file are fine.
void check_replaceable(const std::filesystem::path& path, std::string_view kind);

}  // namespace sim
