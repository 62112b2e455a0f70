// What an axis of ranks makes of a layout: along it, how each node is played, and where the batch lies. A preset is a
// list of such axes, outermost first (table.cpp); where it has several, each cuts what the ones before have left.
//
//   Layout layout{.play = std::vector<std::vector<Layout::Play>>(model.nodes.size())};
//   kStages.add(layout, model, strategy);         // each node at one coordinate, its stage
//   kReplicas.add(layout, model, strategy);       // each node by its rule "batch"
//
// A new one is a file of this folder, and a line here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/strategy/layout.hpp"

namespace sim {

/// One of a degree of 1 may add nothing.
struct AxisKind {
  std::string_view name;
  void (*add)(Layout&, const Model&, const Strategy&) = nullptr;
};
extern const AxisKind kStages;       // pp
extern const AxisKind kReplicas;     // dp
extern const AxisKind kTensorParts;  // tp
extern const AxisKind kNodes;        // nodes of DASO, and their ranks
extern const AxisKind kChunks;       // dp of nn.DataParallel
extern const AxisKind kLevels;       // HyPar's level0, level1, …

/// Why tensor parallelism has nothing to cut; empty: it has. In an imported model bodies say it; else every node must
/// read the one before it.
std::string why_no_tensor_parts(const Model& model);

/// Adds an axis along which nodes are played by rules. `chosen`: the rule of every node with weights, "" for the others,
/// which follow their inputs, and behind a sum what comes next. The batch lies as its readers need it. ConfigError where
/// a node has no such rule, or where some ops that depend on the cut would see a part of the samples and others all.
void add_axis_of_rules(Layout& layout, const Model& model, const Axis& axis, const std::vector<std::string>& chosen);

}  // namespace sim
