// HyPar's hybrid layers (R3): on every level of a hierarchy of devices each layer with weights is data parallel (dp: a
// part of the samples, all weights) or model parallel (in: a part of the input channels; out: of the output channels).
// What has no weights follows its input, and after `in`, whose output is a sum, what comes
// next. The last part takes the rest.
//
//   hypar,levels=2x2,layers=dp+in/out+in     2 × 2 devices; a choice for each layer, levels apart
//   hypar,layers=16*dp+3*in                  VGG-19 on two devices: convolutions by samples, the rest by channels
//   hypar,levels=3,layers=in,form=rooted     all layers alike; sums go to the first device, then to all (the reference)
#include <algorithm>

#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/strategy/layout.hpp"

namespace sim {
namespace {

std::string rule_named(std::string_view choice, const Strategy& strategy) {
  if (choice == "dp") return "batch";
  if (choice == "in") return "input";
  if (choice == "out") return "output";
  throw ConfigError("strategy '{}': layer '{}' is not one of dp, in, out", strategy.text(), choice);
}

/// The choices of one level by node, "" where a node has no weights of its own to choose for.
std::vector<std::string> chosen_rules(const Model& model, const Strategy& strategy,
                                      const std::vector<std::string>& choices) {
  const auto layers =
      static_cast<std::size_t>(std::ranges::count_if(model.nodes, [](const Node& node) { return node.kind->matrix; }));
  if (choices.size() != 1 && choices.size() != layers)
    throw ConfigError("strategy '{}': {} layers, but model '{}' has {}; give one choice for all or one for each",
                      strategy.text(), choices.size(), model.name, layers);
  std::vector<std::string> rules;
  std::size_t next = 0;
  for (const Node& node : model.nodes) {
    if (node.kind->matrix) {
      rules.push_back(rule_named(choices[choices.size() == 1 ? 0 : next], strategy));
      ++next;
    } else {
      rules.emplace_back();
    }
  }
  return rules;
}

/// What the next layer with weights that this node leads to needs of its input: a rule that gives it to it.
std::string wanted_after(const Model& model, const std::vector<std::string>& chosen, std::size_t node) {
  for (std::size_t n = node + 1; n < model.nodes.size(); ++n)
    if (!chosen[n].empty()) return chosen[n];
  return "";
}

/// The rule by which an op without weights keeps its input's cut, "" if it has none.
std::string rule_that_takes(const OpInstance& op, const Placement& input) {
  for (const Rule& rule : rules_of(op))
    if (rule.inputs[0].kind == Placement::Kind::shard && rule.inputs[0].dim == input.dim) return rule.name;
  return "";
}

/// Follows the model's order: what each node is played by along one axis.
std::vector<std::string> rules_along_axis(const Model& model, const std::vector<OpInstance>& ops,
                                          const std::vector<std::string>& chosen, bool is_rooted) {
  std::vector<std::string> rules;
  std::vector<Placement> outputs;  // as their readers find them
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const int source = model.nodes[n].inputs[0];
    std::string rule = chosen[n];
    if (rule.empty()) {
      Placement given = source < 0 ? replicate() : outputs[static_cast<std::size_t>(source)];
      if (source < 0 || given.kind == Placement::Kind::partial) {
        const std::string next = is_rooted && source >= 0 ? "" : wanted_after(model, chosen, n);
        given = next == "batch" ? shard(0) : next == "input" ? shard(1) : replicate();
      }
      if (given.kind == Placement::Kind::shard) rule = rule_that_takes(ops[n], given);
    }
    try {
      outputs.push_back(rule.empty() ? replicate() : rule_of(ops[n], rule).output);
    } catch (const ConfigError& error) {
      throw ConfigError("model '{}', node '{}': {}", model.name, model.nodes[n].name, error.what());
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

/// What all readers of the model's input or target need of it along an axis; all of it if they differ.
Placement needed(const Model& model, const std::vector<OpInstance>& ops, const Layout& layout, std::size_t axis,
                 int source) {
  std::optional<Placement> all;
  for (std::size_t n = 0; n < ops.size(); ++n)
    for (std::size_t k = 0; k < model.nodes[n].inputs.size(); ++k) {
      if (model.nodes[n].inputs[k] != source) continue;
      const std::string& rule = layout.play[n][axis].rule;
      const Placement need = rule.empty() ? replicate() : rule_of(ops[n], rule).inputs[k];
      if (all && *all != need) return replicate();
      all = need;
    }
  return all.value_or(replicate());
}

/// Along an axis, which samples the ops that depend on the cut see together.
Placement rows_along(const Model& model, const std::vector<OpInstance>& ops, const Layout& layout, std::size_t axis) {
  std::optional<bool> is_cut;
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const std::vector<Rule> rules = rules_of(ops[n]);
    const auto by_part = std::ranges::find(rules, true, &Rule::by_part);
    if (by_part == rules.end()) continue;
    const bool cut = layout.play[n][axis].rule == by_part->name;
    if (is_cut && *is_cut != cut)
      throw ConfigError(
          "model '{}': node '{}' would see a part of the samples and others like it all of them; choose "
          "layers so that all batch norms come behind dp, or none",
          model.name, model.nodes[n].name);
    is_cut = cut;
  }
  return is_cut.value_or(false) ? shard(0) : replicate();
}

}  // namespace

Layout hypar(const Model& model, const Strategy& strategy) {
  Layout layout{.parameters = {.in_place = true}, .rooted = strategy.rooted};
  const std::vector<OpInstance> ops = model.instances(model.global_batch);
  layout.play.assign(ops.size(), {});
  for (std::size_t level = 0; level < strategy.levels.size(); ++level) {
    layout.mesh.axes.push_back({fmt::format("level{}", level), strategy.levels[level], Rest::to_last});
    const std::vector<std::string> rules =
        rules_along_axis(model, ops, chosen_rules(model, strategy, strategy.layers[level]), strategy.rooted);
    for (std::size_t n = 0; n < ops.size(); ++n) layout.play[n].push_back({.rule = rules[n]});
    layout.input.push_back(strategy.rooted ? rooted(0) : needed(model, ops, layout, level, kModelInput));
    layout.target.push_back(strategy.rooted ? rooted(0) : needed(model, ops, layout, level, kModelTarget));
    layout.rows.push_back(rows_along(model, ops, layout, level));
  }
  return layout;
}

}  // namespace sim
