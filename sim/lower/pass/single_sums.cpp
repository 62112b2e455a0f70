// Heat's sums of gradients: each parameter's by itself, as soon as it is complete (heat/nn/data_parallel.py, whose hooks
// get one gradient each: scaled by 1/ranks into a tensor of its own, all-reduced there).
//
//   before                             after, blocking: the backward stands still meanwhile
//   7 compute w4 node=fc backward …    7 compute w4 node=fc backward …
//                                      8 copy w7 node=fc.weight scale=0.5 : grad.fc.weight -> sum.fc.weight
//                                      9 collective t0 kind=all_reduce … : sum.fc.weight -> sum.fc.weight
//                                     10 wait t0 node=fc.weight
//                                     … update … sum.fc.weight …
//
// Not blocking, Heat's default: the sum is on its way until the next step's forward comes to the layer that reads the
// parameter, and only then that layer is updated. So steps reach into each other: the first one has no updates, and the
// last one's are made after it.
//
//   prologue   7 compute w4 node=fc backward …   8 copy …   9 collective t0 …
//   body      10 wait t0 node=fc.weight   11 update w9 node=fc : fc.weight sum.fc.weight … ; free sum.fc.weight
//             12 compute w0 node=fc : … fc.weight …   … 20 compute w4 node=fc backward …   21 copy …   22 collective t0 …
//   epilogue  23 wait t0 node=fc.weight   24 update w9 node=fc …
//
// The reference's autograd adds the sum to a gradient of zeros before the update (param.grad + …): two passes more over
// each gradient, which aren't here.
#include <algorithm>
#include <map>
#include <utility>

#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"

namespace sim {

void add_single_sums(Draft& draft, const Layout& layout, bool mean, const GroupOf& group_of) {
  const std::uint32_t axes_of_rows = Plan::axes_of(layout.rows, Placement::Kind::shard);
  const std::vector<std::vector<std::size_t>> written = draft.writes();
  std::map<std::size_t, std::vector<std::uint32_t>> complete;  // after which instruction: indices of `parameters`
  for (const std::uint32_t p : draft.arrival)
    if (draft.parameters[p].sum_axes != 0) complete[written[draft.parameters[p].gradient].back()].push_back(p);
  std::vector<Instruction> backward = std::exchange(draft.list, {});
  for (std::size_t at = 0; at < backward.size(); ++at) {
    draft.list.push_back(std::move(backward[at]));
    const auto now = complete.find(at);
    if (now == complete.end()) continue;
    for (const std::uint32_t p : now->second) {
      DraftParameter& parameter = draft.parameters[p];
      const std::uint32_t label = draft.names->add(parameter.name);
      const double ranks = mean ? layout.mesh.ranks_along(parameter.sum_axes & axes_of_rows) : 1;
      const std::uint32_t sum =
          draft.role.add_tensor("sum." + parameter.name, parameter.spec, TensorClass::communication);
      draft.scaled_copy(parameter.gradient, sum, 1.0 / ranks, label);
      parameter.gradient = sum;
      parameter.sum_ticket =
          draft.post_collective(CollectiveKind::all_reduce, group_of(parameter.sum_axes), sum, label);
      if (!layout.parameters.delayed) draft.wait(parameter.sum_ticket, label);
    }
  }
}

void add_delayed_updates(Draft& draft, const Model& model) {
  std::vector<std::uint32_t> delayed;  // tickets
  for (const DraftParameter& parameter : draft.parameters)
    if (parameter.sum_ticket != kNone) delayed.push_back(parameter.sum_ticket);
  add_waits(draft, delayed);
  std::vector<Instruction> step = std::exchange(draft.list, {});
  step.insert(step.end(), draft.last.begin(), draft.last.end());
  std::vector<bool> sums(draft.role.storages.size(), false);  // by storage: waited for in the next step
  std::map<std::size_t, std::vector<DraftParameter*>> by_node;
  for (DraftParameter& parameter : draft.parameters) {
    if (parameter.sum_ticket != kNone) sums[draft.role.tensors[parameter.gradient].storage] = true;
    by_node[parameter.of].push_back(&parameter);
  }
  add_frees(draft, step, sums);

  struct Layer {
    std::vector<std::uint32_t> weights;
    std::vector<Instruction> updates;  // and the waits before them
    bool is_updated = false;
  };
  std::vector<Layer> layers;  // in the model's order
  for (const auto& [node, parameters] : by_node) {
    Layer& layer = layers.emplace_back();
    std::vector<Updated> updated;
    for (const DraftParameter* parameter : parameters) {
      const std::uint32_t label = draft.names->add(parameter->name);
      if (parameter->sum_ticket != kNone) draft.wait(parameter->sum_ticket, label);
      updated.push_back({label, parameter->weight, parameter->gradient});
      layer.weights.push_back(parameter->weight);
    }
    add_update(draft, model.optimizer, draft.names->add(model.nodes[node].name), updated);
    layer.updates = std::exchange(draft.list, {});
    add_frees(draft, layer.updates, {});
  }

  draft.list = step;  // the prologue
  draft.body_begin = draft.list.size();
  for (const Instruction& instruction : step) {
    for (Layer& layer : layers) {
      const bool reads = std::ranges::any_of(instruction.reads, [&](std::uint32_t tensor) {
        return std::ranges::find(layer.weights, tensor) != layer.weights.end();
      });
      if (!reads || std::exchange(layer.is_updated, true)) continue;
      draft.list.insert(draft.list.end(), layer.updates.begin(), layer.updates.end());
    }
    draft.list.push_back(instruction);
  }
  draft.body_end = draft.list.size();
  for (const Layer& layer : layers) draft.list.insert(draft.list.end(), layer.updates.begin(), layer.updates.end());
}

}  // namespace sim
