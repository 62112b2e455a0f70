// A batch norm with sync=1 of whose samples each rank has a part: what RoleBuilder posts in its place. As
// torch.nn.SyncBatchNorm does (torch/nn/modules/_functions.py), the ranks gather everyone's statistics in the forward, and
// sum two numbers per channel in the backward. Along all axes at once: those of its process group.
#include "sim/lower/role_builder.hpp"

namespace sim {

/// An op that is played in the place of a node.
Instruction RoleBuilder::in_place_of(int n, std::int32_t mb, std::string_view kind, const Attributes& attributes,
                                     const std::vector<std::uint32_t>& reads) {
  OpInstance instance{&op_table().at(kind), attributes, {}};
  for (int i = 0; i < instance.kind->inputs; ++i)
    instance.inputs.push_back(draft_.role.tensors[reads[static_cast<std::size_t>(i)]].spec);
  return {.work = tables_.works.add({std::move(instance), Pass::forward, 0}),
          .node = name_of(n),
          .microbatch = mb,
          .reads = reads};
}

/// Of the ranks that find a node's result out together.
void RoleBuilder::post_together(int n, std::int32_t mb, CollectiveKind kind, std::uint32_t from, std::uint32_t to,
                                Reduction reduction) {
  draft_.post({.kind = InstructionKind::collective,
               .collective = kind,
               .reduction = reduction,
               .node = name_of(n),
               .microbatch = mb,
               .peer = tables_.group(plan_.together[static_cast<std::size_t>(n)]),
               .reads = {from},
               .writes = {to}});
}

std::uint32_t RoleBuilder::add_synced_norm(int n, std::int32_t mb, std::uint32_t x) {
  const std::string name = value_name(n, mb);
  Instruction stats = in_place_of(n, mb, "norm_stats", {}, {x});
  TensorSpec spec = tables_.works.at(stats.work).op.signature().output;
  const std::uint32_t own = add_activation(name + ".stats", spec);
  stats.writes = {own};
  draft_.list.push_back(std::move(stats));
  const Group& group = tables_.groups[tables_.group(plan_.together[static_cast<std::size_t>(n)])];
  spec.shape.insert(spec.shape.begin(), static_cast<std::int64_t>(group.members[0].size()));
  const std::uint32_t all = add_activation(name + ".stats.all", spec);
  post_together(n, mb, CollectiveKind::all_gather, own, all);

  const Attributes attributes{{"eps", op(n).number("eps")}, {"momentum", op(n).number("momentum")}};
  const std::vector<std::uint32_t>&parameters = parameters_.at(n), &buffers = buffers_.at(n);
  Instruction apply =
      in_place_of(n, mb, "norm_apply", attributes,
                  {x, all, draft_.parameters[parameters[0]].weight, draft_.parameters[parameters[1]].weight});
  apply.reads.insert(apply.reads.end(), buffers.begin(), buffers.end());
  const std::uint32_t output = add_activation(name, signature(n).output);
  apply.writes = {output};
  for (const SavedSpec& saved : tables_.works.at(apply.work).op.signature().saved) {
    apply.writes.push_back(add_activation(fmt::format("{}.{}", name, saved.name), saved.spec));
    saved_[{n, mb}].push_back(apply.writes.back());
  }
  apply.writes.insert(apply.writes.end(), buffers.begin(), buffers.end());
  draft_.list.push_back(std::move(apply));
  return output;
}

void RoleBuilder::backward_of_synced_norm(int n, std::int32_t mb, bool last) {
  const std::uint32_t made = grads(n), grad_output = gradient_of(n, mb).tensor, x = inputs_.at({n, mb})[0];
  const int source = node(n).inputs[0];
  const std::vector<std::uint32_t>& saved = saved_.at({n, mb});  // mean, 1 / sqrt(var + eps), number of values
  const bool of_parameters = (made & kParameterGrads) != 0;
  Instruction i = in_place_of(n, mb, "norm_sums", {{"parameters", of_parameters ? 1.0 : 0.0}},
                              {grad_output, x, saved[0], saved[1]});
  const std::uint32_t sums =
      add_activation(gradient_name(n, mb) + ".sums", tables_.works.at(i.work).op.signature().output);
  i.writes = {sums};
  if (of_parameters)
    add_parameter_gradients(n, mb, std::move(i), last);
  else
    draft_.list.push_back(std::move(i));
  if ((made & 1U) == 0) return;
  post_together(n, mb, CollectiveKind::all_reduce, sums, sums);
  const std::uint32_t weight = draft_.parameters[parameters_.at(n)[0]].weight;
  i = in_place_of(n, mb, "norm_grad", {}, {grad_output, x, weight, saved[0], saved[1], saved[2], sums});
  std::string name = gradient_name(source, mb);
  if (gradients_.contains({source, mb})) name += fmt::format(".via.{}.0", node(n).name);
  i.writes = {add_activation(name, op(n).inputs[0])};
  const LocalValue gradient{i.writes[0]};
  draft_.list.push_back(std::move(i));
  contribute(source, mb, placed(n).grad_inputs[0], gradient);
}

}  // namespace sim
