#include "sim/strategy/kinds.hpp"

namespace sim {

StrategyKind pipeline_kind() {
  return {.name = "pipeline",
          .description = "model parallel with the batch split into microbatches, so that stages work at the same time",
          .example = "pipeline,pp=2,microbatches=2",
          .keys = {"pp", "cut", "schedule", "microbatches", "split_size"},
          .defaults =
              [](Strategy& s) {
                s.pp = 2;
                s.microbatches = 4;
              },
          .check =
              [](const Strategy& s) {
                if (s.pp < 2) throw ConfigError("strategy 'pipeline': pp={} must be at least 2", s.pp);
              }};
}

}  // namespace sim
