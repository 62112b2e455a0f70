#include "sim/strategy/daso_phases.hpp"

#include <algorithm>

namespace sim {

void DasoPhases::end_epoch(double loss) {
  constexpr std::int64_t kWarmUp = 4, kCoolDown = 4;  // epochs
  constexpr std::int64_t kFirst = 4, kMost = 8, kLocalFactor = 4, kReduction = 2;
  const std::uint32_t local = now_.local;
  ++ended_;
  if (ended_ < kWarmUp) return;
  if (ended_ == kWarmUp) now_ = {local, kFirst, 1, 1};
  if (ended_ >= epochs_ - kCoolDown) {
    now_ = {local, 0, 0, 0};
    return;
  }
  if (!is_stable(loss)) return;
  if (now_.skips > 1)
    now_ = {local, now_.skips / kReduction, std::max<std::int64_t>(1, now_.wait - 1),
            std::max<std::int64_t>(1, now_.local_skips / kReduction)};
  else
    now_ = {local, kMost, kMost / kLocalFactor, kMost / kLocalFactor};
}

/// heat/optim/utils.py, DetectMetricPlateau.test_if_improving, which says true where it isn't.
bool DasoPhases::is_stable(double loss) {
  constexpr double kThreshold = 0.05;
  constexpr int kPatience = 2;  // epochs
  if (loss < best_ * (best_ >= 0 ? 1 - kThreshold : 1 + kThreshold)) {
    best_ = loss;
    worse_ = 0;
    return false;
  }
  if (++worse_ <= kPatience) return false;
  worse_ = 0;
  return true;
}

}  // namespace sim
