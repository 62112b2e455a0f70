#include "sim/lower/lower.hpp"

#include <algorithm>
#include <map>

#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

/// What lowering needs to know of the model, once for all stages.
struct Plan {
  const Model& model;
  const Strategy& strategy;
  std::uint32_t stages = 1;
  std::int32_t microbatches = 1;
  std::int64_t replica_rows = 1, rows = 1;  // samples per replica, per microbatch
  std::vector<std::uint32_t> stage;         // of every node
  std::vector<OpInstance> ops;              // with the shapes of one microbatch
  std::vector<Signature> signatures;
  std::vector<bool> needs_grad;
  bool one_loss = false;  // on all microbatches together: its op has the shapes of a replica's batch
  /// Nodes of stage `from` whose output stage `to` reads, in the model's order.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<int>> edges;

  Plan(const Model& m, const Strategy& s)
      : model(m),
        strategy(s),
        stages(s.pp),
        microbatches(static_cast<std::int32_t>(s.microbatches)),
        stage(stages_of(m, s)) {
    replica_rows = m.global_batch / s.dp;
    rows = replica_rows / s.microbatches;
    ops = m.instances(rows);
    one_loss = schedule_table().at(s.schedule).one_loss && s.microbatches > 1;
    if (one_loss) ops.back() = m.instances(replica_rows).back();
    for (const OpInstance& op : ops) signatures.push_back(op.signature());
    needs_grad = m.outputs_need_grad();
    for (std::size_t n = 0; n < m.nodes.size(); ++n)
      for (int source : m.nodes[n].inputs) {
        if (source < 0 || stage[static_cast<std::size_t>(source)] == stage[n]) continue;
        std::vector<int>& nodes = edges[{stage[static_cast<std::size_t>(source)], stage[n]}];
        if (std::find(nodes.begin(), nodes.end(), source) == nodes.end()) nodes.push_back(source);
      }
    for (auto& [pair, nodes] : edges) std::sort(nodes.begin(), nodes.end());
  }

  /// The tag of a transfer between two stages: unique per direction, microbatch and tensor.
  [[nodiscard]] std::uint32_t tag(std::uint32_t from, std::uint32_t to, int node, std::int32_t microbatch) const {
    const std::vector<int>& nodes = edges.at({from, to});
    const auto index = std::find(nodes.begin(), nodes.end(), node) - nodes.begin();
    return static_cast<std::uint32_t>(
        static_cast<std::ptrdiff_t>(microbatch) * static_cast<std::ptrdiff_t>(nodes.size()) + index);
  }
};

/// What the stages share of the program under construction.
struct Tables {
  WorkTable works;
  NameTable names;
  struct OfNode {
    std::uint32_t forward = kNone, backward = kNone,
                  name = kNone;  // works, index of the name; kNone: not asked for yet
  };
  std::vector<OfNode> nodes;

  Tables(Program& program, std::size_t node_count) : works(program.works), names(program.names), nodes(node_count) {}
};

/// Builds the list of one stage: follows the schedule's actions, node by node.
class StageBuilder {
 public:
  StageBuilder(const Plan& plan, std::uint32_t stage, Tables& tables) : plan_(plan), stage_(stage), tables_(tables) {
    draft_.works = &tables.works;
    draft_.names = &tables.names;
    draft_.role.name = fmt::format("stage{}", stage);
    for (std::uint32_t replica = 0; replica < plan.strategy.dp; ++replica)
      draft_.role.ranks.push_back(replica * plan.stages + stage);
    for (std::size_t n = 0; n < plan.model.nodes.size(); ++n)
      if (plan.stage[n] == stage) nodes_.push_back(static_cast<int>(n));
    add_persistent();
  }

  Draft build() {
    const std::vector<Action> actions =
        schedule_table().at(plan_.strategy.schedule).stage(stage_, plan_.stages, plan_.microbatches);
    std::int32_t forwards = 0, backwards = 0;
    for (const Action& action : actions) {
      if (action.kind == Action::Kind::forward) {
        forward(action.microbatch);
        if (++forwards == plan_.microbatches && plan_.one_loss && has_loss()) loss_of_all();
      } else {
        backward(action.microbatch, ++backwards == plan_.microbatches);
      }
    }
    for (auto& [peer, sends] : gradient_sends_) wait_all(sends);
    return std::move(draft_);
  }

 private:
  struct Pending {
    std::uint32_t ticket, node;
    std::int32_t microbatch;
  };
  /// A gradient under construction. Exclusive: its storage belongs to this gradient alone, so that it may be added to
  /// in place.
  struct Gradient {
    std::uint32_t tensor = kNone;
    bool exclusive = true;
  };
  using Key = std::pair<int, std::int32_t>;  // node (or kModelInput, kModelTarget), microbatch or kAll
  static constexpr std::int32_t kAll = -1;   // the microbatches together, as an instruction without a microbatch

  [[nodiscard]] const Node& node(int n) const { return plan_.model.nodes[static_cast<std::size_t>(n)]; }
  [[nodiscard]] const Signature& signature(int n) const { return plan_.signatures[static_cast<std::size_t>(n)]; }
  [[nodiscard]] bool needs_grad(int n) const { return n >= 0 && plan_.needs_grad[static_cast<std::size_t>(n)]; }
  [[nodiscard]] int loss_node() const { return static_cast<int>(plan_.model.nodes.size()) - 1; }
  [[nodiscard]] bool has_loss() const { return plan_.stage.back() == stage_; }
  [[nodiscard]] static std::string versioned(const std::string& name, std::int32_t mb) {
    return mb == kAll ? name + ".all" : fmt::format("{}#{}", name, mb);
  }

  void add_persistent() {
    for (int n : nodes_) {
      const Signature& s = signature(n);
      for (const ParameterSpec& p : s.parameters) {
        DraftParameter parameter{node(n).name + "." + p.name, name_of(n), kNone, kNone};
        parameter.weight = draft_.role.add_tensor(parameter.name, p.spec, TensorClass::weight, true,
                                                  {Initial::Kind::uniform, p.initial_center, p.initial_bound, 0});
        parameters_[n].push_back(static_cast<std::uint32_t>(draft_.parameters.size()));
        draft_.parameters.push_back(std::move(parameter));
      }
      for (const BufferSpec& b : s.buffers) {
        const std::uint32_t tensor = draft_.role.add_tensor(node(n).name + "." + b.name, b.spec, TensorClass::buffer,
                                                            true, {Initial::Kind::constant, b.initial_value, 0, 0});
        buffers_[n].push_back(tensor);
        draft_.buffers.push_back(tensor);
      }
      for (int source : node(n).inputs)
        if (source < 0 && !values_.contains({source, 0})) add_model_input(source);
    }
  }

  /// The model's input or target: one persistent tensor per replica, a view of it per microbatch.
  void add_model_input(int source) {
    const bool target = source == kModelTarget;
    const std::string name = target ? "target" : "input";
    const TensorSpec whole =
        target ? plan_.model.target_spec(plan_.replica_rows) : plan_.model.input_spec(plan_.replica_rows);
    const TensorSpec part = target ? plan_.model.target_spec(plan_.rows) : plan_.model.input_spec(plan_.rows);
    const std::uint32_t tensor = draft_.role.add_tensor(
        name, whole, TensorClass::input, true,
        {target ? Initial::Kind::model_target : Initial::Kind::model_input, 0, 0, plan_.replica_rows});
    values_[{source, kAll}] = tensor;
    if (plan_.model.timing == Timing::tutorial) make_data(target, tensor);
    for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb)
      values_[{source, mb}] =
          plan_.microbatches == 1 ? tensor : draft_.role.add_view(versioned(name, mb), part, tensor, mb * part.bytes());
  }

  /// The host's work of Timing: what makes tensors at the list's end, what only reads at the end of the step.
  void add_host_work(std::string_view kind, const Attributes& attributes, const std::string& name,
                     const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                     std::int32_t mb = kAll) {
    const OpKind& op = op_table().at(kind);
    std::vector<TensorSpec> inputs;
    for (std::uint32_t tensor : reads.empty() ? writes : reads) inputs.push_back(draft_.role.tensors[tensor].spec);
    Instruction i;
    i.work = draft_.works->add({{&op, complete_attributes(op, attributes, name), inputs}, Pass::forward, 0});
    i.node = draft_.names->add(name);
    i.microbatch = mb;
    i.reads = reads;
    i.writes = writes;
    (writes.empty() ? draft_.last : draft_.list).push_back({i, kNone});
  }
  void make_data(bool target, std::uint32_t tensor) {
    if (target)
      add_host_work("make_target", {{"classes", static_cast<double>(plan_.model.classes)}}, "target", {}, {tensor});
    else
      add_host_work("make_input", {}, "input", {}, {tensor});
  }

  Instruction transfer(InstructionKind kind, std::uint32_t peer, int n, std::int32_t mb, std::uint32_t tensor,
                       std::uint32_t tag) {
    Instruction i;
    i.kind = kind;
    i.peer = peer;
    i.node = name_of(n);
    i.microbatch = mb;
    i.tag = tag;
    (kind == InstructionKind::send ? i.reads : i.writes) = {tensor};
    return i;
  }

  void wait_all(const std::vector<Pending>& pending) {
    for (const Pending& p : pending) draft_.wait(p.ticket, p.node, p.microbatch);
  }

  /// Waits for the gradients that `peer` has received for certain: it executed their backwards before it sent this
  /// forward's input. So they needn't be kept until the end of the step.
  void wait_received(std::uint32_t peer, std::vector<Pending>& sends, std::int32_t forward) {
    if (!plan_.edges.contains({peer, stage_})) return;
    const Order& theirs = order_of(peer);
    std::erase_if(sends, [&](const Pending& p) {
      if (theirs.backward[static_cast<std::size_t>(p.microbatch)] > theirs.forward[static_cast<std::size_t>(forward)])
        return false;
      draft_.wait(p.ticket, p.node, p.microbatch);
      return true;
    });
  }

  /// When a stage executes what, as places in its schedule, by microbatch.
  struct Order {
    std::vector<std::size_t> forward, backward;
  };
  const Order& order_of(std::uint32_t stage) {
    const auto [entry, is_new] = orders_.try_emplace(stage);
    if (is_new) {
      const auto microbatches = static_cast<std::size_t>(plan_.microbatches);
      entry->second = {std::vector<std::size_t>(microbatches), std::vector<std::size_t>(microbatches)};
      const std::vector<Action> actions =
          schedule_table().at(plan_.strategy.schedule).stage(stage, plan_.stages, plan_.microbatches);
      for (std::size_t at = 0; at < actions.size(); ++at)
        (actions[at].kind == Action::Kind::forward
             ? entry->second.forward
             : entry->second.backward)[static_cast<std::size_t>(actions[at].microbatch)] = at;
    }
    return entry->second;
  }

  void forward(std::int32_t mb) {
    std::vector<Pending> received;
    for (const auto& [pair, sources] : plan_.edges) {
      if (pair.second != stage_) continue;
      for (int source : sources) {
        const std::uint32_t tensor =
            draft_.role.add_tensor(versioned(node(source).name, mb), signature(source).output, TensorClass::activation);
        const Instruction i =
            transfer(InstructionKind::recv, pair.first, source, mb, tensor, plan_.tag(pair.first, stage_, source, mb));
        received.push_back({draft_.post(i), i.node, mb});
        values_[{source, mb}] = tensor;
      }
    }
    wait_all(received);
    for (auto& [peer, sends] : gradient_sends_) wait_received(peer, sends, mb);
    for (int n : nodes_) {
      if (plan_.one_loss && n == loss_node()) continue;
      forward_node(n, mb);
      for (const auto& [pair, sources] : plan_.edges) {
        if (pair.first != stage_ || std::find(sources.begin(), sources.end(), n) == sources.end()) continue;
        const Instruction i = transfer(InstructionKind::send, pair.second, n, mb, values_.at({n, mb}),
                                       plan_.tag(stage_, pair.second, n, mb));
        activation_sends_[mb].push_back({draft_.post(i), i.node, mb});
      }
    }
  }

  Instruction compute(int n, std::int32_t mb, Pass pass, std::uint32_t grads) {
    Tables::OfNode& known = tables_.nodes[static_cast<std::size_t>(n)];
    std::uint32_t& work = pass == Pass::forward ? known.forward : known.backward;
    if (work == kNone) work = tables_.works.add({plan_.ops[static_cast<std::size_t>(n)], pass, grads});
    Instruction i;
    i.kind = InstructionKind::compute;
    i.work = work;
    i.node = name_of(n);
    i.microbatch = mb;
    return i;
  }
  std::uint32_t name_of(int n) {
    std::uint32_t& name = tables_.nodes[static_cast<std::size_t>(n)].name;
    if (name == kNone) name = tables_.names.add(node(n).name);
    return name;
  }

  void forward_node(int n, std::int32_t mb) {
    const Signature& s = signature(n);
    const std::string name = versioned(node(n).name, mb);
    if (s.storage == OutputStorage::view) {  // no instruction: only another shape of the same storage
      values_[{n, mb}] = draft_.role.add_view(name, s.output, values_.at({node(n).inputs[0], mb}));
      return;
    }
    Instruction i = compute(n, mb, Pass::forward, 0);
    for (int source : node(n).inputs) i.reads.push_back(values_.at({source, mb}));
    for (std::uint32_t p : parameters_[n]) i.reads.push_back(draft_.parameters[p].weight);
    i.reads.insert(i.reads.end(), buffers_[n].begin(), buffers_[n].end());
    values_[{n, mb}] = s.storage == OutputStorage::in_place
                           ? draft_.role.add_view(name, s.output, i.reads[0])
                           : draft_.role.add_tensor(name, s.output, TensorClass::activation);
    i.writes = {values_[{n, mb}]};
    for (const SavedSpec& saved : s.saved) {
      saved_[{n, mb}].push_back(
          draft_.role.add_tensor(fmt::format("{}.{}", name, saved.name), saved.spec, TensorClass::activation));
      i.writes.push_back(saved_[{n, mb}].back());
    }
    i.writes.insert(i.writes.end(), buffers_[n].begin(), buffers_[n].end());
    draft_.list.push_back({i, kNone});
    if (n == loss_node() && plan_.model.timing == Timing::epoch)
      add_host_work("read_result", {}, node(n).name,
                    {i.writes[0], values_.at({node(n).inputs[0], mb}), values_.at({node(n).inputs[1], mb})}, {}, mb);
  }

  /// The loss of all microbatches' outputs, and its gradient, whose parts the microbatches' backwards start from.
  void loss_of_all() {
    const int loss = loss_node(), output = node(loss).inputs[0];
    const TensorSpec part = signature(output).output;
    const std::uint32_t index = name_of(loss);
    const std::uint32_t all =
        draft_.role.add_tensor(versioned(node(output).name, kAll), plan_.ops[static_cast<std::size_t>(loss)].inputs[0],
                               TensorClass::activation);
    values_[{output, kAll}] = all;
    for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb)
      draft_.scaled_copy(values_.at({output, mb}),
                         draft_.role.add_view(fmt::format("{}.{}", versioned(node(output).name, kAll), mb), part.flat(),
                                              all, mb * part.bytes()),
                         1, index);
    forward_node(loss, kAll);
    backward_node(loss, kAll, /*last=*/true);
    const std::uint32_t gradient = gradients_.at({output, kAll}).tensor;
    for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb)
      contribute(output, mb,
                 {draft_.role.add_view(gradient_name(output, mb), part, gradient, mb * part.bytes()), true});
  }

  void backward(std::int32_t mb, bool last) {
    // The next stage has long received what was sent: it has executed this microbatch's forward before its gradient can
    // come.
    wait_all(activation_sends_[mb]);
    std::vector<Pending> received;
    std::vector<std::pair<int, Gradient>> arrived;
    for (const auto& [pair, sources] : plan_.edges) {
      if (pair.first != stage_) continue;
      for (int source : sources) {
        if (!needs_grad(source)) continue;
        const std::string name = fmt::format("grad.{}.from.stage{}", versioned(node(source).name, mb), pair.second);
        const std::uint32_t tensor = draft_.role.add_tensor(name, signature(source).output, TensorClass::activation);
        const Instruction i = transfer(InstructionKind::recv, pair.second, source, mb, tensor,
                                       plan_.tag(stage_, pair.second, source, mb));
        received.push_back({draft_.post(i), i.node, mb});
        arrived.push_back({source, {tensor, true}});
      }
    }
    wait_all(received);
    for (const auto& [source, gradient] : arrived) contribute(source, mb, gradient);
    for (auto n = nodes_.rbegin(); n != nodes_.rend(); ++n)
      if (!plan_.one_loss || *n != loss_node()) backward_node(*n, mb, last);
    for (const auto& [pair, sources] : plan_.edges) {
      if (pair.second != stage_) continue;
      for (int source : sources) {
        if (!needs_grad(source)) continue;
        const std::uint32_t tensor = gradients_.at({source, mb}).tensor;
        const Instruction i =
            transfer(InstructionKind::send, pair.first, source, mb, tensor, plan_.tag(pair.first, stage_, source, mb));
        gradient_sends_[pair.first].push_back({draft_.post(i), i.node, mb});
      }
    }
  }

  void backward_node(int n, std::int32_t mb, bool last) {
    if (!needs_grad(n)) return;
    const Signature& s = signature(n);
    const bool is_loss = node(n).kind->role == OpRole::loss;
    const std::uint32_t grads = plan_.model.grads(static_cast<std::size_t>(n), plan_.needs_grad);
    if (s.backward_is_alias) {
      const Gradient grad_output = gradients_.at({n, mb});
      for (std::size_t input = 0; input < node(n).inputs.size(); ++input) {
        const int source = node(n).inputs[input];
        if (!needs_grad(source)) continue;
        const std::string name = fmt::format("{}.via.{}.{}", gradient_name(source, mb), node(n).name, input);
        // One reader keeps it exclusive (flatten); two share it (add).
        contribute(
            source, mb,
            {draft_.role.add_view(name, plan_.ops[static_cast<std::size_t>(n)].inputs[input], grad_output.tensor),
             grad_output.exclusive && node(n).inputs.size() == 1});
      }
      return;
    }
    Instruction i = compute(n, mb, Pass::backward, grads);
    if (is_loss)  // the step's loss is the mean over microbatches
      i.scale = mb == kAll ? 1.0 : 1.0 / static_cast<double>(plan_.microbatches);
    else
      i.reads.push_back(gradients_.at({n, mb}).tensor);
    for (const Operand& operand : s.backward_reads) i.reads.push_back(operand_tensor(n, mb, operand));
    std::vector<std::pair<int, Gradient>> contributions;
    for (std::size_t input = 0; input < node(n).inputs.size(); ++input) {
      if (!(grads & (1U << input))) continue;
      const int source = node(n).inputs[input];
      std::string name = gradient_name(source, mb);
      if (gradients_.contains({source, mb}) || !contributions.empty())
        name += fmt::format(".via.{}.{}", node(n).name, input);
      i.writes.push_back(
          draft_.role.add_tensor(name, plan_.ops[static_cast<std::size_t>(n)].inputs[input], TensorClass::activation));
      contributions.push_back({source, {i.writes.back(), true}});
    }
    std::vector<std::pair<std::uint32_t, std::uint32_t>> additions;  // parameter gradient, this microbatch's part of it
    for (std::uint32_t p : parameters_[n]) {
      DraftParameter& parameter = draft_.parameters[p];
      const TensorSpec spec = draft_.role.tensors[parameter.weight].spec;
      const bool first = parameter.gradient == kNone;
      const std::string name = "grad." + parameter.name;
      const std::uint32_t tensor =
          draft_.role.add_tensor(first ? name : versioned(name, mb), spec, TensorClass::gradient);
      i.writes.push_back(tensor);
      if (first)
        parameter.gradient = tensor;
      else
        additions.push_back({parameter.gradient, tensor});
    }
    draft_.list.push_back({i, kNone});
    for (const auto& [total, part] : additions) accumulate(total, part, i.node, mb);
    if (last) record_arrival(n);
    for (const auto& [source, gradient] : contributions) contribute(source, mb, gradient);
  }

  void record_arrival(int n) {
    std::vector<std::uint32_t> order = parameters_[n];
    if (node(n).kind->last_gradient_first) std::reverse(order.begin(), order.end());
    draft_.arrival.insert(draft_.arrival.end(), order.begin(), order.end());
  }

  [[nodiscard]] std::string gradient_name(int n, std::int32_t mb) const {
    return "grad." + versioned(node(n).name, mb);
  }

  [[nodiscard]] std::uint32_t operand_tensor(int n, std::int32_t mb, const Operand& operand) const {
    const auto index = static_cast<std::size_t>(operand.index);
    switch (operand.from) {
      case Operand::From::input:
        return values_.at({node(n).inputs[index], mb});
      case Operand::From::output:
        return values_.at({n, mb});
      case Operand::From::parameter:
        return draft_.parameters[parameters_.at(n)[index]].weight;
      case Operand::From::saved:
        return saved_.at({n, mb})[index];
    }
    throw InternalError("operand of node '{}'", node(n).name);
  }

  /// Another reader's gradient of the output of node n: the first is kept, further ones are added in place where nobody
  /// else uses the storage.
  void contribute(int n, std::int32_t mb, Gradient part) {
    const auto [entry, is_first] = gradients_.emplace(Key{n, mb}, part);
    if (is_first) return;
    Gradient& total = entry->second;
    const std::uint32_t name = name_of(n);
    if (!total.exclusive && !part.exclusive) {
      const std::uint32_t fresh = draft_.role.add_tensor(fmt::format("{}.sum", gradient_name(n, mb)),
                                                         signature(n).output, TensorClass::activation);
      draft_.scaled_copy(total.tensor, fresh, 1, name);
      total = {fresh, true};
    } else if (!total.exclusive) {
      std::swap(total, part);
    }
    accumulate(total.tensor, part.tensor, name, mb);
  }

  /// a += b.
  void accumulate(std::uint32_t a, std::uint32_t b, std::uint32_t name, std::int32_t mb) {
    static const OpKind& kind = op_table().at("accumulate");
    Instruction i;
    i.kind = InstructionKind::compute;
    i.work = draft_.works->add_elementwise(kind, {}, Pass::forward, draft_.role.tensors[a].spec);
    i.node = name;
    i.microbatch = mb;
    i.reads = {a, b};
    i.writes = {a};
    draft_.list.push_back({i, kNone});
  }

  const Plan& plan_;
  std::uint32_t stage_;
  Tables& tables_;
  Draft draft_;
  std::vector<int> nodes_;                                          // of this stage, in the model's order
  std::map<int, std::vector<std::uint32_t>> parameters_, buffers_;  // per node: indices into draft_.parameters, tensors
  std::map<Key, std::uint32_t> values_;                             // outputs, here or received
  std::map<Key, std::vector<std::uint32_t>> saved_;
  std::map<Key, Gradient> gradients_;
  std::map<std::int32_t, std::vector<Pending>> activation_sends_;
  std::map<std::uint32_t, std::vector<Pending>> gradient_sends_;  // by the stage they go to
  std::map<std::uint32_t, Order> orders_;                         // by stage
};

}  // namespace

Program lower(const Model& model, const Strategy& strategy) {
  Program program;
  program.model = model.text();
  program.strategy = strategy.text();
  program.global_batch = model.global_batch;
  program.replicas = strategy.dp;
  program.microbatches = strategy.microbatches;
  const Plan plan(model, strategy);
  Tables tables(program, model.nodes.size());
  if (strategy.dp > 1) program.groups.push_back({"data", {}});
  for (std::uint32_t stage = 0; stage < plan.stages; ++stage) {
    Draft draft = StageBuilder(plan, stage, tables).build();
    if (strategy.dp > 1) {
      program.groups[0].members.push_back(draft.role.ranks);
      if (strategy.broadcast_buffers) add_buffer_broadcast(draft, 0);
      add_gradient_buckets(draft, strategy, strategy.dp, 0);
    }
    add_updates(draft, model);
    draft.list.insert(draft.list.end(), draft.last.begin(), draft.last.end());
    add_frees(draft);
    program.roles.push_back(std::move(draft).finish());
  }
  validate(program);
  return program;
}

}  // namespace sim
