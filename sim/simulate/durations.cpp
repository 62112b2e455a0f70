#include "sim/simulate/durations.hpp"

#include <algorithm>
#include <limits>

#include "sim/error.hpp"
#include "sim/simulate/longest_path.hpp"
#include "sim/simulate/placed_program.hpp"

namespace sim {
namespace {

/// What a measured timeline says of each transfer.
class MeasuredTransfers {
 public:
  MeasuredTransfers(const PlacedProgram& placed, const Timeline& measured)
      : placed_(placed),
        measured_(measured),
        done_s_(placed.matching.participants.size(), std::numeric_limits<double>::infinity()),
        received_s_(done_s_),
        copied_s_(done_s_.size(), 0),
        own_copied_s_(placed.ranks()) {
    for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) {
      const Role& list = placed.role(rank);
      own_copied_s_[rank].assign(list.size(), 0);
      for (std::uint32_t i = 0; i < list.size(); ++i) {
        if (!is_posted(list.kind[i])) continue;
        const std::uint32_t id = placed.transfer(rank, i);
        done_s_[id] = std::min(done_s_[id], end_s(rank, i));
        if (list.kind[i] == InstructionKind::recv) received_s_[id] = end_s(rank, i);
      }
    }
  }

  /// Which waits the rank's thread copied in, and what. A transfer that was done before its own wait began was copied
  /// in the last wait that had begun by then and still went on when all had posted.
  [[nodiscard]] std::vector<std::pair<std::uint32_t, std::uint32_t>> find_copies(std::uint32_t rank) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> copies;
    const Role& list = placed_.role(rank);
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      if (list.kind[i] != InstructionKind::wait) continue;
      const std::uint32_t awaited = list.awaits[i];
      if (!placed_.is_copied(rank, awaited) || !placed_.copies(rank, awaited)) continue;
      const std::uint32_t wait = wait_of_copy(rank, i);
      copies.emplace_back(wait, awaited);
      own_copied_s_[rank][awaited] = start_s(rank, wait);
      double& last_s = copied_s_[placed_.transfer(rank, awaited)];
      last_s = std::max(last_s, start_s(rank, wait));
    }
    std::ranges::sort(copies);
    return copies;
  }

  /// When the bytes began to move for this rank.
  [[nodiscard]] double begin_s(std::uint32_t rank, std::uint32_t i) const {
    const double copied_s = placed_.is_copied(rank, i) && placed_.is_done_with_its_part(rank, i)
                                ? own_copied_s_[rank][i]
                                : copied_s_[placed_.transfer(rank, i)];
    return std::max(start_s(rank, i), copied_s);
  }
  /// When it was done, where this rank may have learnt of that only later, in its wait: a send when the receiver had it, a
  /// sum that the ranks' threads copy when the first of them had all. Else never.
  [[nodiscard]] double done_unseen_s(std::uint32_t rank, std::uint32_t i) const {
    const std::uint32_t id = placed_.transfer(rank, i);
    if (placed_.role(rank).kind[i] == InstructionKind::send) return received_s_[id];
    const bool is_shared =
        placed_.is_copied(rank, i) && placed_.copies(rank, i) && !placed_.is_done_with_its_part(rank, i);
    return is_shared ? done_s_[id] : std::numeric_limits<double>::infinity();
  }

 private:
  [[nodiscard]] double start_s(std::uint32_t rank, std::uint32_t i) const { return measured_.ranks[rank].start_s[i]; }
  [[nodiscard]] double end_s(std::uint32_t rank, std::uint32_t i) const { return measured_.ranks[rank].end_s[i]; }

  [[nodiscard]] std::uint32_t wait_of_copy(std::uint32_t rank, std::uint32_t own_wait) const {
    constexpr double kRounding_s = 1e-9;
    const Role& list = placed_.role(rank);
    const std::uint32_t awaited = list.awaits[own_wait];
    const double done_s =
        placed_.is_done_with_its_part(rank, awaited) ? end_s(rank, awaited) : done_s_[placed_.transfer(rank, awaited)];
    if (done_s > start_s(rank, own_wait)) return own_wait;
    for (std::uint32_t i = own_wait - 1; i > awaited; --i)
      if (list.kind[i] == InstructionKind::wait && start_s(rank, i) <= done_s &&
          end_s(rank, i) > start_s(rank, awaited) + kRounding_s)
        return i;
    return own_wait;
  }

  const PlacedProgram& placed_;
  const Timeline& measured_;
  std::vector<double> done_s_, received_s_, copied_s_;  // by transfer: first rank, receiver; last copier's wait began
  std::vector<std::vector<double>> own_copied_s_;       // [rank][instruction]: the wait began that it copied in
};

class Replay : public LongestPath<Replay> {
 public:
  Replay(const PlacedProgram& placed, const Durations& durations)
      : LongestPath(placed), durations_(durations), copied_(placed.ranks(), 0) {}

  Timeline run() {
    const std::uint32_t stuck = LongestPath::run();
    check_internal(stuck == kNone, "rank {} stands at instruction {} for ever: the program wasn't validated", stuck,
                   stuck == kNone ? 0 : next_of(stuck));
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
      const Role& list = placed_.role(rank);
      RankTimeline& times = timeline_.ranks[rank];
      for (std::uint32_t i = 0; i < list.size(); ++i) {
        if (!is_posted(list.kind[i])) continue;
        times.start_s[i] = transfer_of(rank, i).ready_s;
        if (times.end_s[i] == 0) times.end_s[i] = times.start_s[i] + durations_.seconds[rank][i];
      }
    }
    break_down(placed_.program, timeline_);
    check(placed_.program, timeline_);
    return std::move(timeline_);
  }

 private:
  friend LongestPath;

  [[nodiscard]] double issued_s(std::uint32_t rank, std::uint32_t i, double clock_s) const {
    return clock_s + durations_.host_s[rank][i];
  }
  [[nodiscard]] double compute_s(std::uint32_t rank, std::uint32_t i) const { return durations_.seconds[rank][i]; }
  [[nodiscard]] static double late_s(std::uint32_t /*rank*/, std::uint32_t /*i*/) { return 0; }
  void all_have_posted(std::uint32_t /*rank*/, std::uint32_t /*i*/) {}

  void begin_wait(std::uint32_t rank, std::uint32_t i) {
    const auto& copies = durations_.copied_in[rank];
    for (std::uint32_t& next = copied_[rank]; next < copies.size() && copies[next].first == i; ++next) {
      timeline_.ranks[rank].end_s[copies[next].second] = timeline_.ranks[rank].start_s[i];  // until it is done
      move(rank, copies[next].second);
    }
  }
  [[nodiscard]] double done_s(std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t awaited = placed_.role(rank).awaits[i];
    const double begun_s = begin_s(rank, awaited, timeline_.ranks[rank].end_s[awaited]);
    return begun_s == kUnknown ? kUnknown : begun_s + durations_.seconds[rank][awaited];
  }

  const Durations& durations_;
  std::vector<std::uint32_t> copied_;  // by rank: how many of its copies have begun
};

}  // namespace

Durations durations_of(const Program& program, const Timeline& measured, const Cluster& cluster) {
  const PlacedProgram placed(program, cluster);
  MeasuredTransfers transfers(placed, measured);
  Durations durations;
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank)
    durations.copied_in.push_back(transfers.find_copies(rank));
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) {
    const Role& role = placed.role(rank);
    const RankTimeline& times = measured.ranks[rank];
    std::vector<double>& seconds = durations.seconds.emplace_back(role.size(), 0);
    std::vector<double>& gap = durations.host_s.emplace_back(role.size(), 0);
    double free_s = 0;  // when the issuing thread was done with the instruction before
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      double begun_s = is_posted(role.kind[i]) ? times.posted_s[i] : times.start_s[i];
      if (is_computed(role.kind[i]) && !times.issued_s.empty() && !program.works[role.work[i]].op.kind->on_host)
        begun_s = std::min(std::max(begun_s, times.issued_s[i]), times.end_s[i]);
      gap[i] = std::max(0.0, begun_s - free_s);
      if (is_posted(role.kind[i])) {
        free_s = std::max(free_s, begun_s);
        continue;
      }
      free_s = times.end_s[i];
      if (role.kind[i] != InstructionKind::wait) {
        seconds[i] = times.end_s[i] - begun_s;
        continue;
      }
      const std::uint32_t awaited = role.awaits[i];
      // A wait that blocked ends when the transfer is done for this rank, its wake-up included; else the transfer ended
      // at its own time.
      double end_s = times.start_s[i] < times.end_s[awaited] ? times.end_s[i] : times.end_s[awaited];
      // What a wait takes for what was done long before is host time.
      if (const double done_s = transfers.done_unseen_s(rank, awaited); done_s <= times.start_s[i]) {
        end_s = done_s;
        free_s = times.start_s[i];
      }
      seconds[awaited] = std::max(0.0, end_s - transfers.begin_s(rank, awaited));
    }
  }
  return durations;
}

Timeline replay(const Program& program, const Durations& durations, const Cluster& cluster) {
  const PlacedProgram placed(program, cluster);
  return Replay(placed, durations).run();
}

}  // namespace sim
