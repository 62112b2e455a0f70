// Where every rank is, and why it has failed: shared memory that outlives the rank's process. And who stands still.
//
//   ProgressBoard board(ranks);                    // a page per rank
//   board.set_labels(0, program, role);            // what the instructions are called
//   board.progress(0).instruction = 12;
//   board.where(0)                                 // "in instruction 12: wait for recv layer1 from stage0"
//   HangWatch watch(board, timeout_s);
//   watch.look({false, true});                     // about twice a second: which ranks' processes are stopped
//   // "rank 1 is stopped in instruction 12: compute forward fc"; the same, sooner, where rank 0 has given up waiting
//   if (auto text = watch.overdue()) throw sim::RunError("{}", *text);
//   if (auto text = watch.behind(0)) throw sim::RunError("{}", *text);
//
// Ranks that are processes join the board of who has spawned them (backend/supervise.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "sim/program/program.hpp"

namespace backend {

enum class Stage : std::uint32_t { starting, meeting, serving, ending };

struct Progress {
  std::atomic<Stage> stage{Stage::starting};
  std::atomic<std::uint32_t> step{0};                    // steps begun
  std::atomic<std::uint32_t> ended{kAll};                // steps of the program that it plays
  std::atomic<std::uint32_t> instruction{kOutsideStep};  // the list's size: at the end of the step

  static constexpr std::uint32_t kOutsideStep = 0xffffffffU, kAll = 0xffffffffU;
};

/// Why a rank can't go on.
struct Failure {
  double moment_s = 0;  // on now_s()
  int status = 0;       // sim::exit_status
  std::string text;
};
/// Throws the error that it was.
[[noreturn]] void rethrow(const Failure& failure);

class ProgressBoard {
 public:
  /// The variable with the descriptor of the board that a spawned rank is to join.
  static constexpr const char* kVariable = "PARAGAUGE_PROGRESS";

  explicit ProgressBoard(std::uint32_t ranks);
  /// The supervisor's board, of all ranks that it has spawned, when spawn_ranks has started this process; else one of its
  /// own, of `ranks`.
  static ProgressBoard join(std::uint32_t ranks);
  /// Whether somebody watches the board that this process joins.
  static bool is_watched();
  ~ProgressBoard();
  ProgressBoard(ProgressBoard&& other) noexcept;
  ProgressBoard(const ProgressBoard&) = delete;

  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }
  [[nodiscard]] Progress& progress(std::uint32_t rank) const;
  /// What `where` calls the instructions of this rank; outside of steps only.
  void set_labels(std::uint32_t rank, const sim::Program& program, const sim::Role& role) const;
  /// "in instruction 12: wait for recv layer1 from stage0", "outside a step", "while starting".
  [[nodiscard]] std::string where(std::uint32_t rank) const;
  /// Whether its instruction is a wait for other ranks.
  [[nodiscard]] bool waits(std::uint32_t rank) const;

  /// The time from before a program's first step until the rank plays it no more, for whatever reason.
  class Participation {
   public:
    explicit Participation(Progress& progress) : progress_(progress) { progress_.ended = 0; }
    ~Participation() { progress_.ended = Progress::kAll; }
    Participation(const Participation&) = delete;

   private:
    Progress& progress_;
  };
  /// Called at the end of this rank's step: returns when those of the program's `ranks` that share its core have ended
  /// theirs, too. What a rank does between steps (up to 0.3 ms) would else be time of
  /// another's step, which waits for the core.
  void let_others_end(std::uint32_t rank, std::uint32_t ranks) const;

  /// Tells the supervisor, if there is one, why this rank has failed, and gives it time to end all ranks: the others'
  /// failures that follow from this one are then nobody's concern.
  void fail(std::uint32_t rank, const std::exception& error) const;
  [[nodiscard]] std::optional<Failure> failure(std::uint32_t rank) const;

  /// A file descriptor that children inherit; -1 of a board that was joined.
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  struct Page;
  ProgressBoard(int descriptor, std::uint32_t ranks);
  [[nodiscard]] Page& page(std::uint32_t rank) const;

  int descriptor_ = -1;
  std::uint32_t ranks_ = 0;
  Page* pages_ = nullptr;
};

/// Finds the rank that stands still, so that it is named and not the one that waits for it.
class HangWatch {
 public:
  HangWatch(const ProgressBoard& board, double timeout_s);

  /// Remembers where the ranks are now. `stopped`: by rank; empty where the ranks are threads.
  void look(const std::vector<bool>& stopped = {});
  /// A rank that has been stopped for the timeout, or hasn't got on for a little longer: a rank that waits for another
  /// gives up by itself at the timeout. Compute before waits.
  [[nodiscard]] std::optional<std::string> overdue() const;
  /// The rank that has kept `failed` waiting: one that is stopped, hasn't come, or computes for most of the timeout.
  [[nodiscard]] std::optional<std::string> behind(std::uint32_t failed) const;

 private:
  struct Seen {
    Stage stage = Stage::starting;
    std::uint32_t step = 0, instruction = Progress::kOutsideStep;
    double since_s = 0;               // it has been there
    std::optional<double> stopped_s;  // since when it has been stopped
  };
  [[nodiscard]] std::string hangs(std::uint32_t rank, double seconds) const;
  [[nodiscard]] std::string is_stopped(std::uint32_t rank) const;

  const ProgressBoard& board_;
  const double timeout_s_, patience_s_;
  std::vector<Seen> seen_;
  double now_s_ = 0;
};

}  // namespace backend
