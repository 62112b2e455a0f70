#include <algorithm>

#include "sim/strategy/schedule/kinds.hpp"

namespace sim {

// Narayanan et al. 2019, PipeDream (SOSP), with a flush per step (Narayanan et al. 2021, arXiv 2104.04473), in the
// order of torch.distributed.pipelining.Schedule1F1B: stage s of p begins with min(m, p − s) forwards, then a backward
// and a forward in turn. The makespan is GPipe's; a stage keeps the activations of at most p − s microbatches, not of
// m.
ScheduleKind one_f_one_b_kind() {
  return {"1f1b", "F0 … then B and F in turn, then the last B; makespan (f+b)(m+p-1), min(m, p-s) microbatches alive",
          [](std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches) {
            std::vector<Action> actions;
            const std::int32_t ahead = std::min(microbatches, static_cast<std::int32_t>(stages - stage));
            std::int32_t forward = 0;
            while (forward < ahead) actions.push_back({Action::Kind::forward, forward++});
            for (std::int32_t backward = 0; backward < microbatches; ++backward) {
              actions.push_back({Action::Kind::backward, backward});
              if (forward < microbatches) actions.push_back({Action::Kind::forward, forward++});
            }
            return actions;
          }};
}

}  // namespace sim
