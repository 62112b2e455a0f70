#include "sim/strategy/schedule/kinds.hpp"

namespace sim {

// Huang et al. 2018, arXiv 1811.06965, in the order of torch.distributed.pipelining.ScheduleGPipe: all forwards, then
// all backwards, both from the first microbatch to the last. With p equal stages and m microbatches the step takes (f +
// b)(m + p − 1).
ScheduleKind gpipe_kind() {
  return {"gpipe", "F0 … Fm-1 B0 … Bm-1 on every stage; makespan (f+b)(m+p-1)",
          [](std::uint32_t, std::uint32_t, std::int32_t microbatches) {
            std::vector<Action> actions;
            for (const Action::Kind kind : {Action::Kind::forward, Action::Kind::backward})
              for (std::int32_t m = 0; m < microbatches; ++m) actions.push_back({kind, m});
            return actions;
          }};
}

}  // namespace sim
