#include "sim/simulate/durations.hpp"

#include <algorithm>
#include <limits>

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
    for_each_instruction([&](std::uint32_t rank, std::uint32_t i) {
      const InstructionKind kind = placed_.role(rank).kind[i];
      if (!is_posted(kind)) return;
      const std::uint32_t id = placed_.transfer(rank, i);
      done_s_[id] = std::min(done_s_[id], end_s(rank, i));
      if (kind == InstructionKind::recv) received_s_[id] = end_s(rank, i);
    });
  }

  /// Which waits the ranks' threads copied in. A transfer that was done before its own wait began was copied in the
  /// first wait that still went on when all had posted.
  [[nodiscard]] auto find_copies() {
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> copies(placed_.ranks());
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank)
      own_copied_s_[rank].assign(placed_.role(rank).size(), 0);
    if (!placed_.may_copy()) return copies;
    for_each_instruction([&](std::uint32_t rank, std::uint32_t i) {
      const Role& list = placed_.role(rank);
      if (list.kind[i] != InstructionKind::wait) return;
      const std::uint32_t awaited = list.awaits[i];
      if (!placed_.is_copied(rank, awaited) || !placed_.copies(rank, awaited)) return;
      const std::uint32_t wait = wait_of_copy(rank, i);
      copies[rank].emplace_back(wait, awaited);
      own_copied_s_[rank][awaited] = start_s(rank, wait);
      double& last_s = copied_s_[placed_.transfer(rank, awaited)];
      last_s = std::max(last_s, start_s(rank, wait));
    });
    for (auto& of_rank : copies) std::ranges::sort(of_rank);
    return copies;
  }

  /// When the bytes began to move for this rank.
  [[nodiscard]] double begin_s(std::uint32_t rank, std::uint32_t i) const {
    const double copied_s = placed_.is_copied(rank, i) && placed_.is_done_with_its_part(rank, i)
                                ? own_copied_s_[rank][i]
                                : copied_s_[placed_.transfer(rank, i)];
    return std::max(start_s(rank, i), copied_s);
  }
  /// Of a send: when the receiver had it.
  [[nodiscard]] double received_s(std::uint32_t rank, std::uint32_t i) const {
    return received_s_[placed_.transfer(rank, i)];
  }

 private:
  [[nodiscard]] double start_s(std::uint32_t rank, std::uint32_t i) const { return measured_.ranks[rank].start_s[i]; }
  [[nodiscard]] double end_s(std::uint32_t rank, std::uint32_t i) const { return measured_.ranks[rank].end_s[i]; }

  template <class Visit>
  void for_each_instruction(Visit visit) const {
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank)
      for (std::uint32_t i = 0; i < placed_.role(rank).size(); ++i) visit(rank, i);
  }

  [[nodiscard]] std::uint32_t wait_of_copy(std::uint32_t rank, std::uint32_t own_wait) const {
    constexpr double kRounding_s = 1e-9;
    const Role& list = placed_.role(rank);
    const std::uint32_t awaited = list.awaits[own_wait];
    const double done_s =
        placed_.is_done_with_its_part(rank, awaited) ? end_s(rank, awaited) : done_s_[placed_.transfer(rank, awaited)];
    if (done_s > start_s(rank, own_wait)) return own_wait;
    for (std::uint32_t i = awaited + 1; i < own_wait; ++i)
      if (list.kind[i] == InstructionKind::wait && end_s(rank, i) > start_s(rank, awaited) + kRounding_s) return i;
    return own_wait;
  }

  const PlacedProgram& placed_;
  const Timeline& measured_;
  std::vector<double> done_s_, received_s_, copied_s_;  // by transfer: first rank, receiver; last copier's wait began
  std::vector<std::vector<double>> own_copied_s_;       // [rank][instruction]: the wait began that it copied in
};

/// A wait that blocked ends when the transfer is done for this rank, its wake-up included; else the transfer ended at
/// its own time.
double end_of_transfer_s(const RankTimeline& times, std::uint32_t wait, std::uint32_t awaited) {
  return times.start_s[wait] < times.end_s[awaited] ? times.end_s[wait] : times.end_s[awaited];
}

}  // namespace

Durations durations_of(const Program& program, const Timeline& measured, const Cluster& cluster) {
  const TransferMatching matching(program);
  const PlacedProgram placed(program, cluster, matching);
  MeasuredTransfers transfers(placed, measured);
  Durations durations;
  durations.copied_in = transfers.find_copies();
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) {
    const Role& role = placed.role(rank);
    const RankTimeline& times = measured.ranks[rank];
    std::vector<double>& seconds = durations.seconds.emplace_back(role.size(), 0);
    std::vector<double>& gap = durations.host_s.emplace_back(role.size(), 0);
    double free_s = 0;  // when the issuing thread was done with the instruction before
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      const double begun_s = is_posted(role.kind[i]) ? times.posted_s[i] : times.start_s[i];
      gap[i] = std::max(0.0, begun_s - free_s);
      if (is_posted(role.kind[i])) {
        free_s = std::max(free_s, begun_s);
        continue;
      }
      free_s = times.end_s[i];
      if (role.kind[i] != InstructionKind::wait) {
        seconds[i] = times.end_s[i] - times.start_s[i];
        continue;
      }
      const std::uint32_t awaited = role.awaits[i];
      double end_s = end_of_transfer_s(times, i, awaited);
      // A transport may know only from the wait that a message was gone long before; what such a wait takes is host
      // time.
      if (role.kind[awaited] == InstructionKind::send && transfers.received_s(rank, awaited) <= times.start_s[i]) {
        end_s = transfers.received_s(rank, awaited);
        free_s = times.start_s[i];
      }
      seconds[awaited] = std::max(0.0, end_s - transfers.begin_s(rank, awaited));
    }
  }
  return durations;
}

}  // namespace sim
