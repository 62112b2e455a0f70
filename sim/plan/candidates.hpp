// The strategies that one could use on so many devices, and what of them the model doesn't allow.
//
//   const Proposal all = candidate_strategies(model, 8);
//   for (const Strategy& s : all.strategies) fmt::print("{}\n", s.text());
//   fmt::print("{}\n", all.left_out.at(0).whole);   // ddp, mesh with dp = 3, 5, 6, 7 (64 samples don't divide)
//
// Every row of strategy_table() with every dp and pp, as far as it takes them, on
//
//   up to 16 devices   all that there are and any number fewer: dp · pp ≤ devices
//   more               all, a half, a quarter, … of them, 1: pp a power of two, on all of them also 1…16 and the number
//                      itself; with each as many replicas as there is room for and, where the strategy needs equal
//                      parts, as divide the batch: so that few devices idle
//
// of hybrid sharding groups of 2, 4, 8, … of them (of more than 16 devices all, or nearly so); each also with layers cut
// into 2, 4 or 8 (tp), as far as the model allows it, on the devices that then are left; of imported models once more with
// what lies between them in parts, too (sp).
// HyPar's layers all cut alike, on one level; a pipeline with every schedule and one, two or four microbatches per
// stage; on one stage the gradients accumulated over 2, 4, 8 or 16 microbatches, which takes less memory. Where such a
// number doesn't divide the samples it is the next that does, up to twice as many. What doesn't fit into memory is tried
// again with_recomputation.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sim/plan/method.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

/// Each once; on cores also with ranks of so many threads that all have work. What several rows make alike, by the row
/// that says it most simply.
Proposal candidate_strategies(const Model& model, std::uint32_t devices, bool are_cores = false);

/// The same with each block's activations computed anew in the backward, or, where that isn't possible (batch norms), those
/// of ops without parameters; nullopt where neither is.
std::optional<Strategy> with_recomputation(const Model& model, const Strategy& strategy);

/// Why the model's ops can't be played in such parts (too few samples or channels, no such rule); empty: they can.
std::string obstacle(const Model& model, const Strategy& strategy);

}  // namespace sim
