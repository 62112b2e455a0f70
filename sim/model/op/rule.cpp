#include "sim/model/op/rule.hpp"

#include <algorithm>
#include <numeric>

#include "sim/error.hpp"
#include "sim/model/op/kinds.hpp"

namespace sim {

std::vector<Rule> rules_of(const OpInstance& op) {
  return op.kind->rules != nullptr ? op.kind->rules(op) : std::vector<Rule>();
}

Rule rule_of(const OpInstance& op, std::string_view name) {
  std::string known;
  for (Rule& rule : rules_of(op)) {
    if (rule.name == name) return std::move(rule);
    known += (known.empty() ? "" : ", ") + rule.name;
  }
  if (op.body != nullptr)
    throw ConfigError("op '{}' has no rule '{}': imported ops are cut by samples and by units only; known: {}",
                      op.name(), name, known.empty() ? "none" : known);
  throw ConfigError("op '{}' has no rule '{}'; known: {}", op.kind->name, name, known.empty() ? "none" : known);
}

std::string dim_name(const OpInstance& op, std::uint32_t dim) {
  const std::size_t dims = op.inputs[0].shape.size();
  if (dim == 0) return "batch";
  if (dim + 1 == dims) return dims == 4 ? "width" : "features";
  if (dim == 1) return dims == 4 ? "channels" : "sequence";
  return dims == 4 ? "height" : fmt::format("dim{}", dim);
}

std::vector<std::uint32_t> all_dims(const OpInstance& op) {
  std::vector<std::uint32_t> dims(op.inputs[0].shape.size());
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

std::vector<Rule> rules_along(const OpInstance& op, const std::vector<std::uint32_t>& dims) {
  std::vector<Rule> rules;
  for (const std::uint32_t dim : dims) {
    const std::vector<Placement> inputs(op.inputs.size(), shard(dim));
    rules.push_back({.name = dim_name(op, dim),
                     .inputs = inputs,
                     .output = shard(dim),
                     .grad_output = shard(dim),
                     .grad_inputs = inputs});
  }
  return rules;
}

std::vector<Placement> weight_and_bias(const OpInstance& op, const Placement& weight, const Placement& bias) {
  if (op.integer("bias") == 0) return {weight};
  return {weight, bias};
}

std::vector<Rule> matrix_rules(const OpInstance& op, std::string_view size_attribute) {
  const std::vector<Placement> whole = weight_and_bias(op, replicate(), replicate()),
                               sums = weight_and_bias(op, partial(), partial()),
                               rows = weight_and_bias(op, shard(0), shard(0)),
                               columns = weight_and_bias(op, shard(1), rooted(kLast));
  return {{.name = "batch",
           .inputs = {shard(0)},
           .parameters = whole,
           .output = shard(0),
           .grad_output = shard(0),
           .grad_inputs = {shard(0)},
           .grad_parameters = sums},
          {.name = "output",
           .inputs = {replicate()},
           .parameters = rows,
           .output = shard(1),
           .grad_output = shard(1),
           .grad_inputs = {partial()},
           .grad_parameters = rows,
           .attributes = {{size_attribute, shard(0)}}},
          {.name = "input",
           .inputs = {shard(1)},
           .parameters = columns,
           .output = partial(),
           .grad_output = replicate(),
           .grad_inputs = {shard(1)},
           .grad_parameters = columns,
           .attributes = {{"bias", rooted(kLast)}}}};
}

std::vector<Rule> loss_rules(const OpInstance& op) {
  const std::vector<Placement> inputs(op.inputs.size(), shard(0));
  return {{.name = dim_name(op, 0),
           .inputs = inputs,
           .output = partial(Reduction::mean),
           .grad_output = replicate(),
           .grad_inputs = inputs}};
}

OpInstance part_of(const OpInstance& whole, const Rule& rule, const Axis& axis, std::uint32_t at) {
  OpInstance mine = whole;
  if (rule.body != nullptr) {
    mine.body = rule.body;
    mine.in_parts = nullptr;
    mine.attributes["units"] = static_cast<double>(rule.body->units);
  }
  for (std::size_t i = 0; i < mine.inputs.size(); ++i) {
    const auto ranges = piece(whole.inputs[i].shape, rule.inputs.at(i), axis, at);
    check_internal(ranges.has_value(), "rule '{}' of op '{}': an input is elsewhere", rule.name, whole.kind->name);
    std::ranges::transform(*ranges, mine.inputs[i].shape.begin(), &Range::size);
  }
  for (const auto& [name, placement] : rule.attributes) {
    const auto ranges = piece({mine.integer(name)}, placement, axis, at);
    mine.attributes.find(name)->second = ranges ? static_cast<double>((*ranges)[0].size) : 0;
  }
  return mine;
}

}  // namespace sim
