// Model + Strategy → Program.
//
//   Program program = lower(model, parse_strategy("ddp,dp=2", model));
//
// Steps: cut the model into stages; per stage follow the schedule's actions, node by node, forward and backward, with a
// send for every tensor that a later stage reads; then the passes in `sim/lower/pass`: buffer broadcast, buckets,
// optimizer, frees. Gradient accumulation is part of the actions.
#pragma once

#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

/// The result has passed `validate`. ConfigError when the strategy doesn't fit (batch not divisible, …).
Program lower(const Model& model, const Strategy& strategy);

}  // namespace sim
