// What a training loop does with all gradients before it updates: torch.amp.GradScaler divides them by the loss scale
// and looks for what isn't finite; torch.nn.utils.clip_grad_norm_ makes them shorter. Ranks that update different
// parameters do both together.
//
//   before                         after, of two stages with precision=fp16,max_grad_norm=1
//   8 compute w5 node=conv1 …       8 compute w5 node=conv1 …
//                                   9 copy w6 node=loss_scale : grad.conv1.weight grad.conv1.bias loss_scale
//                                     -> grad.conv1.weight grad.conv1.bias found
//                                  10 collective t0 kind=all_reduce reduction=max group=pp … : found -> found
//                                  11 copy w7 node=grad_norm : grad.conv1.weight grad.conv1.bias -> grad_norm
//                                  12 collective t1 kind=all_reduce group=pp node=grad_norm : grad_norm -> grad_norm
//                                  13 wait t1 node=grad_norm
//                                  14 copy w8 node=grad_norm : grad.conv1.weight grad.conv1.bias grad_norm
//                                     -> grad.conv1.weight grad.conv1.bias
//                                  15 wait t0 node=loss_scale
//   9 update w6 : conv1.weight …   16 update w9 : conv1.weight … found -> conv1.weight …
//                                  17 copy w10 node=loss_scale : loss_scale loss_scale.growth found
//                                     -> loss_scale loss_scale.growth
//
// A parameter that several of these ranks have counts once in the norm: each takes its share of the square.
#include <map>

#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"

namespace sim {
namespace {

class Checks {
 public:
  Checks(Draft& draft, const Plan& plan, const GroupOf& group_of) : draft_(draft), plan_(plan), group_of_(group_of) {
    const std::uint32_t updates = plan.axes_of_updates();
    axes_ = updates;
    for (const NodePlacements& node : plan.placements)
      for (const Placements& parameter : node.parameters)
        axes_ |= ~Plan::axes_of(parameter, Placement::Kind::replicate);
    axes_ &= (1U << mesh().axes.size()) - 1;
    const auto add = [&](std::uint32_t gradient, const DraftParameter& of) {
      const std::uint32_t cut = updates | of.cut_axes;
      gradients_.push_back(gradient);
      by_owners_[mesh().ranks_along(axes_ & ~cut)].push_back(gradient);
    };
    for (const DraftUnit& unit : draft.units)
      if (!unit.is_frozen) add(unit.sum, draft.parameters[unit.parameters[0]]);
    if (!draft.units.empty()) return;
    for (const DraftParameter& parameter : draft.parameters)
      if (parameter.is_home) add(parameter.gradient, parameter);
  }

  void unscale() {
    const std::uint32_t label = draft_.names->add("loss_scale"), found = add_number("found_inf", Dtype::f32);
    draft_.loss_scale->found = found;
    std::vector<std::uint32_t> reads = gradients_, writes = gradients_;
    reads.push_back(draft_.loss_scale->scale);
    writes.push_back(found);
    if (gradients_.empty())
      draft_.fill(found, label);
    else
      draft_.copy("unscale", {}, all(gradients_), reads, writes, label);
    // Those who are sent the parameters scale by the same.
    add_up(found, plan_.layout.parameters.at_root ? ~0U : axes_, Reduction::max, label);
  }

  void clip(double max_norm) {
    if (gradients_.empty() && plan_.layout.parameters.at_root) return;
    const std::uint32_t label = draft_.names->add("grad_norm");
    std::uint32_t norm = kNone;
    for (const auto& [owners, gradients] : by_owners_) {
      const Dtype dtype = draft_.role.tensors[gradients[0]].spec.dtype;
      const std::uint32_t part = add_number(norm == kNone ? "grad_norm" : fmt::format("grad_norm.{}", owners), dtype);
      draft_.copy("square_norm", {}, all(gradients), gradients, {part}, label);
      draft_.list.back().scale = 1.0 / owners;
      if (norm == kNone)
        norm = part;
      else
        draft_.accumulate(norm, part, label);
    }
    if (norm == kNone) draft_.fill(norm = add_number("grad_norm", at_least_f32(plan_.model.dtype)), label);
    add_up(norm, axes_, Reduction::sum, label);
    if (gradients_.empty()) return;
    std::vector<std::uint32_t> reads = gradients_;
    reads.push_back(norm);
    draft_.copy("clip", {{"max_norm", max_norm}}, all(gradients_), reads, gradients_, label);
  }

 private:
  [[nodiscard]] const Mesh& mesh() const { return plan_.layout.mesh; }
  std::uint32_t add_number(const std::string& name, Dtype dtype) {
    return draft_.role.add_tensor(name, {dtype, {}}, TensorClass::optimizer);
  }
  /// So many elements together.
  [[nodiscard]] TensorSpec all(const std::vector<std::uint32_t>& tensors) const {
    TensorSpec spec{draft_.role.tensors[tensors[0]].spec.dtype, {0}};
    for (const std::uint32_t tensor : tensors) spec.shape[0] += draft_.role.tensors[tensor].spec.elements();
    return spec;
  }
  void add_up(std::uint32_t number, std::uint32_t axes, Reduction reduction, std::uint32_t label) {
    axes &= (1U << mesh().axes.size()) - 1;
    if (mesh().ranks_along(axes) == 1) return;
    draft_.post_collective(CollectiveKind::all_reduce, group_of_(axes), number, label);
    draft_.list.back().reduction = reduction;
  }

  Draft& draft_;
  const Plan& plan_;
  const GroupOf& group_of_;
  std::uint32_t axes_ = 0;                                         // along which ranks have different gradients
  std::vector<std::uint32_t> gradients_;                           // tensors
  std::map<std::uint32_t, std::vector<std::uint32_t>> by_owners_;  // by how many of these ranks have them alike
};

}  // namespace

void add_gradient_checks(Draft& draft, const Plan& plan, const GroupOf& group_of) {
  const Model& model = plan.model;
  if (model.loss_scale == 0 && model.max_grad_norm == 0) return;
  Checks checks(draft, plan, group_of);
  if (model.loss_scale > 0) checks.unscale();
  if (model.max_grad_norm > 0) checks.clip(model.max_grad_norm);
}

}  // namespace sim
