#include "sim/model/op/kinds.hpp"

namespace sim {
namespace {

Signature signature(const OpInstance& op) {
  const TensorSpec& x = op.inputs[0];
  if (x.shape.size() < 2) throw ConfigError("op 'flatten' needs an input [batch, …], found {}", to_string(x));
  Signature s;
  s.output = {x.dtype, {x.shape[0], x.elements() / x.shape[0]}};
  s.storage = OutputStorage::view;
  s.backward_is_alias = true;
  return s;
}

Demand demand(const OpInstance&, Pass, std::uint32_t) { return {}; }

}  // namespace

OpKind flatten_kind() {
  return {
      .name = "flatten", .equation = "y = x as [batch, features] (a view)", .signature = signature, .demand = demand};
}

}  // namespace sim
