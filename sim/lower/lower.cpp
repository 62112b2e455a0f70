#include "sim/lower/lower.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

/// What lowering needs to know of the model, once for all stages.
struct Plan {
  const Model& model;
  const Strategy& strategy;
  const ScheduleKind& schedule = schedule_table().at(strategy.schedule);
  std::int32_t microbatches = static_cast<std::int32_t>(strategy.microbatches);
  std::vector<std::uint32_t> stage = stages_of(model, strategy);  // of every node
  std::int64_t replica_rows = model.global_batch / strategy.dp;   // samples per replica
  std::int64_t rows = replica_rows / strategy.microbatches;       // per microbatch
  std::vector<OpInstance> ops = model.instances(rows);            // with the shapes of one microbatch
  bool one_loss = schedule.one_loss && microbatches > 1;  // on all together: its op has the shapes of a replica's batch
  std::vector<bool> needs_grad = model.outputs_need_grad();
  std::vector<Signature> signatures;
  /// Nodes of stage `from` whose output a later stage `to` reads, in the model's order.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<int>> edges;

  Plan(const Model& m, const Strategy& s) : model(m), strategy(s) {
    if (one_loss) ops.back() = m.instances(replica_rows).back();
    for (const OpInstance& op : ops) signatures.push_back(op.signature());
    for (std::size_t n = 0; n < m.nodes.size(); ++n)
      for (const int source : m.nodes[n].inputs)
        if (source >= 0 && stage[static_cast<std::size_t>(source)] != stage[n])
          edges[{stage[static_cast<std::size_t>(source)], stage[n]}].insert(source);
  }

  [[nodiscard]] std::vector<Action> actions(std::uint32_t of_stage) const {
    return schedule.stage(of_stage, strategy.pp, microbatches);
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
      draft_.role.ranks.push_back(replica * plan.strategy.pp + stage);
    for (std::size_t n = 0; n < plan.model.nodes.size(); ++n)
      if (plan.stage[n] == stage) nodes_.push_back(static_cast<int>(n));
    for (const auto& [pair, nodes] : plan.edges) {
      const auto tensors = static_cast<std::uint32_t>(nodes.size());
      std::uint32_t tag = 0;
      for (const int n : nodes) {
        if (pair.second == stage) before_.push_back({pair.first, n, tag, tensors});
        if (pair.first == stage) after_.push_back({pair.second, n, tag, tensors});
        ++tag;
      }
    }
    add_persistent();
  }

  Draft build() {
    std::int32_t forwards = 0, backwards = 0;
    for (const Action& action : plan_.actions(stage_)) {
      if (action.kind == Action::Kind::forward) {
        forward(action.microbatch);
        if (++forwards == plan_.microbatches && plan_.one_loss && plan_.stage.back() == stage_) loss_of_all();
      } else {
        backward(action.microbatch, ++backwards == plan_.microbatches);
      }
    }
    for (const auto& [peer, sends] : gradient_sends_) wait_all(sends);
    return std::move(draft_);
  }

 private:
  /// The output of a node that another stage reads (or has).
  struct Edge {
    std::uint32_t peer;  // stage
    int node;
    std::uint32_t tag, tensors;  // of the first microbatch; how many go between the two stages per microbatch
  };
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
  [[nodiscard]] const OpInstance& op(int n) const { return plan_.ops[static_cast<std::size_t>(n)]; }
  [[nodiscard]] const Signature& signature(int n) const { return plan_.signatures[static_cast<std::size_t>(n)]; }
  [[nodiscard]] bool needs_grad(int n) const { return n >= 0 && plan_.needs_grad[static_cast<std::size_t>(n)]; }
  [[nodiscard]] int loss_node() const { return static_cast<int>(plan_.model.nodes.size()) - 1; }
  [[nodiscard]] static std::string versioned(const std::string& name, std::int32_t mb) {
    return mb == kAll ? name + ".all" : fmt::format("{}#{}", name, mb);
  }
  [[nodiscard]] std::string gradient_name(int n, std::int32_t mb) const {
    return "grad." + versioned(node(n).name, mb);
  }
  std::uint32_t add_activation(const std::string& name, const TensorSpec& spec) {
    return draft_.role.add_tensor(name, spec, TensorClass::activation);
  }

  void add_persistent() {
    for (int n : nodes_) {
      for (const ParameterSpec& p : signature(n).parameters) {
        DraftParameter parameter{node(n).name + "." + p.name, name_of(n)};
        parameter.weight = draft_.role.add_tensor(parameter.name, p.spec, TensorClass::weight, true,
                                                  {Initial::Kind::uniform, p.initial_center, p.initial_bound, 0});
        parameters_[n].push_back(static_cast<std::uint32_t>(draft_.parameters.size()));
        draft_.parameters.push_back(std::move(parameter));
      }
      for (const BufferSpec& b : signature(n).buffers) {
        buffers_[n].push_back(draft_.role.add_tensor(node(n).name + "." + b.name, b.spec, TensorClass::buffer, true,
                                                     {Initial::Kind::constant, b.initial_value, 0, 0}));
        draft_.buffers.push_back(buffers_[n].back());
      }
      for (int source : node(n).inputs)
        if (source < 0 && !values_.contains({source, 0})) add_model_input(source);
    }
  }

  /// The model's input or target: one persistent tensor per replica, a view of it per microbatch.
  void add_model_input(int source) {
    const bool target = source == kModelTarget;
    const std::string name = target ? "target" : "input";
    const auto spec = [&](std::int64_t rows) {
      return target ? plan_.model.target_spec(rows) : plan_.model.input_spec(rows);
    };
    const std::uint32_t tensor = draft_.role.add_tensor(
        name, spec(plan_.replica_rows), TensorClass::input, true,
        {target ? Initial::Kind::model_target : Initial::Kind::model_input, 0, 0, plan_.replica_rows});
    values_[{source, kAll}] = tensor;
    if (plan_.model.timing == Timing::tutorial && target)
      add_host_work("make_target", {{"classes", static_cast<double>(plan_.model.classes)}}, name, {}, {tensor});
    else if (plan_.model.timing == Timing::tutorial)
      add_host_work("make_input", {}, name, {}, {tensor});
    const TensorSpec part = spec(plan_.rows);
    for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb)
      values_[{source, mb}] =
          plan_.microbatches == 1 ? tensor : draft_.role.add_view(versioned(name, mb), part, tensor, mb * part.bytes());
  }

  /// The host's work of Timing: what makes tensors at the list's end, what only reads at the end of the step.
  void add_host_work(std::string_view kind, const Attributes& attributes, const std::string& name,
                     const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                     std::int32_t mb = kAll) {
    const OpKind& op_kind = op_table().at(kind);
    std::vector<TensorSpec> inputs;
    for (std::uint32_t tensor : reads.empty() ? writes : reads) inputs.push_back(draft_.role.tensors[tensor].spec);
    const std::uint32_t work =
        draft_.works->add({{&op_kind, complete_attributes(op_kind, attributes, name), inputs}, Pass::forward, 0});
    (writes.empty() ? draft_.last : draft_.list)
        .push_back(
            {{.work = work, .node = draft_.names->add(name), .microbatch = mb, .reads = reads, .writes = writes}});
  }

  /// The tag is unique per direction, microbatch and tensor.
  Pending post(InstructionKind kind, const Edge& edge, std::int32_t mb, std::uint32_t tensor) {
    Instruction i{.kind = kind,
                  .node = name_of(edge.node),
                  .microbatch = mb,
                  .peer = edge.peer,
                  .tag = static_cast<std::uint32_t>(mb) * edge.tensors + edge.tag};
    (kind == InstructionKind::send ? i.reads : i.writes) = {tensor};
    return {draft_.post(i), i.node, mb};
  }

  void wait_all(const std::vector<Pending>& pending) {
    for (const Pending& p : pending) draft_.wait(p.ticket, p.node, p.microbatch);
  }

  /// Waits for the gradients that `peer` has received for certain: it executed their backwards before it sent this
  /// forward's input. So they needn't be kept until the end of the step.
  void wait_received(std::uint32_t peer, std::vector<Pending>& sends, std::int32_t mb) {
    std::erase_if(sends, [&](const Pending& p) {
      if (place_of(peer, Action::Kind::backward, p.microbatch) > place_of(peer, Action::Kind::forward, mb))
        return false;
      draft_.wait(p.ticket, p.node, p.microbatch);
      return true;
    });
  }

  /// Where an action stands in the schedule of a stage.
  std::size_t place_of(std::uint32_t stage, Action::Kind kind, std::int32_t mb) {
    const auto index = [](const Action& action) {
      return 2 * static_cast<std::size_t>(action.microbatch) + (action.kind == Action::Kind::forward ? 0 : 1);
    };
    std::vector<std::size_t>& places = places_[stage];
    if (places.empty()) {
      const std::vector<Action> actions = plan_.actions(stage);
      places.resize(actions.size());
      for (std::size_t at = 0; at < actions.size(); ++at) places[index(actions[at])] = at;
    }
    return places[index({kind, mb})];
  }

  void forward(std::int32_t mb) {
    std::vector<Pending> received;
    for (const Edge& edge : before_) {
      const std::uint32_t tensor = add_activation(versioned(node(edge.node).name, mb), signature(edge.node).output);
      received.push_back(post(InstructionKind::recv, edge, mb, tensor));
      values_[{edge.node, mb}] = tensor;
    }
    wait_all(received);
    for (auto& [peer, sends] : gradient_sends_) wait_received(peer, sends, mb);
    for (int n : nodes_) {
      if (plan_.one_loss && n == loss_node()) continue;
      forward_node(n, mb);
      for (const Edge& edge : after_)
        if (edge.node == n) activation_sends_[mb].push_back(post(InstructionKind::send, edge, mb, values_.at({n, mb})));
    }
  }

  Instruction compute(int n, std::int32_t mb, Pass pass, std::uint32_t grads) {
    Tables::OfNode& known = tables_.nodes[static_cast<std::size_t>(n)];
    std::uint32_t& work = pass == Pass::forward ? known.forward : known.backward;
    if (work == kNone) work = tables_.works.add({op(n), pass, grads});
    return {.work = work, .node = name_of(n), .microbatch = mb};
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
    i.writes = {s.storage == OutputStorage::in_place ? draft_.role.add_view(name, s.output, i.reads[0])
                                                     : add_activation(name, s.output)};
    values_[{n, mb}] = i.writes[0];
    for (const SavedSpec& saved : s.saved) {
      i.writes.push_back(add_activation(fmt::format("{}.{}", name, saved.name), saved.spec));
      saved_[{n, mb}].push_back(i.writes.back());
    }
    i.writes.insert(i.writes.end(), buffers_[n].begin(), buffers_[n].end());
    draft_.list.push_back({i});
    if (n == loss_node() && plan_.model.timing == Timing::epoch)
      add_host_work("read_result", {}, node(n).name,
                    {i.writes[0], values_.at({node(n).inputs[0], mb}), values_.at({node(n).inputs[1], mb})}, {}, mb);
  }

  /// The loss of all microbatches' outputs, and its gradient, whose parts the microbatches' backwards start from.
  void loss_of_all() {
    const int loss = loss_node(), output = node(loss).inputs[0];
    const TensorSpec part = signature(output).output;
    const std::string name = versioned(node(output).name, kAll);
    const std::uint32_t index = name_of(loss), all = add_activation(name, op(loss).inputs[0]);
    values_[{output, kAll}] = all;
    for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb) {
      const std::uint32_t slice =
          draft_.role.add_view(fmt::format("{}.{}", name, mb), part.flat(), all, mb * part.bytes());
      draft_.scaled_copy(values_.at({output, mb}), slice, 1, index);
    }
    forward_node(loss, kAll);
    backward_node(loss, kAll, /*last=*/true);
    const std::uint32_t gradient = gradients_.at({output, kAll}).tensor;
    for (std::int32_t mb = 0; mb < plan_.microbatches; ++mb)
      contribute(output, mb, {draft_.role.add_view(gradient_name(output, mb), part, gradient, mb * part.bytes())});
  }

  void backward(std::int32_t mb, bool last) {
    // The next stage has long received what was sent: it has executed this microbatch's forward before its gradient can
    // come.
    wait_all(activation_sends_[mb]);
    std::vector<Pending> received;
    std::vector<std::pair<int, Gradient>> arrived;
    for (const Edge& edge : after_) {
      if (!needs_grad(edge.node)) continue;
      const std::uint32_t tensor = add_activation(
          fmt::format("{}.from.stage{}", gradient_name(edge.node, mb), edge.peer), signature(edge.node).output);
      received.push_back(post(InstructionKind::recv, edge, mb, tensor));
      arrived.push_back({edge.node, {tensor}});
    }
    wait_all(received);
    for (const auto& [source, gradient] : arrived) contribute(source, mb, gradient);
    for (auto n = nodes_.rbegin(); n != nodes_.rend(); ++n)
      if (!plan_.one_loss || *n != loss_node()) backward_node(*n, mb, last);
    for (const Edge& edge : before_)
      if (needs_grad(edge.node))
        gradient_sends_[edge.peer].push_back(
            post(InstructionKind::send, edge, mb, gradients_.at({edge.node, mb}).tensor));
  }

  void backward_node(int n, std::int32_t mb, bool last) {
    if (!needs_grad(n)) return;
    const Signature& s = signature(n);
    const std::vector<int>& inputs = node(n).inputs;
    const auto via = [&](std::size_t input) { return fmt::format(".via.{}.{}", node(n).name, input); };
    if (s.backward_is_alias) {
      const Gradient output = gradients_.at({n, mb});
      for (std::size_t input = 0; input < inputs.size(); ++input) {
        if (!needs_grad(inputs[input])) continue;
        const std::uint32_t view =
            draft_.role.add_view(gradient_name(inputs[input], mb) + via(input), op(n).inputs[input], output.tensor);
        // One reader keeps it exclusive (flatten); two share it (add).
        contribute(inputs[input], mb, {view, output.exclusive && inputs.size() == 1});
      }
      return;
    }
    const std::uint32_t grads = plan_.model.grads(static_cast<std::size_t>(n), plan_.needs_grad);
    Instruction i = compute(n, mb, Pass::backward, grads);
    if (node(n).kind->role == OpRole::loss)  // the step's loss is the mean over microbatches
      i.scale = mb == kAll ? 1.0 : 1.0 / static_cast<double>(plan_.microbatches);
    else
      i.reads.push_back(gradients_.at({n, mb}).tensor);
    for (const Operand& operand : s.backward_reads) i.reads.push_back(operand_tensor(n, mb, operand));
    std::vector<std::pair<int, Gradient>> contributions;
    for (std::size_t input = 0; input < inputs.size(); ++input) {
      if (!(grads & (1U << input))) continue;
      std::string name = gradient_name(inputs[input], mb);
      if (gradients_.contains({inputs[input], mb}) || !contributions.empty()) name += via(input);
      i.writes.push_back(add_activation(name, op(n).inputs[input]));
      contributions.push_back({inputs[input], {i.writes.back()}});
    }
    std::vector<std::pair<std::uint32_t, std::uint32_t>> additions;  // parameter gradient, this microbatch's part of it
    for (std::uint32_t p : parameters_[n]) {
      DraftParameter& parameter = draft_.parameters[p];
      const bool first = parameter.gradient == kNone;
      const std::string name = "grad." + parameter.name;
      i.writes.push_back(draft_.role.add_tensor(first ? name : versioned(name, mb),
                                                draft_.role.tensors[parameter.weight].spec, TensorClass::gradient));
      if (first)
        parameter.gradient = i.writes.back();
      else
        additions.push_back({parameter.gradient, i.writes.back()});
    }
    draft_.list.push_back({i});
    for (const auto& [total, part] : additions) accumulate(total, part, i.node, mb);
    std::vector<std::uint32_t>& arrival = draft_.arrival;
    if (last) arrival.insert(arrival.end(), parameters_[n].begin(), parameters_[n].end());
    if (last && node(n).kind->last_gradient_first)
      std::reverse(arrival.end() - static_cast<std::ptrdiff_t>(parameters_[n].size()), arrival.end());
    for (const auto& [source, gradient] : contributions) contribute(source, mb, gradient);
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
      const std::uint32_t fresh = add_activation(gradient_name(n, mb) + ".sum", signature(n).output);
      draft_.scaled_copy(total.tensor, fresh, 1, name);
      total = {fresh};
    } else if (!total.exclusive) {
      std::swap(total, part);
    }
    accumulate(total.tensor, part.tensor, name, mb);
  }

  /// a += b.
  void accumulate(std::uint32_t a, std::uint32_t b, std::uint32_t name, std::int32_t mb) {
    static const OpKind& kind = op_table().at("accumulate");
    const std::uint32_t work = draft_.works->add_elementwise(kind, {}, Pass::forward, draft_.role.tensors[a].spec);
    draft_.list.push_back({{.work = work, .node = name, .microbatch = mb, .reads = {a, b}, .writes = {a}}});
  }

  const Plan& plan_;
  std::uint32_t stage_;
  Tables& tables_;
  Draft draft_;
  std::vector<Edge> before_, after_;                                // from and to other stages, by stage and node
  std::vector<int> nodes_;                                          // of this stage, in the model's order
  std::map<int, std::vector<std::uint32_t>> parameters_, buffers_;  // per node: indices into draft_.parameters, tensors
  std::map<Key, std::uint32_t> values_;                             // outputs, here or received
  std::map<Key, std::vector<std::uint32_t>> saved_;
  std::map<Key, Gradient> gradients_;
  std::map<std::int32_t, std::vector<Pending>> activation_sends_;
  std::map<std::uint32_t, std::vector<Pending>> gradient_sends_;  // by the stage they go to
  std::map<std::uint32_t, std::vector<std::size_t>> places_;      // of place_of, by stage
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
  for (std::uint32_t stage = 0; stage < strategy.pp; ++stage) {
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

Job make_job(const Model& model, std::string_view strategy, const Cluster& cluster) {
  const Strategy parsed = parse_strategy(strategy, model);
  return {model, parsed, cluster.world, lower(model, parsed), cluster};
}

}  // namespace sim
