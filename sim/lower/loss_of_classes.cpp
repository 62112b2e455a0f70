// A loss of whose classes each rank has some: what RoleBuilder posts in its place, and where a rank's part of a
// vocabulary begins.
#include <algorithm>
#include <bit>
#include <utility>

#include "sim/error.hpp"
#include "sim/lower/role_builder.hpp"

namespace sim {

/// An op that is played in the place of a loss of whose classes each rank has some.
Instruction RoleBuilder::of_classes(std::string_view kind, std::int32_t mb, const std::vector<std::uint32_t>& reads) {
  const int n = loss_node();
  OpInstance instance{&op_table().at(kind), {}, op(n).inputs};
  instance.inputs.resize(static_cast<std::size_t>(instance.kind->inputs));
  if (kind == "class_sums") instance.attributes = {{"inplace", logits_may_change() ? 1.0 : 0.0}};
  if (instance.kind->gives_loss) instance.inputs = {draft_.role.tensors[reads[0]].spec};
  const bool takes_target = instance.kind->inputs == 2;
  Instruction i{.work = tables_.works.add({std::move(instance), Pass::forward, 0}),
                .node = name_of(n),
                .microbatch = mb,
                .reads = reads};
  if (takes_target) i.reads.push_back(first_of(plan_.whole.back().inputs[0].shape.back(), plan_.together.back()));
  return i;
}

/// Which of so many units is the rank's first: a constant that counts, of which each coordinate has its own number, so
/// that ranks with parts of one size have one role.
std::uint32_t RoleBuilder::first_of(std::int64_t units, std::uint32_t axes) {
  const auto [known, is_new] = firsts_.try_emplace({units, axes}, kNone);
  if (!is_new) return known->second;
  const std::size_t axis = static_cast<std::size_t>(std::countr_zero(axes));
  check_internal(std::has_single_bit(axes), "units are counted along one axis");
  const Axis& along = plan_.layout.mesh.axes[axis];
  const auto each = static_cast<double>(part(units, 1, along, 0).size);
  Placements on = plan_.everywhere();
  on[axis] = shard(0);
  known->second = draft_.role.add_piece(
      fmt::format("{}.first.of{}", along.name, units), {Dtype::i64, {1}}, TensorClass::buffer,
      {.kind = Initial::Kind::runs, .runs = std::make_shared<const Runs>(Runs{{0, each, along.size}})}, {along.size},
      on);
  return known->second;
}

/// What its body calls F.
void RoleBuilder::add_first(int n, Instruction& instruction) {
  const Body* body = op(n).body;
  if (body == nullptr || !body->reads_first) return;
  std::uint32_t axes = 0;
  for (std::uint32_t axis = 0; axis < plan_.layout.mesh.axes.size(); ++axis)
    if (plan_.layout.play[static_cast<std::size_t>(n)][axis].rule == "units") axes |= 1U << axis;
  instruction.reads.push_back(first_of(body->units, axes));
}

/// What the ranks find out together, of every target: the largest logit, the exponentials' sum, the target's logit
/// (megatron/core/tensor_parallel/cross_entropy.py, with its last two sums in one).
std::uint32_t RoleBuilder::add_loss_of_classes(std::int32_t mb, const std::vector<std::uint32_t>& inputs) {
  const int n = loss_node();
  const std::string name = value_name(n, mb);
  const auto play = [&](std::string_view kind, const std::vector<std::uint32_t>& reads,
                        const std::vector<std::string>& outputs) {
    Instruction i = of_classes(kind, mb, reads);
    const Signature s = tables_.works.at(i.work).op.signature();
    i.writes = {s.storage == OutputStorage::in_place ? draft_.role.add_view(outputs[0], s.output, i.reads[0])
                                                     : add_activation(outputs[0], s.output)};
    for (std::size_t k = 0; k < s.saved.size(); ++k)
      i.writes.push_back(add_activation(outputs[k + 1], s.saved[k].spec));
    const std::vector<std::uint32_t> written = i.writes;
    draft_.list.push_back(std::move(i));
    return written;
  };
  const std::uint32_t largest = play("class_max", {inputs[0]}, {name + ".max"})[0];
  post_together(n, mb, CollectiveKind::all_reduce, largest, largest, Reduction::max);
  const std::vector<std::uint32_t> made =
      play("class_sums", {inputs[0], largest, inputs[1]}, {name + ".exponentials", name + ".sums"});
  post_together(n, mb, CollectiveKind::all_reduce, made[1], made[1]);
  saved_[{n, mb}] = made;
  return play("class_loss", {made[1]}, {name})[0];
}

/// Nobody but the loss reads them, the backward of what makes them neither; and they have room for the exponentials.
bool RoleBuilder::logits_may_change() const {
  const int source = node(loss_node()).inputs[0];
  std::ptrdiff_t readers = 0;
  for (const Node& each : plan_.model.nodes) readers += std::ranges::count(each.inputs, source);
  const bool is_kept = std::ranges::any_of(
      signature(source).backward_reads, [](const Operand& operand) { return operand.from == Operand::From::output; });
  const TensorSpec& logits = signature(source).output;
  return readers == 1 && !is_kept && signature(source).storage == OutputStorage::fresh &&
         at_least_f32(logits.dtype) == logits.dtype;
}

}  // namespace sim
