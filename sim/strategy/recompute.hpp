// Which nodes' outputs a forward doesn't keep: torch.utils.checkpoint's segments.
//
//   strategy.recompute = Recompute::block;        // layer1.0.conv1 and layer1.0.conv2 are in one
//   strategy.recomputed_blocks = 2;               // and so are layer1.0 and layer1.1, unless a stage ends between them
//   const std::vector<std::uint32_t> segment_of = segments_of(model, strategy, /*part_of=*/{});
#pragma once

#include "sim/strategy/strategy.hpp"

namespace sim {

constexpr std::uint32_t kNoSegment = 0xffffffffU;

/// Of every node the number of its segment, or kNoSegment: what only its own nodes read is computed anew before its
/// backward; Recompute::selective: by ops without parameters. Segments are of one stage: those of several are one in
/// each. Blocks are counted from each stage's first on, as Megatron does (its uniform method; what is in no block is by
/// itself); `part_of`: by node, the part of a pipeline that plays it; empty: all do. ConfigError for a batch norm in one,
/// which would count its statistics twice.
std::vector<std::uint32_t> segments_of(const Model& model, const Strategy& strategy,
                                       const std::vector<std::uint32_t>& part_of);

}  // namespace sim
