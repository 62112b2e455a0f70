// How an op is played in parts: which pieces of its tensors the coordinates of an axis need, and what they give.
//
//   const OpInstance op{&op_table().at("linear"), {{"bias", 1}, {"out_features", 8}}, {x}};
//   const Axis tp{"tp", 2};
//   const Rule rule = rule_of(op, "output");            // or ConfigError: op 'linear' has no rule 'rows'; known: …
//   const OpInstance mine = part_of(op, rule, tp, 1);   // the second half of a linear layer's features
//
// A rule holds along one axis; along several, each axis has its own, applied to the part that the outer ones leave. An
// op whose tensors are all replicated, or all rooted at one coordinate, needs no rule. Every rule holds: its parts put
// together are the whole op, forward and backward, in every element (tests/backend/op/rule_test.cpp).
//
//   linear, conv2d             x   weight  bias    y   grad_y   grad_x  grad_weight  grad_bias
//   batch                      S0  R       R       S0  S0       S0      P            P
//   output (column parallel)   R   S0      S0      S1  S1       P       S0           S0
//   input (row parallel)       S1  S1      @last   P   R        S1      S1           @last
//
// A cross_entropy's rule "classes" holds for the ops that lowering plays in its place (class_max, class_sums, class_loss
// and class_grad): each has the logits of a part of the classes. So does the rule "batch" of a batch_norm with sync=1
// (norm_stats, norm_apply, norm_sums, norm_grad): the statistics are of all parts' samples.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/mesh/placement.hpp"
#include "sim/model/op/op.hpp"

namespace sim {

struct Rule {
  std::string name;
  // Forward: what it needs, and what it gives. Saved tensors stay where they are made.
  std::vector<Placement> inputs, parameters, buffers;
  Placement output;
  // Backward.
  Placement grad_output;
  std::vector<Placement> grad_inputs, grad_parameters;
  /// Attributes that change: a size is cut as the dimension is; a flag that is rooted is 0 elsewhere.
  std::vector<std::pair<std::string_view, Placement>> attributes;
  /// What takes the place of the op's body.
  const Body* body = nullptr;
  /// The result depends on the cut: each part is what one device makes of that part.
  bool by_part = false;
  /// The parts find the result out together: lowering plays other ops in this one's place, with transfers between them.
  bool together = false;
};

/// All of the op's rules at these shapes.
std::vector<Rule> rules_of(const OpInstance& op);
/// ConfigError, with all names, for one that it hasn't.
Rule rule_of(const OpInstance& op, std::string_view name);

/// What coordinate `at` plays: shapes and attributes. ConfigError where a size can't be cut (sim::part).
OpInstance part_of(const OpInstance& whole, const Rule& rule, const Axis& axis, std::uint32_t at);

}  // namespace sim
