#include "sim/strategy/kinds.hpp"

namespace sim {

// Layer-wise model parallel as in PyTorch's tutorial: the stages work one after the other, one is busy at a time.
StrategyKind model_parallel_kind() {
  return {.name = "model_parallel",
          .description = "layers cut into stages, one per rank; the whole batch passes through them in turn",
          .example = "model_parallel,pp=2",
          .keys = {"pp", "cut"},
          .defaults = [](Strategy& s) { s.pp = 2; },
          .check =
              [](const Strategy& s) {
                if (s.pp < 2) throw ConfigError("strategy 'model_parallel': pp={} must be at least 2", s.pp);
              }};
}

}  // namespace sim
