// Finds the rank that stands still, so that it is named and not the one that waits for it.
//
//   HangWatch watch(board, timeout_s);
//   watch.look({false, true});                       // about twice a second: which ranks' processes are stopped
//   if (auto text = watch.overdue()) …               // "rank 1 is stopped in instruction 12: compute forward fc"
//   if (auto text = watch.behind(0)) …               // the same, sooner: rank 0 has given up waiting
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backend/rank/progress.hpp"

namespace backend {

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
