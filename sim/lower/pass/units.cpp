// ZeRO's units: parameters that lie one after the other in a flat tensor, padded so that the ranks along an axis divide
// it. Each keeps the optimizer's states of its part only, and updates that. The weights are views of the whole, which is
// there all the time (ZeRO 1 and 2) or only while it is used (ZeRO 3); that of 55 parameters on two ranks is
//
//   tensor unit0.all f32[56] weight persistent unit=unit0     or  tensor unit0.own f32[28] weight persistent of=[56] …
//   view unit0.own f32[28] unit0.all +0 along=dp                  tensor unit0.all f32[56] weight
//   view fc.weight f32[5,10] unit0.all +0                         view fc.weight f32[5,10] unit0.all +0
//   view fc.bias f32[5] unit0.all +200                            view fc.bias f32[5] unit0.all +200
//
// Weights that are used in half precision are kept in f32 by who updates them: then unit0.own is a tensor of its own with
// ZeRO 1 and 2, too, and unit0.all bf16[56].
//
// What isn't trained (LoRA's base) is cut and gathered with the weights of its layers, in units of its own.
//
// FSDP2 cuts each parameter by its rows, padded: unit0.own has 3 of 5 rows of both, unit0.all two such tables, from which
// the parameters are copied out, each to room for 6 rows.
#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"

namespace sim {
namespace {

struct Grouped {
  bool is_whole = false;  // its weights are there all the time
  std::vector<std::uint32_t> parameters;
};

/// Parameters of a unit are of one dtype, and summed along the same axes; and, if `apart`, cut along the same other ones.
std::vector<Grouped> grouped(const Draft& draft, const ParameterCut& cut, bool apart) {
  const bool by_size = cut.unit_bytes > 0;
  std::vector<std::uint32_t> order(draft.parameters.size());
  std::iota(order.begin(), order.end(), 0U);
  if (by_size) std::ranges::reverse(order);  // as their gradients come
  using Key = std::tuple<bool, std::uint32_t, std::uint32_t, std::uint32_t, Dtype, bool, bool>;
  std::vector<std::pair<Key, std::vector<std::uint32_t>>> groups;  // in the order of their first parameters
  for (const std::uint32_t p : order) {
    const DraftParameter& parameter = draft.parameters[p];
    const bool is_whole = !cut.weights || parameter.spec.elements() <= cut.whole_up_to;
    const Key key{is_whole,
                  is_whole && cut.weights ? 0 : cut.unit_of.at(parameter.of),
                  parameter.sum_axes,
                  apart ? parameter.cut_axes : 0,
                  parameter.spec.dtype,
                  parameter.is_half,
                  parameter.is_frozen};
    auto group = std::ranges::find(groups, key, &decltype(groups)::value_type::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {key, {}});
    group->second.push_back(p);
  }
  std::vector<Grouped> units;
  for (const auto& [key, parameters] : groups) {
    if (!by_size) {
      units.push_back({std::get<0>(key), parameters});
      continue;
    }
    std::vector<std::int64_t> sizes;
    for (const std::uint32_t p : parameters)
      sizes.push_back(draft.parameters[p].spec.elements() * size_of(draft.parameters[p].part.whole.dtype));
    for (const std::vector<std::uint32_t>& indices : bucket_assignment(sizes, cut.unit_bytes, cut.unit_bytes)) {
      Grouped& unit = units.emplace_back(Grouped{std::get<0>(key), {}});
      for (const std::uint32_t i : indices) unit.parameters.push_back(parameters[i]);
    }
  }
  return units;
}

/// What is cut is the whole unit.
void add_flat(Draft& draft, const Layout& layout, std::int64_t elements, DraftUnit& unit, std::uint32_t index) {
  const std::uint32_t axis = layout.parameters.cut->axis;
  const std::int64_t ranks = layout.mesh.axes.at(axis).size;
  const std::string& name = draft.names->at(unit.label);
  const DraftParameter& first = draft.parameters[unit.parameters[0]];
  const TensorSpec part{first.part.whole.dtype, {(elements + ranks - 1) / ranks}},
      padded{first.spec.dtype, {part.elements() * ranks}};
  unit.all = draft.role.add_tensor(name + ".all", padded, TensorClass::weight, /*persistent=*/!unit.is_gathered);
  if (unit.is_gathered || unit.is_half) {
    std::vector<Placement> on(layout.mesh.axes.size(), replicate());
    on[axis] = shard(0);
    unit.own = draft.role.add_piece(name + ".own", part, TensorClass::weight, {}, padded.shape, on);
    draft.role.tensors[unit.own].unit = index;
    if (!unit.is_gathered)
      unit.given = draft.role.add_own_view(name + ".given", {padded.dtype, part.shape}, unit.all, axis);
  } else {
    unit.given = unit.own = draft.role.add_own_view(name + ".own", part, unit.all, axis);
  }
  if (!unit.is_gathered) draft.role.tensors[unit.all].unit = index;
  std::int64_t offset = 0;
  for (const std::uint32_t p : unit.parameters) {
    DraftParameter& parameter = draft.parameters[p];
    parameter.weight = draft.role.add_view(parameter.name, parameter.spec, unit.all, offset);
    offset += parameter.spec.bytes();
  }
}

/// What is cut is each parameter, by its rows: those that its module has.
void add_rows(Draft& draft, const Layout& layout, ParameterUnit& described, DraftUnit& unit, std::uint32_t index) {
  const Axis& axis = layout.mesh.axes.at(layout.parameters.cut->axis);
  const std::string& name = draft.names->at(unit.label);
  const Dtype dtype = draft.parameters[unit.parameters[0]].spec.dtype;
  std::int64_t elements = 0;
  std::vector<std::int64_t> own;  // elements, by parameter
  for (std::size_t k = 0; k < unit.parameters.size(); ++k) {
    const DraftParameter& parameter = draft.parameters[unit.parameters[k]];
    std::vector<Placement>& on = described.parts[k].on;
    if (on.empty()) on.resize(layout.mesh.axes.size(), replicate());
    on[layout.parameters.cut->axis] = {
        .kind = Placement::Kind::shard, .dim = parameter.is_packed ? 1U : 0U, .by_rows = true};
    const std::int64_t rows = parameter.rows();
    own.push_back(padded_part(rows, axis) * (parameter.spec.elements() / rows));
    elements += own.back();
  }
  const TensorSpec all{dtype, {elements * axis.size}};
  unit.copied = draft.role.add_tensor(name + ".copied", all, TensorClass::weight);
  std::int64_t offset = 0;
  for (std::size_t k = 0; k < unit.parameters.size(); ++k) {
    DraftParameter& parameter = draft.parameters[unit.parameters[k]];
    const TensorSpec room{dtype, {own[k] * axis.size}};
    unit.rooms.push_back(draft.role.add_view(parameter.name + ".all", room, unit.copied, offset));
    parameter.weight = draft.role.add_view(parameter.name, parameter.spec, unit.copied, offset);
    offset += room.bytes();
  }
  const Dtype kept = draft.parameters[unit.parameters[0]].part.whole.dtype;
  unit.own = draft.role.add_tensor(name + ".own", {kept, {elements}}, TensorClass::weight, /*persistent=*/true);
  draft.role.tensors[unit.own].unit = index;
  unit.all = draft.role.add_tensor(name + ".all", all, TensorClass::communication);
}

}  // namespace

void add_units(Draft& draft, const Layout& layout, bool apart, const GroupOf& group_of) {
  const ParameterCut& cut = *layout.parameters.cut;
  for (const auto& [is_whole, parameters] : grouped(draft, cut, apart)) {
    const std::string name = fmt::format("unit{}", draft.units.size());
    const DraftParameter& first = draft.parameters[parameters[0]];
    DraftUnit unit{.label = draft.names->add(name),
                   .group = group_of(1U << cut.axis),
                   .sum_axes = first.sum_axes,
                   .parameters = parameters,
                   .is_gathered = !is_whole,
                   .is_half = first.is_half,
                   .is_frozen = first.is_frozen};
    check_internal(unit.is_frozen || (unit.sum_axes >> cut.axis & 1U) != 0,
                   "'{}' isn't summed along the axis that cuts it", first.name);
    const auto index = static_cast<std::uint32_t>(draft.role.units.size());
    ParameterUnit& described = draft.role.units.emplace_back(ParameterUnit{name, {}});
    std::int64_t elements = 0;
    for (const std::uint32_t p : parameters) {
      described.parts.push_back(draft.parameters[p].part);
      elements += draft.parameters[p].spec.elements();
    }
    if (cut.by_rows)
      add_rows(draft, layout, described, unit, index);
    else
      add_flat(draft, layout, elements, unit, index);
    draft.units.push_back(std::move(unit));
  }
}

}  // namespace sim
