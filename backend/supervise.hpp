// Watching ranks, so that a dead or hung one is named and nobody waits for ever.
//
//   ProgressBoard board(ranks);                    // shared memory: a page per rank
//   HangWatch watch(board, timeout_s);
//   if (auto rank = watch.hung())                  // ask about twice a second
//     fmt::print(stderr, "rank {} hangs {}\n", *rank, board.where(*rank));
//
// `spawn_ranks` (session.hpp) watches processes this way, world `local` its threads.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/rank/execute.hpp"

namespace backend {

constexpr int kRunErrorStatus = 75;  // EX_TEMPFAIL

/// Where every rank is, readable by the supervisor even when the rank's process is dead.
class ProgressBoard {
 public:
  explicit ProgressBoard(std::uint32_t ranks);
  /// The supervisor's board when spawn_ranks has started this process, else one of its own.
  static ProgressBoard join(std::uint32_t ranks);
  ~ProgressBoard();
  ProgressBoard(ProgressBoard&& other) noexcept;
  ProgressBoard(const ProgressBoard&) = delete;

  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }
  [[nodiscard]] Progress& progress(std::uint32_t rank) const;
  /// What `where` calls the instructions of this rank; outside of steps only.
  void set_labels(std::uint32_t rank, const sim::Program& program, const sim::Role& role) const;
  /// "in instruction 12: wait for recv layer1 from stage0", "outside a step".
  [[nodiscard]] std::string where(std::uint32_t rank) const;
  /// A file descriptor that children inherit.
  [[nodiscard]] int descriptor() const { return descriptor_; }

 private:
  struct Page;
  ProgressBoard(int descriptor, std::uint32_t ranks);
  [[nodiscard]] Page& page(std::uint32_t rank) const;

  int descriptor_ = -1;
  std::uint32_t ranks_ = 0;
  Page* pages_ = nullptr;
};

/// Finds ranks that have been in the same instruction for too long. A rank that waits for another gives up by itself at
/// `timeout_s`; so this watch is a little more patient.
class HangWatch {
 public:
  HangWatch(const ProgressBoard& board, double timeout_s);
  [[nodiscard]] double patience_s() const { return patience_s_; }
  std::optional<std::uint32_t> hung();

 private:
  struct Seen {
    std::uint32_t step = 0, instruction = Progress::kOutsideStep;
    double since_s = 0;
  };
  const ProgressBoard& board_;
  double patience_s_;
  std::vector<Seen> seen_;
};

}  // namespace backend
