// Where a model is cut into stages.
//
//   std::vector<std::uint32_t> stage = stages_of(model, parse_strategy("pipeline,pp=2,cut=layer2", model));
//   stage[n]                                       // node n is executed by this stage
#pragma once

#include <cstdint>
#include <vector>

#include "sim/model/model.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

/// The stage of every node, non-decreasing. `strategy.cut` names, or cuts balanced by the roofline time of forward +
/// backward on a generic device. ConfigError for a cut name that doesn't exist (lists similar ones) or cuts out of
/// order.
std::vector<std::uint32_t> stages_of(const Model& model, const Strategy& strategy);

}  // namespace sim
