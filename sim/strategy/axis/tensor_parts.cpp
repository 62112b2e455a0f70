// tp: tensor-parallel layers (R6, Megatron's): the first layer with weights is cut by output channels (its "column parallel"),
// the next, which takes its input so, by input channels ("row parallel"), and so on. What has no weights follows its input.
// After two layers the output is a sum over the ranks, and so is the gradient of the first one's input. An imported model's
// bodies say what is cut, from a column to a row, by attention heads or features (cut_nodes.py of bench/import); all
// ranks play the others. A vocabulary is cut, too (megatron/core/tensor_parallel: VocabParallelEmbedding, cross_entropy):
// of the last layer, whose output nobody but the loss reads, of the loss, and of the embedding, whose output is a sum.
// Where the ranks don't divide it, all parts but the last are of the size rounded up: Megatron pads it to that.
//
// sp: what lies between a row and the next column (residual sums, norms, dropouts), which else all ranks play whole, is
// in parts, too (Korthikanti et al., https://arxiv.org/abs/2205.05198, section 4.2.2): the row's sums are reduce-
// scattered, and gathered before the column, whose input isn't kept whole for the backward. Megatron cuts the sequence,
// which comes first in its memory; here each rank has a part of the microbatch's samples, which is as much of
// everything: of [samples, positions, features] such blocks lie together. Where there are too few samples it has a part
// of the positions, as the bodies say it (positions.py of bench/import); with several samples these are packed and
// unpacked. Under autocast a column gathers f32 where a norm gives it, and keeps a half copy of its input, whole, as
// autocast's layers do. Biases of rows are added before the sum, as without sp. Gradients of the parameters that are
// played so are summands along tp, too, and are summed with the replicas' in the buckets or units of such
// (sim/lower/pass).
#include <algorithm>

#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/strategy/axis/axis.hpp"

namespace sim {

namespace {

bool is_chain(const Model& model) {
  for (std::size_t n = 0; n < model.nodes.size(); ++n)
    for (const int source : model.nodes[n].inputs)
      if (source != kModelTarget && source != (n == 0 ? kModelInput : static_cast<int>(n) - 1)) return false;
  return true;
}

/// How many units it can be cut into; 1: none.
std::int64_t units_of(const Node& node) {
  if (node.in_parts != nullptr) return node.in_parts->units;
  return node.body != nullptr && !node.body->has_positions ? node.body->units : 1;
}

bool has_units(const Node& node) { return units_of(node) > 1; }

/// How many classes the loss takes in parts, as the node before it gives them; 1: it takes them all.
std::int64_t classes_in_parts(const Model& model) {
  const Node& loss = model.nodes.back();
  if (!loss.kind->takes_class_indices || loss.inputs[0] < 0) return 1;
  const Body* logits = model.nodes[static_cast<std::size_t>(loss.inputs[0])].body;
  if (logits == nullptr || logits->has_positions || logits->units != model.classes) return 1;
  return logits->output.units_dim() + 1 == static_cast<int>(logits->output.sizes.size()) ? model.classes : 1;
}

/// How many positions what lies between cut layers has, as its bodies say; 1: it can't be cut so.
std::int64_t positions_of(const Model& model) {
  for (const Node& node : model.nodes)
    if (node.body != nullptr && node.body->has_positions) return node.body->units;
  return 1;
}

/// The rule by which an op is played on a part of the positions; empty: there is none.
std::string rule_of_positions(const OpInstance& op, std::int64_t positions) {
  const bool has_them = op.body == nullptr && op.inputs[0].shape.size() > 2 && op.inputs[0].shape[1] == positions;
  for (const Rule& rule : rules_of(op))
    if (rule.name == "positions" || (rule.name == "sequence" && has_them)) return rule.name;
  return "";
}

/// By node, of what isn't cut. Where it can be, each rank has a part of the microbatch's samples; what depends on them
/// together all play. Else a part of the positions; and what depends on those all play.
std::vector<std::string> rules_between(const Layout& layout, const Model& model, const Strategy& strategy) {
  std::vector<std::string> rules(model.nodes.size());
  if (!strategy.sp) return rules;
  const std::int64_t samples = model.global_batch / strategy.dp / strategy.microbatches,
                     positions = positions_of(model);
  const bool by_samples = samples % strategy.tp == 0;
  if (!by_samples && (positions == 1 || positions % strategy.tp != 0))
    throw ConfigError(
        "strategy '{}': sp=1 needs the samples of a microbatch, or their positions, to be a multiple of tp={}, found "
        "{} (global_batch={}, dp={}, microbatches={}) and {} in model '{}'",
        strategy.text(), strategy.tp, samples, model.global_batch, strategy.dp, strategy.microbatches,
        positions == 1 ? "none that can be cut" : fmt::to_string(positions), model.name);
  const auto is_cut = [](const Placement& placement) { return placement.kind == Placement::Kind::shard; };
  if (by_samples && strategy.dp > 1 && std::ranges::none_of(layout.rows, is_cut))
    throw ConfigError("strategy '{}': sp=1 cuts the samples that a replica has: dp must come before tp in order={}",
                      strategy.text(), fmt::to_string(fmt::join(strategy.order, "-")));
  const std::vector<OpInstance> ops = model.instances(samples);
  std::vector<bool> read_whole(rules.size(), false);  // by what all play: its gradient isn't a summand there
  for (std::size_t n = rules.size(); n-- > 0;) {
    if (!by_samples) {
      rules[n] = rule_of_positions(ops[n], positions);
      continue;
    }
    const std::vector<Rule> known = rules_of(ops[n]);
    const bool sees_all = std::ranges::find(known, true, &Rule::by_part) != known.end();
    const auto batch = std::ranges::find(known, "batch", &Rule::name);
    const bool has_samples = batch != known.end() && is_cut(batch->output);
    if (!sees_all && (has_samples || !read_whole[n])) rules[n] = "batch";
    for (const int input : model.nodes[n].inputs)
      if (input >= 0 && rules[n].empty()) read_whole[static_cast<std::size_t>(input)] = true;
  }
  return rules;
}

/// By the attention's heads and the layers' features, and by the vocabulary.
void add_units(Layout& layout, const Model& model, const Strategy& strategy) {
  const std::uint32_t tp = strategy.tp;
  const std::int64_t classes = classes_in_parts(model), each = (classes + tp - 1) / tp;
  // Who counts the correct predictions (Timing::epoch) needs all logits.
  const bool cuts_classes = classes > 1 && each * (tp - 1) < classes && model.timing != Timing::epoch;
  const bool is_uneven = cuts_classes && classes % tp != 0;
  const auto is_cut = [&](const Node& node) { return has_units(node) && (cuts_classes || units_of(node) != classes); };
  for (const Node& node : model.nodes)
    if (is_uneven && has_units(node) && units_of(node) != classes && units_of(node) % tp != 0)
      throw ConfigError("model '{}', node '{}': tp={} must divide {}", model.name, node.name, tp, units_of(node));
  const std::size_t loss = model.nodes.size() - 1;
  const std::vector<std::string> between = rules_between(layout, model, strategy);
  layout.add_axis({"tp", tp, is_uneven ? Rest::chunks : Rest::forbidden}, replicate(), [&](std::size_t n) {
    if (n == loss) return Layout::Play{.rule = cuts_classes ? "classes" : ""};
    return Layout::Play{.rule = is_cut(model.nodes[n]) ? "units" : between[n]};
  });
  layout.regather = strategy.sp;
  if (strategy.sp) layout.draw_axes |= 1U << (layout.mesh.axes.size() - 1);
}

}  // namespace

std::string why_no_tensor_parts(const Model& model) {
  if (std::ranges::any_of(model.nodes, has_units) || is_chain(model)) return "";
  if (model.is_imported()) return "no layers of the model could be cut when it was imported";
  return "the model is no chain of layers";
}

namespace {

void add_tensor_parts(Layout& layout, const Model& model, const Strategy& strategy) {
  if (strategy.tp == 1) return;
  layout.sums_early = true;
  if (std::ranges::any_of(model.nodes, has_units)) return add_units(layout, model, strategy);
  if (strategy.sp)
    throw ConfigError("strategy '{}': sp cuts what lies between an imported model's cut layers, but model '{}' {}",
                      strategy.text(), model.name,
                      model.is_imported() ? "has none: its import found no pair of layers to cut" : "isn't imported");
  if (!is_chain(model))
    throw ConfigError(
        "strategy '{}': tp cuts layers by output and input channels in turn, but model '{}' is no chain of layers{}",
        strategy.text(), model.name,
        model.is_imported() ? ", and its import found no pair of layers to cut (their units are in the file)" : "");
  std::vector<std::string> chosen;
  bool is_first = true;  // of two
  for (const Node& node : model.nodes) {
    chosen.emplace_back(!node.kind->matrix ? "" : is_first ? "output" : "input");
    if (node.kind->matrix) is_first = !is_first;
  }
  add_axis_of_rules(layout, model, {"tp", strategy.tp}, chosen);
}

}  // namespace

const AxisKind kTensorParts{"tp", add_tensor_parts};

}  // namespace sim
