// What of parameters is cut along the replicas, and into which units: ZeRO's stages, FSDP's wrapping, DeepSpeed's sizes.
//
//   strategy.units = "block";                     // layer1.0.conv1 and layer1.0.bn1 are in one unit
//   const std::optional<ParameterCut> cut = parameter_cut(model, strategy);    // nothing where zero is 0
#pragma once

#include <optional>

#include "sim/strategy/layout.hpp"

namespace sim {

/// One of the model's units, where the node is in one; else "layer1.0" of "layer1.0.conv1", and of a node at the top its
/// own name.
std::string block_of(const Model& model, const std::string& node);

/// Of the axis says who adds that. ConfigError for units that the model hasn't.
std::optional<ParameterCut> parameter_cut(const Model& model, const Strategy& strategy);

}  // namespace sim
