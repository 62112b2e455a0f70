#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

/// Which part of a tensor the coordinates of an axis need that each have a part of the batch; `otherwise`: what doesn't
/// depend on it.
Placement by_batch(const BatchedSpec& spec, const Placement& otherwise) {
  const int dim = spec.batch_dim();
  if (dim < 0) return otherwise;
  return shard(static_cast<std::uint32_t>(dim), spec.sizes[static_cast<std::size_t>(dim)].count);
}

std::vector<Placement> by_batch(const std::vector<BatchedSpec>& specs, const Placement& otherwise) {
  std::vector<Placement> placements;
  for (const BatchedSpec& spec : specs) placements.push_back(by_batch(spec, otherwise));
  return placements;
}

Signature aten_signature(const OpInstance& op) {
  check_internal(op.body != nullptr, "op 'aten' has no body");
  const Body& body = *op.body;
  const std::int64_t batch = op.integer("batch");
  if (op.inputs.size() != body.inputs.size())
    throw ConfigError("body '{}' takes {} inputs, found {}", body.name, body.inputs.size(), op.inputs.size());
  for (std::size_t i = 0; i < op.inputs.size(); ++i)
    if (const TensorSpec expected = body.inputs[i].at(batch); op.inputs[i] != expected)
      throw ConfigError("input {} of body '{}' must be {}, found {}", i, body.name, to_string(expected),
                        to_string(op.inputs[i]));
  Signature s{.output = body.output.at(batch)};
  for (std::size_t p = 0; p < body.parameters.size(); ++p)
    s.parameters.push_back({fmt::format("p{}", p), body.parameters[p].at(batch)});
  for (std::size_t k = 0; k < body.saved.size(); ++k)
    s.saved.push_back({fmt::format("s{}", k), body.saved[k].at(batch)});
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
  const std::int64_t batch = op.integer("batch");
  return {op.body->flops[which].at(batch), op.body->bytes[which].at(batch), op.body->kernels[which]};
}

/// A gradient of what every part needs whole is a sum; so is what is made of parameters alone, as its readers' are.
std::vector<Rule> aten_rules(const OpInstance& op) {
  const Body& body = *op.body;
  if (!body.by_rows) return {};
  const std::vector<Placement> whole(body.parameters.size(), replicate()), sums(body.parameters.size(), partial());
  return {{.name = "batch",
           .inputs = by_batch(body.inputs, replicate()),
           .parameters = whole,
           .output = by_batch(body.output, replicate()),
           .grad_output = by_batch(body.output, partial()),
           .grad_inputs = by_batch(body.inputs, partial()),
           .grad_parameters = sums,
           .attributes = {{"batch", shard(0)}}}};
}

}  // namespace

OpKind aten_kind() {
  return {.name = "aten",
          .equation = "what its body says: calls of ATen's ops (an imported model's)",
          .inputs = OpKind::kAsBody,
          .attributes = {{"batch", true, 0, 1}},
          .signature = aten_signature,
          .demand = aten_demand,
          .rules = aten_rules};
}

}  // namespace sim
