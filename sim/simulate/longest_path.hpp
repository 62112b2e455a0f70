// A pass through the ranks' lists, each as far as its waits allow, in any order of the ranks: for steps in which
// nothing is shared, so that a time is a sum and a maximum of other times (a longest path through the graph).
//
//   class Pass : public LongestPath<Pass> {
//     double issued_s(std::uint32_t rank, std::uint32_t i, double clock_s);    // host time of instruction i is over
//     double compute_s(std::uint32_t rank, std::uint32_t i);                   // how long a computed one takes
//     double late_s(std::uint32_t rank, std::uint32_t i);                      // the slowest like it posts so much later
//     void all_have_posted(std::uint32_t rank, std::uint32_t i);               // `rank` was the last
//     void begin_wait(std::uint32_t rank, std::uint32_t i);                    // calls move() for what is copied in it
//     double done_s(std::uint32_t rank, std::uint32_t i);                      // what wait i waits for; or kUnknown
//   };
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "sim/simulate/placed_program.hpp"

namespace sim {

template <class Pass>
class LongestPath {
 protected:
  static constexpr double kUnknown = std::numeric_limits<double>::infinity();

  struct Transfer {
    double ready_s = 0;       // all have posted
    double moved_s = 0;       // where it is copied: the last of those who copy has come to it
    double end_s = kUnknown;  // where it isn't
    std::uint32_t posted = 0, movers = 0;
    std::vector<std::uint32_t> sleepers;
  };

  explicit LongestPath(const PlacedProgram& placed)
      : placed_(placed),
        timeline_(placed.empty_timeline()),
        ranks_(placed.ranks()),
        transfers_(placed.matching.participants.size()) {}

  /// The first rank that waits for ever, kNone if there is none. Fills all times but the ends of transfers that nobody
  /// waits for.
  std::uint32_t run() {
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) ready_.push_back(rank);
    while (!ready_.empty()) {
      const std::uint32_t rank = ready_.back();
      ready_.pop_back();
      advance(rank);
    }
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank].next < placed_.role(rank).size()) return rank;
      timeline_.ranks[rank].end_of_step_s = ranks_[rank].clock_s;
      timeline_.step_s = std::max(timeline_.step_s, ranks_[rank].clock_s);
    }
    return kNone;
  }
  [[nodiscard]] std::uint32_t next_of(std::uint32_t rank) const { return ranks_[rank].next; }

  [[nodiscard]] Transfer& transfer_of(std::uint32_t rank, std::uint32_t i) {
    return transfers_[placed_.transfer(rank, i)];
  }

  /// The rank's thread has come to its part of a transfer that is copied.
  void move(std::uint32_t rank, std::uint32_t i) {
    Transfer& transfer = transfer_of(rank, i);
    transfer.moved_s = std::max(transfer.moved_s, ranks_[rank].clock_s);
    if (++transfer.movers == placed_.copiers(rank, i)) wake(transfer);
  }

  /// When the bytes of instruction `i` begin to move for this rank, whose own part it came to at `own_s`.
  [[nodiscard]] double begin_s(std::uint32_t rank, std::uint32_t i, double own_s) {
    const Transfer& transfer = transfer_of(rank, i);
    if (transfer.posted < placed_.matching.participants[placed_.transfer(rank, i)]) return kUnknown;
    if (!placed_.is_copied(rank, i)) return transfer.ready_s;
    if (placed_.is_done_with_its_part(rank, i)) return std::max(transfer.ready_s, own_s);
    return transfer.movers < placed_.copiers(rank, i) ? kUnknown : std::max(transfer.ready_s, transfer.moved_s);
  }

  const PlacedProgram& placed_;
  Timeline timeline_;

 private:
  struct RankState {
    double clock_s = 0;      // of the issuing thread; on an asynchronous device of the compute lane
    std::uint32_t next = 0;  // instruction
    bool waiting = false;    // in the wait at `next`
  };

  [[nodiscard]] Pass& pass() { return static_cast<Pass&>(*this); }

  void advance(std::uint32_t rank) {
    RankState& state = ranks_[rank];
    RankTimeline& times = timeline_.ranks[rank];
    const Role& list = placed_.role(rank);
    for (const std::uint32_t size = list.size(); state.next < size; ++state.next) {
      const std::uint32_t i = state.next;
      if (!state.waiting) state.clock_s = pass().issued_s(rank, i, state.clock_s);
      if (is_computed(list.kind[i])) {
        times.start_s[i] = state.clock_s;
        times.end_s[i] = state.clock_s += pass().compute_s(rank, i);
      } else if (is_posted(list.kind[i])) {
        times.posted_s[i] = state.clock_s;
        post(rank, i);
      } else if (!wait(rank, i)) {
        return;
      }
    }
  }

  void post(std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t id = placed_.transfer(rank, i);
    Transfer& transfer = transfers_[id];
    transfer.ready_s = std::max(transfer.ready_s, ranks_[rank].clock_s + pass().late_s(rank, i));
    if (++transfer.posted < placed_.matching.participants[id]) return;
    pass().all_have_posted(rank, i);
    wake(transfer);
  }

  /// Whether the rank goes on.
  bool wait(std::uint32_t rank, std::uint32_t i) {
    RankState& state = ranks_[rank];
    RankTimeline& times = timeline_.ranks[rank];
    if (!state.waiting) {
      times.start_s[i] = state.clock_s;
      state.waiting = true;
      pass().begin_wait(rank, i);
    }
    const std::uint32_t awaited = placed_.role(rank).awaits[i];
    const double done_s = pass().done_s(rank, i);
    if (done_s == kUnknown) {
      transfer_of(rank, awaited).sleepers.push_back(rank);
      return false;
    }
    state.waiting = false;
    times.end_s[awaited] = done_s;
    times.end_s[i] = state.clock_s = std::max(state.clock_s, done_s);
    return true;
  }

  void wake(Transfer& transfer) {
    ready_.insert(ready_.end(), transfer.sleepers.begin(), transfer.sleepers.end());
    transfer.sleepers.clear();
  }

  std::vector<RankState> ranks_;
  std::vector<std::uint32_t> ready_;
  std::vector<Transfer> transfers_;
};

}  // namespace sim
