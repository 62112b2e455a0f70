// An axis along which nodes are played by rules of their ops, each as the one before leaves its values.
#include <algorithm>
#include <optional>

#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/strategy/axis/axis.hpp"

namespace sim {
namespace {

/// What the next layer with weights that this node leads to needs of its input: a rule that gives it to it.
std::string wanted_after(const Model& model, const std::vector<std::string>& chosen, std::size_t node) {
  for (std::size_t n = node + 1; n < model.nodes.size(); ++n)
    if (!chosen[n].empty()) return chosen[n];
  return "";
}

/// The rule by which an op without weights keeps its input's cut, "" if it has none.
std::string rule_that_takes(const OpInstance& op, const Placement& input) {
  for (const Rule& rule : rules_of(op))
    if (!rule.inputs.empty() && !(rule.together && op.kind->role == OpRole::loss) &&
        rule.inputs[0].kind == Placement::Kind::shard && rule.inputs[0].dim == input.dim)
      return rule.name;
  return "";
}

/// What a node gives its readers: where it lies, and whether each part has one of its own there, of its own samples.
struct NodeOutput {
  Placement where;
  bool is_own = false;
};

/// The rule by which an op reads what each part has of its own, "" where it reads nothing such.
std::string rule_of_own(const Model& model, const OpInstance& op, const std::vector<NodeOutput>& given,
                        std::size_t node) {
  const auto is_own = [&](int source) { return source >= 0 && given[static_cast<std::size_t>(source)].is_own; };
  if (std::ranges::none_of(model.nodes[node].inputs, is_own)) return "";
  const std::vector<Rule> rules = rules_of(op);
  return std::ranges::find(rules, "batch", &Rule::name) != rules.end() ? "batch" : "";
}

/// Follows the model's order: what each node is played by along one axis.
std::vector<std::string> rules_along_axis(const Model& model, const std::vector<OpInstance>& ops,
                                          const std::vector<std::string>& chosen, bool is_rooted) {
  std::vector<std::string> rules;
  std::vector<NodeOutput> outputs;  // as their readers find them
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const int source = model.nodes[n].inputs.empty() ? kModelInput : model.nodes[n].inputs[0];
    std::string rule = chosen[n];
    if (rule.empty()) rule = rule_of_own(model, ops[n], outputs, n);
    if (rule.empty()) {
      Placement given = source < 0 ? replicate() : outputs[static_cast<std::size_t>(source)].where;
      if (source < 0 || given.kind == Placement::Kind::partial) {
        const std::string next = is_rooted && source >= 0 ? "" : wanted_after(model, chosen, n);
        given = next == "batch" ? shard(0) : next == "input" ? shard(1) : replicate();
      }
      if (given.kind == Placement::Kind::shard) rule = rule_that_takes(ops[n], given);
    }
    try {
      NodeOutput& output = outputs.emplace_back();
      if (rule.empty()) {
        output.where = replicate();
      } else {
        const Rule played = rule_of(ops[n], rule);
        output = {played.output, played.output == replicate() && played.grad_output == partial()};
      }
    } catch (const ConfigError& error) {
      throw ConfigError("model '{}', node '{}': {}", model.name, model.nodes[n].name, error.what());
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

/// What all readers of the model's input or target need of it along the axis; all of it if they differ.
Placement needed(const Model& model, const std::vector<OpInstance>& ops, const std::vector<std::string>& rules,
                 int source) {
  std::optional<Placement> all;
  for (std::size_t n = 0; n < ops.size(); ++n)
    for (std::size_t k = 0; k < model.nodes[n].inputs.size(); ++k) {
      if (model.nodes[n].inputs[k] != source) continue;
      const Placement need = rules[n].empty() ? replicate() : rule_of(ops[n], rules[n]).inputs[k];
      if (all && *all != need) return replicate();
      all = need;
    }
  return all.value_or(replicate());
}

/// Which samples the ops that depend on the cut see together.
Placement rows_along(const Model& model, const std::vector<OpInstance>& ops, const std::vector<std::string>& rules) {
  std::optional<bool> is_cut;
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const std::vector<Rule> known = rules_of(ops[n]);
    const auto by_part = std::ranges::find(known, true, &Rule::by_part);
    if (by_part == known.end()) continue;
    const bool cut = rules[n] == by_part->name;
    if (is_cut && *is_cut != cut)
      throw ConfigError(
          "model '{}': node '{}' would see a part of the samples and others like it all of them; choose "
          "layers so that all that see samples together (batch norms) come behind dp, or none",
          model.name, model.nodes[n].name);
    is_cut = cut;
  }
  return is_cut.value_or(false) ? shard(0) : replicate();
}

}  // namespace

void add_axis_of_rules(Layout& layout, const Model& model, const Axis& axis, const std::vector<std::string>& chosen) {
  const std::vector<OpInstance> ops = model.instances(model.global_batch);
  const std::vector<std::string> rules = rules_along_axis(model, ops, chosen, layout.rooted);
  layout.add_axis(axis, rows_along(model, ops, rules), [&](std::size_t n) { return Layout::Play{.rule = rules[n]}; });
  layout.input.back() = layout.rooted ? rooted(0) : needed(model, ops, rules, kModelInput);
  layout.target.back() = layout.rooted ? rooted(0) : needed(model, ops, rules, kModelTarget);
}

}  // namespace sim
