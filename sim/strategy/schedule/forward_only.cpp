#include "sim/strategy/schedule/kinds.hpp"

namespace sim {

// The pipelined classes of PyTorch's model-parallel tutorial (and R2's ConvNet): only the forward is written as a
// pipeline; the outputs are concatenated and have one loss. Autograd goes through the concatenated graph from its end,
// so that the microbatches come back in reverse. The makespan is GPipe's.
ScheduleKind forward_only_kind() {
  return {"forward_only", "F0 … Fm-1, one loss on the concatenation, Bm-1 … B0; makespan (f+b)(m+p-1)",
          [](std::uint32_t, std::uint32_t, std::int32_t microbatches) {
            std::vector<Action> actions;
            for (std::int32_t m = 0; m < microbatches; ++m) actions.push_back({Action::Kind::forward, m});
            for (std::int32_t m = microbatches; m-- > 0;) actions.push_back({Action::Kind::backward, m});
            return actions;
          },
          /*one_loss=*/true};
}

}  // namespace sim
