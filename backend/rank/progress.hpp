// Where every rank is, and why it has failed: shared memory that outlives the rank's process.
//
//   ProgressBoard board(ranks);                    // a page per rank
//   board.set_labels(0, program, role);            // what the instructions are called
//   board.progress(0).instruction = 12;
//   board.where(0)                                 // "in instruction 12: wait for recv layer1 from stage0"
//
// Ranks that are processes join the board of who has spawned them (backend/supervise.hpp).
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "sim/program/program.hpp"

namespace backend {

enum class Stage : std::uint32_t { starting, meeting, serving, ending };

struct Progress {
  std::atomic<Stage> stage{Stage::starting};
  std::atomic<std::uint32_t> step{0};                    // steps begun
  std::atomic<std::uint32_t> instruction{kOutsideStep};  // the list's size: at the end of the step

  static constexpr std::uint32_t kOutsideStep = 0xffffffffU;
};

/// Why a rank can't go on.
struct Failure {
  double moment_s = 0;  // on now_s()
  int status = 0;       // sim::exit_status
  std::string text;
};

class ProgressBoard {
 public:
  /// The variable with the descriptor of the board that a spawned rank is to join.
  static constexpr const char* kVariable = "PARAGAUGE_PROGRESS";

  explicit ProgressBoard(std::uint32_t ranks);
  /// The supervisor's board when spawn_ranks has started this process, else one of its own.
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

}  // namespace backend
