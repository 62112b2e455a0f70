// ZeRO's units: parameters that lie one after the other in a flat tensor, padded so that the ranks along an axis divide
// it. Each keeps the optimizer's states of its part only, and updates that. The weights are views of the whole, which is
// there all the time (ZeRO 1 and 2) or only while it is used (ZeRO 3); that of 55 parameters on two ranks is
//
//   tensor unit0.all f32[56] weight persistent unit=unit0     or  tensor unit0.own f32[28] weight persistent of=[56] …
//   view unit0.own f32[28] unit0.all +0 along=dp                  tensor unit0.all f32[56] weight
//   view fc.weight f32[5,10] unit0.all +0                         view fc.weight f32[5,10] unit0.all +0
//   view fc.bias f32[5] unit0.all +200                            view fc.bias f32[5] unit0.all +200
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

/// Parameters of a unit are of one dtype, and summed along the same axes.
std::vector<Grouped> grouped(const Draft& draft, const ParameterCut& cut) {
  const bool by_size = cut.unit_bytes > 0;
  std::vector<std::uint32_t> order(draft.parameters.size());
  std::iota(order.begin(), order.end(), 0U);
  if (by_size) std::ranges::reverse(order);  // as their gradients come
  using Key = std::tuple<bool, std::uint32_t, std::uint32_t, Dtype>;
  std::vector<std::pair<Key, std::vector<std::uint32_t>>> groups;  // in the order of their first parameters
  for (const std::uint32_t p : order) {
    const DraftParameter& parameter = draft.parameters[p];
    const bool is_whole = !cut.weights || parameter.spec.elements() <= cut.whole_up_to;
    const Key key{is_whole, is_whole && cut.weights ? 0 : cut.unit_of.at(parameter.of), parameter.sum_axes,
                  parameter.spec.dtype};
    auto group = std::ranges::find(groups, key, &decltype(groups)::value_type::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {key, {}});
    group->second.push_back(p);
  }
  std::vector<Grouped> units;
  for (const auto& [key, parameters] : groups) {
    if (!by_size) {
      units.push_back({std::get<bool>(key), parameters});
      continue;
    }
    std::vector<std::int64_t> sizes;
    for (const std::uint32_t p : parameters) sizes.push_back(draft.parameters[p].spec.bytes());
    for (const std::vector<std::uint32_t>& indices : bucket_assignment(sizes, cut.unit_bytes, cut.unit_bytes)) {
      Grouped& unit = units.emplace_back(Grouped{std::get<bool>(key), {}});
      for (const std::uint32_t i : indices) unit.parameters.push_back(parameters[i]);
    }
  }
  return units;
}

}  // namespace

void add_units(Draft& draft, const Layout& layout, const GroupOf& group_of) {
  const ParameterCut& cut = *layout.parameters.cut;
  const std::int64_t ranks = layout.mesh.axes.at(cut.axis).size;
  std::vector<Placement> on(layout.mesh.axes.size(), replicate());
  on[cut.axis] = shard(0);
  for (const auto& [is_whole, parameters] : grouped(draft, cut)) {
    const std::string name = fmt::format("unit{}", draft.units.size());
    const DraftParameter& first = draft.parameters[parameters[0]];
    DraftUnit unit{.label = draft.names->add(name),
                   .group = group_of(1U << cut.axis),
                   .sum_axes = first.sum_axes,
                   .parameters = parameters,
                   .is_gathered = !is_whole};
    check_internal(unit.sum_axes >> cut.axis & 1U, "'{}' isn't summed along the axis that cuts it", first.name);
    const auto index = static_cast<std::uint32_t>(draft.role.units.size());
    ParameterUnit& described = draft.role.units.emplace_back(ParameterUnit{name, {}});
    std::int64_t elements = 0;
    for (const std::uint32_t p : parameters) {
      described.parts.push_back(draft.parameters[p].part);
      elements += draft.parameters[p].spec.elements();
    }
    const Dtype dtype = first.spec.dtype;
    const TensorSpec part{dtype, {(elements + ranks - 1) / ranks}}, padded{dtype, {part.elements() * ranks}};
    if (is_whole) {
      unit.all = draft.role.add_tensor(name + ".all", padded, TensorClass::weight, /*persistent=*/true);
      unit.own = draft.role.add_own_view(name + ".own", part, unit.all, cut.axis);
      draft.role.tensors[unit.all].unit = index;
    } else {
      unit.own = draft.role.add_piece(name + ".own", part, TensorClass::weight, {}, padded.shape, on);
      unit.all = draft.role.add_tensor(name + ".all", padded, TensorClass::weight);
      draft.role.tensors[unit.own].unit = index;
    }
    std::int64_t offset = 0;
    for (const std::uint32_t p : parameters) {
      DraftParameter& parameter = draft.parameters[p];
      parameter.weight = draft.role.add_view(parameter.name, parameter.spec, unit.all, offset);
      offset += parameter.spec.bytes();
    }
    draft.units.push_back(std::move(unit));
  }
}

}  // namespace sim
