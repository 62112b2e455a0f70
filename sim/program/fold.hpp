// Folding: of ranks that do the same at the same time, one plays for all.
//
//   const Program folded = fold(program, cluster);
//   const Timeline of_classes = simulate(folded, costs_of(folded, *cost_model, cluster), cluster);
//   of_classes.ranks.at(folded.player_of(rank)).end_of_step_s;       // what `rank` would have unfolded
//
// Such ranks are a class. All ranks of a role begin as one; classes are split until in each of them all have partners
// of the same classes, as far away; member lists of the same classes in the same order, which lie on the cluster in the
// same way; and neighbours of the same classes in their groups of the cluster's levels (colour refinement: B.
// Weisfeiler and A. Leman, 1968). Then whatever a rank waits for or shares, the others of its class wait for or share
// as well, and the step is the same but for rounding: what was a sum of many equal shares of a port is a product.
//
// Ranks on different kinds of devices aren't alike: their roles are cut.
// Roots of collectives are in no class with others of their list, and who sends to its own role is alone. Where ranks
// share a device, or their host thread, they take turns: such a program isn't folded.
//
// A folded program is the same program, for who simulates it (Program::players). Who runs ranks takes it unfolded.
// Where costs jitter, no two ranks are alike, and who plays for its class waits for the slowest of it
// (sim/simulate/step.hpp): such a forecast is up to 3 % off what it is unfolded.
#pragma once

#include <cstdint>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"

namespace sim {

/// So many ranks aren't folded unasked: it would save nothing that a person notices.
constexpr std::uint32_t kMostUnfolded = 16;

/// Cut by kinds of devices (by_kind.hpp). Unfolded where every rank is alone in its class, or takes turns with others.
/// ConfigError when the cluster has fewer
/// places than the program ranks.
Program fold(Program program, const Cluster& cluster);
/// Cut by kinds of devices; folded where there are more ranks than kMostUnfolded, whose lists take long to play.
Program fold_many(Program program, const Cluster& cluster);
/// On no cluster, where all ranks are as far from each other: for what doesn't depend on times.
Program fold(Program program);

}  // namespace sim
