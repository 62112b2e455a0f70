#include "sim/strategy/kinds.hpp"

namespace sim {

StrategyKind single_kind() {
  return {.name = "single",
          .description = "one device; microbatches > 1 accumulate gradients",
          .example = "single",
          .keys = {"schedule", "microbatches", "split_size"}};
}

}  // namespace sim
