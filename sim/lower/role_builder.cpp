#include "sim/lower/role_builder.hpp"

#include <algorithm>
#include <ranges>
#include <utility>

#include "sim/error.hpp"
#include "sim/strategy/recompute.hpp"

namespace sim {
namespace {

std::string versioned(const std::string& name, std::int32_t mb) {
  return mb < 0 ? name + ".all" : fmt::format("{}#{}", name, mb);
}

}  // namespace

RoleBuilder::RoleBuilder(const Plan& plan, const RolePlan& role, Tables& tables)
    : plan_(plan),
      role_(role),
      tables_(tables),
      redistribution_(plan, role, tables, draft_),
      nodes_(static_cast<std::size_t>(plan.layout.chunks)),
      works_(plan.model.nodes.size()),
      labels_(plan.model.nodes.size(), kNone) {
  draft_.works = &tables.works;
  draft_.names = &tables.names;
  draft_.role.name = role.name;
  draft_.role.ranks = role.ranks;
  for (std::size_t n = 0; n < plan.model.nodes.size(); ++n)
    for (const std::uint32_t part : plan.played_in[n])
      if (plan.rank_of(part).stage == role.stage) nodes_[chunk_of(part)].push_back(static_cast<int>(n));
  add_edges();
  add_persistent();
  const GroupOf group_of = [&](std::uint32_t axes) { return tables_.group(axes); };
  if (plan.layout.parameters.at_root)
    add_parameter_copies(draft_, plan.layout.parameters, group_of);
  else if (plan.layout.parameters.cut)
    add_units(draft_, plan.layout, /*apart=*/plan.model.max_grad_norm > 0, group_of);
  for (const auto& [source, index] : frozen_)
    for (std::int32_t mb = kAll; mb < plan.microbatches; ++mb)
      hold(source, mb, plan.batch(source), draft_.parameters[index].weight);
}

/// Between chunks of two ranks the tags of each edge are others; its gradients go the other way.
void RoleBuilder::add_edges() {
  std::size_t most = 0;  // tensors that go between two parts
  for (const auto& [parts, nodes] : plan_.edges) most = std::max(most, nodes.size());
  const auto room = static_cast<std::uint32_t>(most) * static_cast<std::uint32_t>(plan_.microbatches);
  std::uint32_t lane = 0;
  for (const auto& [parts, nodes] : plan_.edges) {
    const auto tensors = static_cast<std::uint32_t>(nodes.size());
    std::uint32_t tag = plan_.layout.chunks > 1 ? lane++ * room : 0;
    free_tag_ = tag + room;
    for (const int n : nodes) {
      if (plan_.rank_of(parts.second).stage == role_.stage)
        before_.push_back({parts.first, chunk_of(parts.second), n, tag, tensors});
      if (plan_.rank_of(parts.first).stage == role_.stage)
        after_.push_back({parts.second, chunk_of(parts.first), n, tag, tensors});
      ++tag;
    }
  }
}

Draft RoleBuilder::build() {
  std::int32_t forwards = 0;
  std::vector<std::int32_t> backwards(nodes_.size(), 0), weights = backwards;  // by chunk
  for (const Action& action : plan_.actions(role_.stage)) {
    const auto chunk = static_cast<std::size_t>(action.chunk);
    switch (action.kind) {
      case Action::Kind::forward:
        forward(chunk, action.microbatch);
        if (++forwards == plan_.microbatches && plan_.one_loss && plan_.stage.back() == role_.stage) loss_of_all();
        break;
      case Action::Kind::backward:
        backward(chunk, action.microbatch, ++backwards[chunk] == plan_.microbatches);
        break;
      case Action::Kind::weights:
        parameter_gradients(chunk, action.microbatch, ++weights[chunk] == plan_.microbatches);
        break;
    }
  }
  for (const auto& [peer, sends] : gradient_sends_) wait_all(sends);
  add_tied_gradients();
  return std::move(draft_);
}

/// Both stages of a tied parameter add the other's gradient to theirs: a + b is b + a in every bit, so that both update
/// alike (Megatron-LM, core/distributed/finalize_model_grads.py, _allreduce_embedding_grads). Its gradient is the last to
/// be there.
void RoleBuilder::add_tied_gradients() {
  std::uint32_t tag = free_tag_;
  for (const auto& [name, stages] : plan_.ties) {
    const std::uint32_t own_tag = tag++;
    if (role_.stage != stages.first && role_.stage != stages.second) continue;
    std::ranges::stable_partition(draft_.arrival, [&](std::uint32_t p) { return p != parameter_of_.at(name); });
    const std::uint32_t other = role_.stage == stages.first ? stages.second : stages.first;
    const std::uint32_t label = tables_.names.add(name);
    const DraftParameter& parameter = draft_.parameters[parameter_of_.at(name)];
    const std::uint32_t received =
        draft_.role.add_tensor(fmt::format("grad.{}.from.stage{}", name, other), parameter.spec, TensorClass::gradient);
    Instruction message{.kind = InstructionKind::send,
                        .node = label,
                        .peer = plan_.stage_axis,
                        .by = static_cast<std::int32_t>(other) - static_cast<std::int32_t>(role_.stage),
                        .tag = own_tag,
                        .reads = {parameter.gradient}};
    const std::uint32_t sent = draft_.post(message);
    message.kind = InstructionKind::recv;
    message.reads.clear();
    message.writes = {received};
    const std::uint32_t arrived = draft_.post(message);
    draft_.wait(arrived, label);
    draft_.wait(sent, label);
    draft_.accumulate(parameter.gradient, received, label);
  }
}

// ---- Names and shapes ----

TensorSpec RoleBuilder::whole_spec(int source, std::int32_t mb) const {
  if (source >= 0)
    return mb == kAll ? plan_.whole.back().inputs[0] : plan_.whole_signatures[static_cast<std::size_t>(source)].output;
  const std::int64_t rows = plan_.model.global_batch / (mb == kAll ? 1 : plan_.microbatches);
  return plan_.model.source_spec(source, rows);
}

std::string RoleBuilder::value_name(int source, std::int32_t mb) const {
  const std::string name = versioned(source < 0 ? std::string(plan_.model.source_name(source)) : node(source).name, mb);
  return plays_again_ ? name + ".again" : name;
}

std::string RoleBuilder::gradient_name(int n, std::int32_t mb) const { return "grad." + value_name(n, mb); }

std::uint32_t RoleBuilder::name_of(int source) {
  if (source < 0) return tables_.names.add(plan_.model.source_name(source));
  std::uint32_t& label = labels_[static_cast<std::size_t>(source)];
  if (label == kNone) label = tables_.names.add(node(source).name);
  return label;
}

std::uint32_t RoleBuilder::add_activation(const std::string& name, const TensorSpec& spec) {
  return draft_.role.add_tensor(name, spec, TensorClass::activation);
}

// ---- What there is before the step ----

void RoleBuilder::add_persistent() {
  for (const int n : nodes_ | std::views::join) {
    if (plays(n)) {
      for (std::size_t p = 0; p < signature(n).parameters.size(); ++p) add_parameter(n, signature(n).parameters[p], p);
      for (std::size_t b = 0; b < signature(n).buffers.size(); ++b) {
        const BufferSpec& part = signature(n).buffers[b];
        const TensorSpec& whole = plan_.whole_signatures[static_cast<std::size_t>(n)].buffers[b].spec;
        buffers_[n].push_back(add_state(node(n).name + "." + part.name, part.spec, TensorClass::buffer,
                                        {Initial::Kind::constant, part.initial_value}, whole, placed(n).buffers[b]));
        draft_.buffers.push_back(buffers_[n].back());
      }
    }
    for (const int source : node(n).inputs)
      if (source < 0 && !values_.contains({source, 0}) && !frozen_.contains(source)) {
        if (is_cut_like_weights(source))
          add_frozen(source, n);
        else
          add_given(source);
      }
  }
  if (plan_.model.loss_scale == 0) return;
  const auto add_number = [&](const std::string& name, Dtype dtype, double first) {
    return draft_.role.add_tensor(name, {dtype, {}}, TensorClass::optimizer, /*persistent=*/true,
                                  {Initial::Kind::constant, first});
  };
  draft_.loss_scale = {.scale = add_number("loss_scale", Dtype::f32, plan_.model.loss_scale),
                       .growth = add_number("loss_scale.growth", Dtype::i32, 0)};
}

/// A persistent tensor, as a piece of a whole one if it is one.
std::uint32_t RoleBuilder::add_state(const std::string& name, const TensorSpec& spec, TensorClass tensor_class,
                                     const Initial& initial, const TensorSpec& whole, const Placements& on) {
  return spec == whole ? draft_.role.add_tensor(name, spec, tensor_class, /*persistent=*/true, initial)
                       : draft_.role.add_piece(name, spec, tensor_class, initial, whole.shape, on);
}

/// Where the cycle is at_root the others have no weight yet: add_parameter_copies makes it. Nor has anyone of a unit's.
void RoleBuilder::add_parameter(int n, const ParameterSpec& part, std::size_t index) {
  const ParameterSpec whole = plan_.model.parameter(
      static_cast<std::size_t>(n), index, plan_.whole_signatures[static_cast<std::size_t>(n)].parameters[index]);
  const Placements& on = placed(n).parameters[index];
  const auto [known, is_new] =
      parameter_of_.try_emplace(whole.name, static_cast<std::uint32_t>(draft_.parameters.size()));
  parameters_[n].push_back(known->second);
  if ((grads(n) & kParameterGrads) != 0) last_summand_of_.try_emplace(known->second, n);
  if (!is_new) return;
  DraftParameter parameter{.name = whole.name,
                           .node = name_of(n),
                           .of = static_cast<std::size_t>(n),
                           .spec = part.spec,
                           .part = {whole.name,
                                    {at_least_f32(whole.spec.dtype), whole.spec.shape, whole.spec.channels_last},
                                    part.spec == whole.spec ? Placements() : on,
                                    {Initial::Kind::uniform, whole.initial_center, whole.initial_bound}},
                           .is_half = plan_.has_half_parameters(static_cast<std::size_t>(n)),
                           .is_packed = part.is_packed,
                           .sum_axes = Plan::axes_of(placed(n).grad_parameters[index], Placement::Kind::partial) &
                                       ~plan_.layout.parameters.own_axes(),
                           .cut_axes = ~Plan::axes_of(on, Placement::Kind::replicate)};
  if (plan_.layout.parameters.at_root)
    for (std::uint32_t axis = 0; axis < on.size(); ++axis) {
      if (axis == plan_.stage_axis || on[axis].kind != Placement::Kind::replicate) continue;
      parameter.copy_axes |= 1U << axis;
      parameter.is_home &= role_.at[axis] == 0;
    }
  for (std::uint32_t axis = 0; axis < on.size(); ++axis)
    parameter.is_first &= (parameter.sum_axes >> axis & 1U) == 0 || role_.at[axis] == 0;
  if (parameter.is_home && !plan_.layout.parameters.cut)
    parameter.weight =
        add_state(parameter.name, part.spec, TensorClass::weight, parameter.part.initial, whole.spec, on);
  draft_.parameters.push_back(std::move(parameter));
}

/// Whether it is a parameter that isn't trained, of a size that is cut where weights are, and read whole by all.
bool RoleBuilder::is_cut_like_weights(int source) const {
  const std::optional<ParameterCut>& cut = plan_.layout.parameters.cut;
  if (source > kModelGiven || !plan_.model.given_of(source).is_frozen || !cut || !cut->weights) return false;
  const TensorSpec& spec = plan_.model.given_of(source).spec;
  if (spec.shape.empty() || spec.elements() <= cut->whole_up_to) return false;
  for (int n = 0; n <= loss_node(); ++n)
    for (std::size_t k = 0; k < node(n).inputs.size(); ++k)
      if (node(n).inputs[k] == source && placed(n).inputs[k] != plan_.everywhere()) return false;
  return true;
}

void RoleBuilder::add_frozen(int source, int n) {
  const std::string name(plan_.model.source_name(source));
  const TensorSpec spec = whole_spec(source, kAll);
  frozen_[source] = static_cast<std::uint32_t>(draft_.parameters.size());
  draft_.parameters.push_back({.name = name,
                               .node = name_of(n),
                               .of = static_cast<std::size_t>(n),
                               .spec = spec,
                               .part = {name, spec, {}, plan_.model.source_initial(source)},
                               .is_frozen = true});
}

/// What the model is given: one persistent tensor; of samples a view of it per microbatch.
void RoleBuilder::add_given(int source) {
  const bool is_target = source == kModelTarget;
  const std::string name(plan_.model.source_name(source));
  const Initial initial = plan_.model.source_initial(source);
  const Placements& where = plan_.batch(source);
  if (!plan_.model.is_per_sample(source)) {
    const TensorClass of = plan_.model.given_of(source).is_frozen ? TensorClass::weight : TensorClass::buffer;
    const std::uint32_t constant =
        draft_.role.add_tensor(name, whole_spec(source, kAll), of, /*persistent=*/true, initial);
    for (std::int32_t mb = kAll; mb < plan_.microbatches; ++mb) hold(source, mb, where, constant);
    return;
  }
  const TensorSpec whole = whole_spec(source, kAll);
  const std::optional<TensorSpec> mine = plan_.local(whole, where, role_),
                                  part = plan_.local(whole_spec(source, 0), where, role_);
  if (!mine) {
    for (std::int32_t mb = kAll; mb < plan_.microbatches; ++mb) hold(source, mb, where, kNone);
    return;
  }
  const std::uint32_t tensor = add_state(name, *mine, TensorClass::input, initial, whole, where);
  hold(source, kAll, where, tensor);
  if (plan_.model.timing == Timing::tutorial && is_target)
    add_host_work("make_target", {{"classes", static_cast<double>(plan_.model.classes)}}, name, {}, {tensor});
  else if (plan_.model.timing == Timing::tutorial)
    add_host_work("make_input", {}, name, {}, {tensor});
  for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb)
    hold(source, mb, where,
         plan_.microbatches == 1 ? tensor
                                 : draft_.role.add_view(versioned(name, mb), *part, tensor, mb * part->bytes()));
}

/// The host's work of Timing: what makes tensors at the list's end, what only reads at the end of the step.
void RoleBuilder::add_host_work(std::string_view kind, const Attributes& attributes, const std::string& name,
                                const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                                std::int32_t mb) {
  const OpKind& op_kind = op_table().at(kind);
  std::vector<TensorSpec> inputs;
  for (const std::uint32_t tensor : reads.empty() ? writes : reads) inputs.push_back(draft_.role.tensors[tensor].spec);
  const std::uint32_t work =
      draft_.works->add({{&op_kind, complete_attributes(op_kind, attributes, name), inputs}, Pass::forward, 0});
  (writes.empty() ? draft_.last : draft_.list)
      .push_back({.work = work, .node = draft_.names->add(name), .microbatch = mb, .reads = reads, .writes = writes});
}

// ---- To and from other stages ----

/// Of a node's output or its gradient, which lies so: this rank's part.
TensorSpec RoleBuilder::received_spec(int n, std::int32_t mb, const Placements& where) const {
  const std::optional<TensorSpec> spec = plan_.local(whole_spec(n, mb), where, role_);
  check_internal(spec.has_value(), "'{}' is sent to a rank that has none of it", value_name(n, mb));
  return *spec;
}

/// The tag is unique per edge, microbatch and tensor.
RoleBuilder::Pending RoleBuilder::post(InstructionKind kind, const Edge& edge, std::int32_t mb, std::uint32_t tensor) {
  Instruction i{
      .kind = kind,
      .node = name_of(edge.node),
      .microbatch = mb,
      .peer = plan_.stage_axis,
      .by = static_cast<std::int32_t>(plan_.rank_of(edge.peer).stage) - static_cast<std::int32_t>(role_.stage),
      .tag = static_cast<std::uint32_t>(mb) * edge.tensors + edge.tag};
  (kind == InstructionKind::send ? i.reads : i.writes) = {tensor};
  return {draft_.post(i), i.node, mb};
}

void RoleBuilder::wait_all(const std::vector<Pending>& pending) {
  for (const Pending& p : pending) draft_.wait(p.ticket, p.node, p.microbatch);
}

/// Waits for the gradients that `peer` has received for certain: it executed their backwards before it sent this
/// forward's input. So they needn't be kept until the end of the step.
void RoleBuilder::wait_received(std::uint32_t peer, std::vector<Pending>& sends, std::int32_t mb) {
  std::erase_if(sends, [&](const Pending& p) {
    if (place_of(peer, Action::Kind::backward, p.microbatch) > place_of(peer, Action::Kind::forward, mb)) return false;
    draft_.wait(p.ticket, p.node, p.microbatch);
    return true;
  });
}

/// Where a part's action stands in the schedule of its rank.
std::size_t RoleBuilder::place_of(std::uint32_t part, Action::Kind kind, std::int32_t mb) {
  const PartOfRank rank = plan_.rank_of(part);
  const auto index = [&](const Action& action) {
    const auto of_chunk = static_cast<std::size_t>(plan_.microbatches) * static_cast<std::size_t>(action.chunk);
    return 3 * (of_chunk + static_cast<std::size_t>(action.microbatch)) + static_cast<std::size_t>(action.kind);
  };
  std::vector<std::size_t>& places = places_[rank.stage];
  if (places.empty()) {
    const std::vector<Action> actions = plan_.actions(rank.stage);
    places.resize(3 * nodes_.size() * static_cast<std::size_t>(plan_.microbatches));
    for (std::size_t at = 0; at < actions.size(); ++at) places[index(actions[at])] = at;
  }
  return places[index({kind, mb, rank.chunk})];
}

// ---- Values ----

void RoleBuilder::hold(int source, std::int32_t mb, const Placements& where, std::uint32_t tensor) {
  values_[{source, mb}] = {{&where, {tensor}}};
}

std::vector<RoleBuilder::Held>::iterator RoleBuilder::find(std::vector<Held>& held, const Placements& where) {
  return std::ranges::find_if(held, [&](const Held& each) { return *each.where == where; });
}

std::uint32_t RoleBuilder::made(int source, std::int32_t mb) const {
  return values_.at({source, mb}).front().value.tensor;
}

std::uint32_t RoleBuilder::bring(int source, std::int32_t mb, const Placements& where) {
  std::vector<Held>& held = values_.at({source, mb});
  if (const auto here = find(held, where); here != held.end()) return here->value.tensor;
  LocalValue value = held.front().value;
  value.exclusive = false;
  value = redistribution_.move(value, whole_spec(source, mb), *held.front().where, where, value_name(source, mb),
                               name_of(source), mb);
  held.push_back({&where, value});
  return value.tensor;
}

bool RoleBuilder::is_regathered(int n, std::int32_t mb, std::size_t input) const {
  const Placements &made = *values_.at({node(n).inputs[input], mb}).front().where, &needed = placed(n).inputs[input];
  const auto is_gathered = [&](std::size_t axis) {
    return made[axis].kind == Placement::Kind::shard && needed[axis].kind == Placement::Kind::replicate;
  };
  return plan_.layout.regather && n != loss_node() &&
         std::ranges::any_of(std::views::iota(std::size_t{0}, made.size()), is_gathered);
}

/// Once for all nodes whose backwards read it so.
std::uint32_t RoleBuilder::regather(int source, std::int32_t mb, const Placements& where) {
  std::vector<Held>& held = regathered_[{source, mb}];
  if (const auto here = find(held, where); here != held.end()) return here->value.tensor;
  const Held& made = values_.at({source, mb}).front();
  const LocalValue value =
      redistribution_.move({made.value.tensor, /*exclusive=*/false}, whole_spec(source, mb), *made.where, where,
                           value_name(source, mb) + ".regathered", name_of(source), mb);
  held.push_back({&where, value});
  return value.tensor;
}

// ---- Forward ----

void RoleBuilder::forward(std::size_t chunk, std::int32_t mb) {
  std::vector<Pending> received;
  for (const Edge& edge : before_) {
    if (edge.chunk != chunk) continue;
    const std::uint32_t tensor =
        add_activation(value_name(edge.node, mb), received_spec(edge.node, mb, placed(edge.node).resolved));
    received.push_back(post(InstructionKind::recv, edge, mb, tensor));
    hold(edge.node, mb, placed(edge.node).resolved, tensor);
  }
  wait_all(received);
  for (auto& [peer, sends] : gradient_sends_)
    if (std::ranges::any_of(before_, [&](const Edge& edge) { return edge.chunk == chunk && edge.peer == peer; }))
      wait_received(peer, sends, mb);
  for (const int n : nodes_[chunk]) {
    if (plan_.one_loss && n == loss_node()) continue;
    forward_node(n, mb);
    for (const Edge& edge : after_)
      if (edge.node == n) activation_sends_[{chunk, mb}].push_back(post(InstructionKind::send, edge, mb, made(n, mb)));
  }
}

Instruction RoleBuilder::compute(int n, std::int32_t mb, Pass pass, std::uint32_t grads) {
  OfNode& known = works_[static_cast<std::size_t>(n)];
  std::uint32_t& work = pass == Pass::forward      ? known.forward
                        : grads == kParameterGrads ? known.of_parameters
                                                   : known.backward;
  if (work == kNone) {
    OpInstance played = op(n);
    played.in_parts = nullptr;
    if (is_synced(played.attributes)) played.attributes.find("sync")->second = 0;  // the rank has all samples
    work = tables_.works.add({std::move(played), pass, grads});
  }
  return {.work = work, .node = name_of(n), .microbatch = mb};
}

void RoleBuilder::forward_node(int n, std::int32_t mb) {
  const NodePlacements& placements = placed(n);
  std::vector<std::uint32_t> inputs;
  for (std::size_t k = 0; k < node(n).inputs.size(); ++k)
    inputs.push_back(bring(node(n).inputs[k], mb, placements.inputs[k]));
  hold(n, mb, placements.output, plays(n) ? add_output(n, mb, inputs) : kNone);
  if (placements.resolved == placements.output) return;
  const LocalValue sum = redistribution_.move({made(n, mb)}, whole_spec(n, mb), placements.output, placements.resolved,
                                              value_name(n, mb), name_of(n), mb);
  hold(n, mb, placements.resolved, sum.tensor);
}

/// Plays the node; its output.
std::uint32_t RoleBuilder::add_output(int n, std::int32_t mb, const std::vector<std::uint32_t>& inputs) {
  const Signature& s = signature(n);
  const std::string name = value_name(n, mb);
  inputs_[{n, mb}] = inputs;
  if (plan_.together[static_cast<std::size_t>(n)] != 0)
    return n == loss_node() ? add_loss_of_classes(mb, inputs) : add_synced_norm(n, mb, inputs[0]);
  if (s.storage == OutputStorage::view)  // no instruction: only another shape of the same storage
    return draft_.role.add_view(name, s.output, inputs[0]);
  Instruction i = compute(n, mb, Pass::forward, 0);
  i.reads = inputs;
  for (const std::uint32_t p : parameters_[n]) i.reads.push_back(draft_.parameters[p].weight);
  i.reads.insert(i.reads.end(), buffers_[n].begin(), buffers_[n].end());
  add_first(n, i);
  i.writes = {s.storage == OutputStorage::in_place ? draft_.role.add_view(name, s.output, i.reads[0])
                                                   : add_activation(name, s.output)};
  for (const SavedSpec& saved : s.saved) {
    i.writes.push_back(draft_.role.add_tensor(fmt::format("{}.{}", name, saved.name), saved.spec,
                                              saved.is_copy ? TensorClass::copy : TensorClass::activation));
    saved_[{n, mb}].push_back(i.writes.back());
  }
  i.writes.insert(i.writes.end(), buffers_[n].begin(), buffers_[n].end());
  const std::uint32_t output = i.writes[0];
  if (plays_again_) draft_.again.insert(output);
  draft_.list.push_back(std::move(i));
  if (n == loss_node() && plan_.model.timing == Timing::epoch)
    add_host_work("read_result", {}, node(n).name, {output, inputs[0], inputs[1]}, {}, mb);
  return output;
}

/// The loss of all microbatches' outputs, and its gradient, whose parts the microbatches' backwards start from.
void RoleBuilder::loss_of_all() {
  const int loss = loss_node(), output = node(loss).inputs[0];
  const std::string name = value_name(output, kAll);
  const std::uint32_t index = name_of(loss), all = add_activation(name, op(loss).inputs[0]);
  const Placements &where = placed(loss).inputs[0], &where_gradient = placed(loss).grad_inputs[0];
  TensorSpec part;
  hold(output, kAll, where, all);
  for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb) {
    const std::uint32_t brought = bring(output, mb, where);
    part = draft_.role.tensors[brought].spec;
    const std::uint32_t slice =
        draft_.role.add_view(fmt::format("{}.{}", name, mb), part.flat(), all, mb * part.bytes());
    draft_.scaled_copy(brought, slice, 1, index);
  }
  forward_node(loss, kAll);
  backward_node(loss, kAll, /*last=*/true);
  const std::uint32_t gradient = find(gradients_.at({output, kAll}), where_gradient)->value.tensor;
  for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb)
    contribute(output, mb, where_gradient,
               {draft_.role.add_view(gradient_name(output, mb), part, gradient, mb * part.bytes())});
}

// ---- What isn't kept ----

const RoleBuilder::Segment& RoleBuilder::segment_of(std::size_t chunk, std::uint32_t number) {
  const auto [entry, is_new] = segments_.try_emplace({chunk, number});
  Segment& segment = entry->second;
  if (!is_new) return segment;
  for (const int n : nodes_[chunk])
    if (plan_.layout.segment_of[static_cast<std::size_t>(n)] == number) segment.nodes.push_back(n);
  segment.again = again(segment.nodes);
  return segment;
}

/// The nodes of a segment whose output, or what their forward saves, its backward reads, and that nobody else has kept.
/// What works in place on something kept has changed that for good.
std::set<int> RoleBuilder::again(const std::vector<int>& segment) const {
  const bool is_selective = plan_.layout.recompute == Recompute::selective;
  const std::set<int> inside(segment.begin(), segment.end());
  std::set<int> kept, needed;
  for (int reader = 0; reader <= loss_node(); ++reader)
    if (!inside.contains(reader)) kept.insert(node(reader).inputs.begin(), node(reader).inputs.end());
  for (const int n : segment) {
    if (signature(n).storage == OutputStorage::fresh) continue;
    if (const int source = node(n).inputs[0]; !inside.contains(source) || kept.contains(source)) kept.insert(n);
  }
  const auto need = [&](int n) {
    if (inside.contains(n) && !kept.contains(n)) needed.insert(n);
  };
  for (const int n : segment) {
    if (signature(n).backward_is_alias) continue;
    for (const Operand& operand : signature(n).backward_reads) {
      if ((operand.grads & grads(n)) == 0) continue;
      if (operand.from == Operand::From::input) need(node(n).inputs[static_cast<std::size_t>(operand.index)]);
      if (operand.from == Operand::From::output) need(n);
      if (operand.from == Operand::From::saved && !(is_selective && op(n).has_parameters())) needed.insert(n);
    }
  }
  for (auto n = segment.rbegin(); n != segment.rend(); ++n)
    if (needed.contains(*n)) std::ranges::for_each(node(*n).inputs, need);
  return needed;
}

/// Plays them again. From here on all nodes of the segment read what they have made now.
void RoleBuilder::recompute(const Segment& segment, std::int32_t mb) {
  plays_again_ = true;
  for (const int n : segment.nodes) {
    if (segment.again.contains(n)) {
      saved_.erase({n, mb});
      forward_node(n, mb);
    } else if (plays(n)) {
      for (std::size_t k = 0; k < node(n).inputs.size(); ++k)
        if (segment.again.contains(node(n).inputs[k]) && !is_regathered(n, mb, k))
          inputs_.at({n, mb})[k] = bring(node(n).inputs[k], mb, placed(n).inputs[k]);
    }
  }
  plays_again_ = false;
}

// ---- Backward ----

void RoleBuilder::backward(std::size_t chunk, std::int32_t mb, bool last) {
  // The next stage has long received what was sent: it has executed this microbatch's forward before its gradient can
  // come.
  wait_all(activation_sends_[{chunk, mb}]);
  std::vector<Pending> received;
  std::vector<std::pair<int, LocalValue>> arrived;
  for (const Edge& edge : after_) {
    if (edge.chunk != chunk || !plan_.gives_gradient(plan_.rank_of(edge.peer).stage, edge.node)) continue;
    const std::uint32_t tensor = add_activation(fmt::format("{}.from.stage{}", gradient_name(edge.node, mb), edge.peer),
                                                received_spec(edge.node, mb, placed(edge.node).grad_output));
    received.push_back(post(InstructionKind::recv, edge, mb, tensor));
    arrived.push_back({edge.node, {tensor}});
  }
  wait_all(received);
  for (const auto& [source, gradient] : arrived) contribute(source, mb, placed(source).grad_output, gradient);
  std::uint32_t segment = kNoSegment;
  for (auto n = nodes_[chunk].rbegin(); n != nodes_[chunk].rend(); ++n) {
    if (plan_.one_loss && *n == loss_node()) continue;
    const std::uint32_t next = plan_.layout.segment_of[static_cast<std::size_t>(*n)];
    if (next != segment && next != kNoSegment) recompute(segment_of(chunk, next), mb);
    segment = next;
    backward_node(*n, mb, last);
  }
  for (const Edge& edge : before_)
    if (edge.chunk == chunk && plan_.gives_gradient(role_.stage, edge.node))
      gradient_sends_[edge.peer].push_back(post(InstructionKind::send, edge, mb, gradient_of(edge.node, mb).tensor));
}

/// A rank's loss is the mean over its samples, or their sum.
double RoleBuilder::loss_scale(std::int32_t mb) const {
  if (node(loss_node()).kind->is_sum) return 1;
  const double of_microbatch = mb == kAll ? 1.0 : 1.0 / static_cast<double>(plan_.microbatches);
  if (plan_.layout.parameters.is_mean) return of_microbatch;
  return of_microbatch * static_cast<double>(op(loss_node()).inputs[0].shape[0]) /
         static_cast<double>(plan_.whole.back().inputs[0].shape[0]);
}

void RoleBuilder::backward_of_alias(int n, std::int32_t mb) {
  const std::vector<int>& inputs = node(n).inputs;
  const LocalValue output = gradient_of(n, mb);
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    if (grads(inputs[input]) == 0) continue;
    LocalValue part;
    if (plays(n))
      part = {draft_.role.add_view(fmt::format("{}.via.{}.{}", gradient_name(inputs[input], mb), node(n).name, input),
                                   op(n).inputs[input], output.tensor),
              output.exclusive && inputs.size() == 1};  // one reader keeps it exclusive (flatten); two share it (add)
    contribute(inputs[input], mb, placed(n).grad_inputs[input], part);
  }
}

/// Where the gradient of its input is a sum that nobody else contributes to, it is sent first, and travels beside what
/// computes the parameters' gradients (Megatron's LinearWithGradAccumulationAndAsyncCommunication).
bool RoleBuilder::is_in_two(int n, std::uint32_t made) const {
  if (!plan_.layout.sums_early || made != (kParameterGrads | 1U) || !node(n).kind->matrix) return false;
  const int source = node(n).inputs[0];
  std::ptrdiff_t readers = 0;
  for (const Node& each : plan_.model.nodes) readers += std::ranges::count(each.inputs, source);
  return readers == 1 && placed(n).grad_inputs[0] != placed(source).grad_output;
}

void RoleBuilder::backward_node(int n, std::int32_t mb, bool last) {
  const std::uint32_t made = grads(n);
  if (made == 0) return;
  const Signature& s = signature(n);
  const std::vector<int>& inputs = node(n).inputs;
  if (s.backward_is_alias) return backward_of_alias(n, mb);
  const bool is_loss = node(n).kind->role == OpRole::loss;
  const LocalValue output = is_loss ? LocalValue{} : gradient_of(n, mb);
  std::vector<std::pair<std::size_t, LocalValue>> contributions;  // by input
  if (!plays(n)) {
    for (std::size_t input = 0; input < inputs.size(); ++input)
      if (made & (1U << input)) contribute(inputs[input], mb, placed(n).grad_inputs[input], {});
    return;
  }
  const bool is_together = plan_.together[static_cast<std::size_t>(n)] != 0;
  if (is_together && !is_loss) return backward_of_synced_norm(n, mb, last);
  const bool is_later = plan_.schedule.splits && node(n).kind->matrix && (made & kParameterGrads) != 0;
  const bool in_two = is_later || is_in_two(n, made);
  const bool has_some_classes = is_loss && is_together;
  const auto begin = [&](std::uint32_t of) {
    if (has_some_classes) {
      const std::vector<std::uint32_t>& saved = saved_.at({n, mb});  // exponentials, sums
      return of_classes("class_grad", mb, {saved[0], saved[1], inputs_.at({n, mb})[1]});
    }
    Instruction i = compute(n, mb, Pass::backward, of);
    if (!is_loss) i.reads.push_back(output.tensor);
    for (const Operand& operand : s.backward_reads)
      if ((operand.grads & of) != 0) i.reads.push_back(operand_tensor(n, mb, operand));
    add_first(n, i);
    return i;
  };
  if (is_later) later_[{chunk_of(plan_.part[static_cast<std::size_t>(n)]), mb}].push_back({n, begin(kParameterGrads)});
  if (is_later && made == kParameterGrads) return;
  Instruction i = begin(in_two ? made & ~kParameterGrads : made);
  if (is_loss) i.scale = loss_scale(mb);
  if (is_loss && draft_.loss_scale) i.reads.push_back(draft_.loss_scale->scale);
  const bool in_place = has_some_classes && tables_.works.at(i.work).op.signature().storage == OutputStorage::in_place;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    if (!(made & (1U << input))) continue;
    std::string name = gradient_name(inputs[input], mb);
    if (gradients_.contains({inputs[input], mb}) || !contributions.empty())
      name += fmt::format(".via.{}.{}", node(n).name, input);
    i.writes.push_back(in_place ? draft_.role.add_view(name, op(n).inputs[input], i.reads[0])
                                : add_activation(name, op(n).inputs[input]));
    contributions.push_back({input, {i.writes.back()}});
  }
  const auto contribute_all = [&] {
    for (const auto& [input, gradient] : contributions)
      contribute(inputs[input], mb, placed(n).grad_inputs[input], gradient);
  };
  if (in_two) {
    draft_.list.push_back(std::move(i));
    contribute_all();
    if (is_later) return;
    i = begin(kParameterGrads);
    static_cast<void>(gradient_of(inputs[0], mb));
  }
  add_parameter_gradients(n, mb, std::move(i), last);
  if (!in_two) contribute_all();
}

/// What backward_node has left for later.
void RoleBuilder::parameter_gradients(std::size_t chunk, std::int32_t mb, bool last) {
  for (auto& [n, instruction] : later_[{chunk, mb}]) add_parameter_gradients(n, mb, std::move(instruction), last);
}

/// The instruction also writes those, which are added to what earlier microbatches have left.
void RoleBuilder::add_parameter_gradients(int n, std::int32_t mb, Instruction instruction, bool last) {
  const ParameterCycle& cycle = plan_.layout.parameters;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> additions;  // parameter gradient, this microbatch's part of it
  for (const std::uint32_t p : parameters_[n]) {
    DraftParameter& parameter = draft_.parameters[p];
    const bool first = parameter.gradient == kNone;
    const bool is_first_user = with_gradients_.insert({p, mb}).second;
    const std::string name = "grad." + parameter.name;
    instruction.writes.push_back(draft_.role.add_tensor(first           ? name
                                                        : is_first_user ? versioned(name, mb)
                                                                        : versioned(name + ".via." + node(n).name, mb),
                                                        parameter.spec, TensorClass::gradient));
    const bool stays_apart = cycle.cut && cycle.every_microbatch;
    if (first)
      parameter.gradient = instruction.writes.back();
    else if (stays_apart && is_first_user)
      parameter.later_gradients.push_back(instruction.writes.back());
    else
      additions.push_back(
          {stays_apart && !parameter.later_gradients.empty() ? parameter.later_gradients.back() : parameter.gradient,
           instruction.writes.back()});
  }
  const std::uint32_t label = instruction.node;
  draft_.list.push_back(std::move(instruction));
  for (const auto& [total, part] : additions) draft_.accumulate(total, part, label, mb);
  std::vector<std::uint32_t>& arrival = draft_.arrival;
  if (!last) return;
  std::vector<std::uint32_t> complete = parameters_[n];
  // Of nodes that share one the first that is played here and has its gradient gives the last summand.
  std::erase_if(complete, [&](std::uint32_t p) { return last_summand_of_.at(p) != n; });
  if (node(n).kind->last_gradient_first) std::ranges::reverse(complete);
  arrival.insert(arrival.end(), complete.begin(), complete.end());
}

std::uint32_t RoleBuilder::operand_tensor(int n, std::int32_t mb, const Operand& operand) {
  const auto index = static_cast<std::size_t>(operand.index);
  switch (operand.from) {
    case Operand::From::input:
      if (is_regathered(n, mb, index)) return regather(node(n).inputs[index], mb, placed(n).inputs[index]);
      return inputs_.at({n, mb})[index];
    case Operand::From::output:
      return made(n, mb);
    case Operand::From::parameter:
      return draft_.parameters[parameters_.at(n)[index]].weight;
    case Operand::From::saved:
      return saved_.at({n, mb})[index];
  }
  throw InternalError("operand of node '{}'", node(n).name);
}

/// Another reader's gradient of the output of node n: those that lie alike are added at once.
void RoleBuilder::contribute(int n, std::int32_t mb, const Placements& where, LocalValue part) {
  std::vector<Held>& held = gradients_[{n, mb}];
  if (const auto here = find(held, where); here != held.end())
    add_up(n, mb, here->value, part);
  else
    held.push_back({&where, part});
}

/// The gradient of all readers, where the node's backward needs it.
LocalValue RoleBuilder::gradient_of(int n, std::int32_t mb) {
  std::vector<Held>& held = gradients_.at({n, mb});
  const Placements& where = placed(n).grad_output;
  std::optional<LocalValue> total;
  for (Held& part : held) {
    if (*part.where != where)
      part.value =
          redistribution_.move(part.value, whole_spec(n, mb), *part.where, where, gradient_name(n, mb), name_of(n), mb);
    if (total)
      add_up(n, mb, *total, part.value);
    else
      total = part.value;
  }
  held = {{&where, *total}};
  return *total;
}

/// The first is kept, further ones are added in place where nobody else uses the storage.
void RoleBuilder::add_up(int n, std::int32_t mb, LocalValue& total, LocalValue part) {
  if (total.tensor == kNone) return;
  const std::uint32_t name = name_of(n);
  if (!total.exclusive && !part.exclusive) {
    const TensorSpec spec = draft_.role.tensors[total.tensor].spec;
    const std::uint32_t fresh = add_activation(gradient_name(n, mb) + ".sum", spec);
    draft_.scaled_copy(total.tensor, fresh, 1, name);
    total = {fresh};
  } else if (!total.exclusive) {
    std::swap(total, part);
  }
  draft_.accumulate(total.tensor, part.tensor, name, mb);
}

}  // namespace sim
