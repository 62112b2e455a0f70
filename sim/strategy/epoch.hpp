// The steps of an epoch, as PyTorch's DistributedSampler and DataLoader make them: every replica gets as many samples,
// some twice where they don't divide, and takes them in batches of the step's size; the last one may be smaller.
//
//   const Model model = load_model("resnet50,global_batch=256");
//   const Epoch epoch = epoch_of(1'281'167, model, parse_strategy("ddp,dp=8", model));
//   epoch.full_steps == 5004 && epoch.last->model.global_batch == 8 * 18;
#pragma once

#include <cstdint>
#include <optional>

#include "sim/model/model.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

struct Epoch {
  struct Last {
    Model model;  // with its global_batch
    Strategy strategy;
    std::int64_t samples = 0;  // that there are; the batch may be more, that microbatches and parts are of one size
  };
  std::int64_t full_steps = 0;
  std::optional<Last> last;  // the smaller one

  [[nodiscard]] std::int64_t steps() const { return full_steps + (last ? 1 : 0); }
};

/// `drop_last`: without the smaller one (DataLoader's). ConfigError where no step is left.
Epoch epoch_of(std::int64_t samples, const Model& model, const Strategy& strategy, bool drop_last = false);

}  // namespace sim
