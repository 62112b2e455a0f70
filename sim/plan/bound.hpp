// What a step of several microbatches takes, and holds, at least, from one of them: enough to pass over what can't be
// among the best, for as many times less work as there are microbatches.
//
//   if (const std::optional<OneMicrobatch> one = one_microbatch(model, strategy)) {
//     const Program program = lower(one->of(model), one->strategy);
//     const MicrobatchUse use(program, costs_of(program, *cost_model, cluster), cluster);
//     use.bound(strategy).step_s;                       // at least
//   }
//
// Time: a rank begins when the first microbatch has come through the stages before it, computes each microbatch for as
// long as the first (or its host issues each), and when it is done with the last one's backward, that goes through the stages before it, and
// parameters are updated. Where backwards are in two (W), the last of that isn't counted: other work fills it.
// Memory: what one microbatch needs; and what is there before the step, with what as many microbatches keep for their
// backwards as the schedule has under way at once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

/// A strategy with one microbatch, and a batch that is no more.
struct OneMicrobatch {
  Strategy strategy;
  std::int64_t global_batch = 0;
  std::string key;  // of strategies that differ in nothing else but the number of microbatches, or in their order

  [[nodiscard]] Model of(Model model) const {
    model.global_batch = global_batch;
    return model;
  }
};
/// Nothing where there is only one.
std::optional<OneMicrobatch> one_microbatch(const Model& model, const Strategy& strategy);

struct StepBound {
  double step_s = 0;                // the step takes no less
  std::int64_t needed_bytes = 0;    // what lacks most memory needs no less,
  std::int64_t capacity_bytes = 0;  // of so much; 0: not known

  [[nodiscard]] bool may_fit() const { return capacity_bytes == 0 || needed_bytes <= capacity_bytes; }
};

class MicrobatchUse {
 public:
  /// `one`: the program of a OneMicrobatch, which may be folded.
  MicrobatchUse(const Program& one, const Costs& costs, const Cluster& cluster);

  /// Of a strategy with the key that the program was made for.
  [[nodiscard]] StepBound bound(const Strategy& strategy) const;

 private:
  struct Rank {
    std::uint32_t stage = 0;
    double begin_s = 0, tail_s = 0;                     // before the microbatch's first op, and after its last
    double microbatch_s = 0, loss_s = 0;                // its ops, without its loss, and that
    double host_s = 0;                                  // to issue the former, where the host runs ahead of the device
    std::int64_t persistent_bytes = 0, kept_bytes = 0;  // kept: of a microbatch, for its backward
  };
  std::vector<Rank> ranks_;  // players
  double step_s_ = 0;
  std::int64_t needed_bytes_ = 0, capacity_bytes_ = 0;
};

}  // namespace sim
