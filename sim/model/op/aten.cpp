#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

/// A part of a dimension, −1: `otherwise`.
Placement along(const PartSpec& spec, int dim, const Placement& otherwise) {
  if (dim < 0) return otherwise;
  return shard(static_cast<std::uint32_t>(dim), spec.sizes[static_cast<std::size_t>(dim)].count);
}

/// Which part of a tensor the coordinates of an axis need that each have a part of the batch; `otherwise`: what doesn't
/// depend on it.
Placement by_batch(const PartSpec& spec, const Placement& otherwise) {
  return along(spec, spec.batch_dim(), otherwise);
}

std::vector<Placement> by_batch(const std::vector<PartSpec>& specs, const Placement& otherwise) {
  std::vector<Placement> placements;
  for (const PartSpec& spec : specs) placements.push_back(by_batch(spec, otherwise));
  return placements;
}

/// The same where each has a part of the units. What isn't cut is a sum where its bit says so.
std::vector<Placement> by_units(const std::vector<PartSpec>& specs, std::uint32_t sums) {
  std::vector<Placement> placements;
  for (std::size_t i = 0; i < specs.size(); ++i)
    placements.push_back(along(specs[i], specs[i].units_dim(), (sums >> i & 1U) != 0 ? partial() : replicate()));
  return placements;
}

TensorSpec in_order(TensorSpec spec, bool channels_last) {
  spec.channels_last = channels_last && spec.shape.size() == 4;
  return spec;
}

Signature aten_signature(const OpInstance& op) {
  check_internal(op.body != nullptr, "op 'aten' has no body");
  const Body& body = *op.body;
  const Extent extent = op.extent();
  if (op.inputs.size() != body.inputs.size())
    throw ConfigError("body '{}' takes {} inputs, found {}", body.name, body.inputs.size(), op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (const TensorSpec expected = in_order(body.inputs[i].at(extent), op.inputs[i].channels_last);
        op.inputs[i] != expected)
      throw ConfigError("input {} of body '{}' must be {}, found {}", i, body.name, to_string(expected),
                        to_string(op.inputs[i]));
  const bool channels_last = op.keeps_channels_last();
  Signature s{.output = in_order(body.output.at(extent), channels_last)};
  for (std::size_t p = 0; p < body.parameters.size(); ++p)
    s.parameters.push_back({.name = fmt::format("p{}", p),
                            .spec = in_order(body.parameters[p].at(extent), channels_last),
                            .is_packed = body.parameters[p].blocks_dim == 0});
  for (std::size_t k = 0; k < body.saved.size(); ++k)
    s.saved.push_back({.name = fmt::format("s{}", k),
                       .spec = in_order(body.saved[k].at(extent), channels_last),
                       .is_copy = body.copies[k]});
  const auto reads = [&](Operand::From from, const std::vector<int>& indices) {
    for (const int index : indices) s.backward_reads.push_back({from, index});
  };
  reads(Operand::From::input, body.reads_inputs);
  reads(Operand::From::parameter, body.reads_parameters);
  if (body.reads_output) reads(Operand::From::output, {0});
  reads(Operand::From::saved, body.reads_saved);
  return s;
}

Demand aten_demand(const OpInstance& op, Pass pass, std::uint32_t /*grads*/) {
  const std::size_t which = pass == Pass::forward ? 0 : 1;
  const Extent extent = op.extent();
  return {op.body->flops[which].at(extent), op.body->bytes[which].at(extent), op.body->kernels[which]};
}

/// A gradient of what every part needs whole is a sum; so is what is made of parameters alone, as its readers' are. Where
/// samples are seen together (a batch norm, a contrast between samples), each part sees its own, as under PyTorch's DDP.
Rule batch_rule(const Body& body) {
  const std::vector<Placement> whole(body.parameters.size(), replicate()), sums(body.parameters.size(), partial());
  return {.name = "batch",
          .inputs = by_batch(body.inputs, replicate()),
          .parameters = whole,
          .output = by_batch(body.output, replicate()),
          .grad_output = by_batch(body.output, partial()),
          .grad_inputs = by_batch(body.inputs, partial()),
          .grad_parameters = sums,
          .attributes = {{"batch", shard(0)}},
          .by_part = !body.by_rows};
}

/// As a linear layer's "output" and "input": what is cut lies in parts, its gradient, too; a sum's gradient all have. Of
/// positions the same.
Rule units_rule(const Body& body) {
  const Placement cut = along(body.output, body.output.units_dim(), replicate());
  std::vector<std::pair<std::string_view, Placement>> attributes{{"units", shard(0)}};
  if (body.reads_last) attributes.emplace_back("last", rooted(kLast));
  return {.name = body.has_positions ? "positions" : "units",
          .inputs = by_units(body.inputs, 0),
          .parameters = by_units(body.parameters, 0),
          .output = body.sums_output ? partial() : cut,
          .grad_output = cut,
          .grad_inputs = by_units(body.inputs, body.sums_inputs),
          .grad_parameters = by_units(body.parameters, body.sums_parameters),
          .attributes = std::move(attributes)};
}

std::vector<Rule> aten_rules(const OpInstance& op) {
  std::vector<Rule> rules{batch_rule(*op.body)};
  if (op.body->units > 1) rules.push_back(units_rule(*op.body));
  if (op.in_parts != nullptr) {
    rules.push_back(units_rule(*op.in_parts));
    rules.back().body = op.in_parts;
  }
  return rules;
}

}  // namespace

OpKind aten_kind() {
  return {.name = "aten",
          .equation = "what its body says: calls of ATen's ops (an imported model's)",
          .inputs = OpKind::kAsBody,
          .attributes = {{"batch", true, 0, 1}, {"units", false, 1, 1}, {"last", false, 1, 0, 1}},
          .signature = aten_signature,
          .demand = aten_demand,
          .rules = aten_rules};
}

}  // namespace sim
