// The strategies that one could use on so many devices.
//
//   for (const Strategy& s : candidate_strategies(model, 8)) fmt::print("{}\n", s.text());
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/strategy/strategy.hpp"

namespace sim {

/// Every row of strategy_table() with all degrees that multiply to `devices`, or to a half, a quarter, … of them, and that
/// divide the model's batch and nodes; HyPar's layers all cut alike, on one level; a pipeline with every schedule and one,
/// two or four microbatches per stage; and on one stage the gradients accumulated over 2, 4, 8 or 16 microbatches, which
/// takes less memory. Each once; without those that have an obstacle.
std::vector<Strategy> candidate_strategies(const Model& model, std::uint32_t devices);

/// Why the model's ops can't be played in such parts (too few samples or channels, no such rule); empty: they can.
std::string obstacle(const Model& model, const Strategy& strategy);

}  // namespace sim
