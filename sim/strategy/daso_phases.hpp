// How DASO changes from epoch to epoch, by the training losses: warm-up, cycling, cool-down. As in
// heat/optim/dp_optimizer.py (class DASO, epoch_loss_logic), with its defaults.
//
//   DasoPhases phases(/*epochs=*/20, /*local=*/2);
//   phases.now();             // skips=0: nodes average after each step
//   phases.end_epoch(2.13);   // four times; then skips=4, wait=1
//
// A loss that doesn't fall by 5 % for three epochs is stable: then skips are halved and the wait is one step shorter;
// at skips=1 they begin again at their most.
#pragma once

#include <cstdint>
#include <limits>

#include "sim/strategy/daso.hpp"

namespace sim {

class DasoPhases {
 public:
  /// `epochs` in all: the last four cool down. `local`: ranks of a node.
  DasoPhases(std::int64_t epochs, std::uint32_t local) : epochs_(epochs), now_{local, 0, 0, 0} {}

  /// Of the epoch that comes.
  [[nodiscard]] const Daso& now() const { return now_; }
  void end_epoch(double loss);

 private:
  bool is_stable(double loss);

  const std::int64_t epochs_;
  Daso now_;
  std::int64_t ended_ = 0;  // epochs
  double best_ = std::numeric_limits<double>::infinity();
  int worse_ = 0;  // epochs without a better loss
};

}  // namespace sim
