#include "sim/model/op/op.hpp"

#include <algorithm>
#include <cmath>

#include "sim/error.hpp"
#include "sim/model/op/kinds.hpp"

namespace sim {

const Table<OpKind>& op_table() {
  static const std::vector<OpKind> kinds = [] {
    std::vector<OpKind> all{conv2d_kind(), linear_kind(), batch_norm_kind(), aten_kind()};
    for (const auto& family :
         {layer_kinds(), loss_kinds(), optimizer_kinds(), helper_kinds(), class_kinds(), sync_kinds()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  static const Table<OpKind> table("op kind", kinds);
  return table;
}

bool is_synced(const Attributes& attributes) {
  const auto sync = attributes.find("sync");
  return sync != attributes.end() && sync->second != 0;
}

double OpInstance::number(std::string_view attribute) const {
  const auto found = attributes.find(attribute);
  check_internal(found != attributes.end(), "op '{}' has no attribute '{}'", kind->name, attribute);
  return found->second;
}

std::int64_t OpInstance::integer(std::string_view attribute) const { return std::llround(number(attribute)); }

Extent OpInstance::extent() const { return {integer("batch"), integer("units"), integer("last") != 0}; }

bool OpInstance::keeps_channels_last() const {
  return body != nullptr && body->order == DimensionOrder::kept &&
         std::ranges::any_of(inputs, &TensorSpec::channels_last);
}

Dtype OpInstance::multiplied() const {
  const Dtype own = inputs.at(0).dtype;
  // Autocast leaves f64 alone.
  return is_autocast(precision) && own != Dtype::f64 ? half_of(precision) : own;
}

Dtype OpInstance::parameter_dtype() const { return half_parameters ? multiplied() : at_least_f32(inputs.at(0).dtype); }

Signature OpInstance::signature() const {
  const auto check = [&](const TensorSpec& spec, std::string_view what) {
    if (!fits(spec.shape))
      throw ConfigError("op '{}' has {} {}; sizes must be positive, with a product of at most 2^40", kind->name, what,
                        to_string(spec));
  };
  for (const TensorSpec& input : inputs) check(input, "an input");
  Signature s = kind->signature(*this);
  check(s.output, "an output");
  for (const ParameterSpec& parameter : s.parameters) check(parameter.spec, "a parameter");
  for (const BufferSpec& buffer : s.buffers) check(buffer.spec, "a buffer");
  for (const SavedSpec& saved : s.saved) check(saved.spec, "a saved tensor");
  return s;
}

std::vector<std::uint32_t> OpInstance::changed_reads(Pass pass) const {
  std::vector<std::uint32_t> reads;
  if (pass == Pass::backward) return reads;
  const auto add = [&](std::size_t first, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) reads.push_back(static_cast<std::uint32_t>(first + i));
  };
  const Signature s = signature();
  if (pass == Pass::forward) {
    if (s.storage == OutputStorage::in_place) add(0, 1);
    add(inputs.size() + s.parameters.size(), s.buffers.size());
  } else {
    add(0, inputs.size());
    add(2 * inputs.size(), s.saved.size());  // after the gradients, which don't change
  }
  return reads;
}

Attributes complete_attributes(const OpKind& kind, const Attributes& given, const std::string& where) {
  for (const auto& [name, value] : given) {
    const auto spec = std::ranges::find(kind.attributes, std::string_view(name), &AttributeSpec::name);
    if (spec == kind.attributes.end()) {
      std::string known;
      for (const AttributeSpec& each : kind.attributes) known += (known.empty() ? "" : ", ") + std::string(each.name);
      throw ConfigError("{}: op '{}' has no attribute '{}'; known: {}", where, kind.name, name,
                        known.empty() ? "none" : known);
    }
    const bool in_range = value >= spec->minimum && value <= spec->maximum;
    if (!in_range || (spec->integral && value != std::floor(value)))
      throw ConfigError("{}: {}={} of op '{}' must be a {} from {} to {}", where, name, value, kind.name,
                        spec->integral ? "whole number" : "number", spec->minimum, spec->maximum);
  }
  Attributes complete = given;
  for (const AttributeSpec& spec : kind.attributes) {
    if (complete.contains(spec.name)) continue;
    if (spec.required) throw ConfigError("{}: op '{}' needs '{}'", where, kind.name, spec.name);
    complete.emplace(spec.name, spec.otherwise);
  }
  return complete;
}

}  // namespace sim
