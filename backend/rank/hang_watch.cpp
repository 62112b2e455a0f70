#include "backend/rank/hang_watch.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "backend/machine/clock.hpp"

namespace backend {

HangWatch::HangWatch(const ProgressBoard& board, double timeout_s)
    : board_(board),
      timeout_s_(timeout_s),
      patience_s_(timeout_s + std::max(2.0, 0.1 * timeout_s)),
      seen_(board.ranks()) {
  now_s_ = now_s();
  for (Seen& seen : seen_) seen.since_s = now_s_;
}

void HangWatch::look(const std::vector<bool>& stopped) {
  now_s_ = now_s();
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Progress& progress = board_.progress(rank);
    Seen now{progress.stage, progress.step, progress.instruction, now_s_, std::nullopt};
    Seen& seen = seen_[rank];
    if (seen.stage == now.stage && seen.step == now.step && seen.instruction == now.instruction)
      now.since_s = seen.since_s;
    if (!stopped.empty() && stopped[rank]) now.stopped_s = seen.stopped_s.value_or(now_s_);
    seen = now;
  }
}

std::optional<std::string> HangWatch::overdue() const {
  std::optional<std::uint32_t> hung;
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Seen& seen = seen_[rank];
    if (seen.stopped_s && now_s_ - *seen.stopped_s > timeout_s_) return is_stopped(rank);
    // Before and between steps a rank may take its time; but not to find the others.
    const bool limited =
        seen.stage == Stage::meeting || (seen.stage == Stage::serving && seen.instruction != Progress::kOutsideStep);
    if (!limited || now_s_ - seen.since_s <= patience_s_) continue;
    if (!hung || (board_.waits(*hung) && !board_.waits(rank))) hung = rank;
  }
  if (!hung) return std::nullopt;
  return behind(*hung).value_or(hangs(*hung, patience_s_));
}

std::optional<std::string> HangWatch::behind(std::uint32_t failed) const {
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank)
    if (seen_[rank].stopped_s) return is_stopped(rank);
  const bool waited = board_.waits(failed) || seen_[failed].instruction == Progress::kOutsideStep;
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Seen& seen = seen_[rank];
    const double stood_s = now_s_ - seen.since_s;
    if (rank == failed || stood_s < 0.5 * timeout_s_) continue;
    const bool absent = seen_[failed].stage == Stage::meeting && seen.stage == Stage::starting;
    const bool computes =
        seen.stage == Stage::serving && seen.instruction != Progress::kOutsideStep && !board_.waits(rank);
    if (absent || (computes && waited)) return hangs(rank, stood_s);
  }
  return std::nullopt;
}

std::string HangWatch::hangs(std::uint32_t rank, double seconds) const {
  return fmt::format("rank {} hangs (no progress for {:.1f} s) {}", rank, seconds, board_.where(rank));
}

std::string HangWatch::is_stopped(std::uint32_t rank) const {
  return fmt::format("rank {} is stopped (by SIGSTOP or the like) {}", rank, board_.where(rank));
}

}  // namespace backend
