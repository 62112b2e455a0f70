#include "sim/lower/plan.hpp"

#include <algorithm>

#include "sim/error.hpp"
#include "sim/lower/redistribute.hpp"

namespace sim {
namespace {

using Kind = Placement::Kind;

std::vector<Signature> signatures_of(const std::vector<OpInstance>& ops) {
  std::vector<Signature> signatures;
  for (const OpInstance& op : ops) signatures.push_back(op.signature());
  return signatures;
}

/// What `act` makes of a node; its errors say which.
template <class Act>
auto naming(const Model& model, std::size_t n, const Act& act) {
  try {
    return act();
  } catch (const ConfigError& error) {
    throw ConfigError("model '{}', node '{}': {}", model.name, model.nodes[n].name, error.what());
  }
}

}  // namespace

Plan::Plan(const Model& m, Layout l)
    : model(m),
      layout(std::move(l)),
      schedule(schedule_table().at(layout.schedule)),
      stage_axis(layout.stage_axis),
      stages(stage_axis < layout.mesh.axes.size() ? layout.mesh.axes[stage_axis].size : 1),
      microbatches(static_cast<std::int32_t>(layout.microbatches)),
      one_loss(schedule.one_loss && microbatches > 1),
      part(m.nodes.size(), 0),
      stage(m.nodes.size(), 0),
      whole(m.instances(m.global_batch / layout.microbatches)),
      grads(m.grads()),
      everywhere_(everywhere()),
      half_parameters_(layout.parameters.cut && layout.parameters.cut->half_parameters) {
  if (one_loss) whole.back() = m.instances(m.global_batch).back();
  if (half_parameters_)
    for (OpInstance& op : whole) op.half_parameters = op.kind->matrix && is_autocast(m.precision);
  whole_signatures = signatures_of(whole);
  if (stage_axis < layout.mesh.axes.size())
    for (std::size_t n = 0; n < stage.size(); ++n) {
      part[n] = layout.play[n][stage_axis].at;
      stage[n] = rank_of(part[n]).stage;
    }
  find_ties();
  find_where_played();
  find_edges();
  place_nodes();
  check_shared();
  resolve_sums();
  make_roles();
}

/// A parameter that nodes of two stages share is on both, with the sum of both gradients.
void Plan::find_ties() {
  std::map<std::string, std::set<std::uint32_t>> stages_of, with_gradient;
  for (std::size_t n = 0; n < stage.size(); ++n)
    for (const std::string& name : model.nodes[n].parameters) {
      stages_of[name].insert(stage[n]);
      if ((grads[n] & kParameterGrads) != 0) with_gradient[name].insert(stage[n]);
    }
  const ParameterCycle& cycle = layout.parameters;
  const bool can_be_tied = !cycle.cut && !cycle.single && !cycle.averages && !cycle.at_root &&
                           !cycle.every_microbatch && model.max_grad_norm == 0 && model.loss_scale == 0;
  for (const auto& [name, of] : stages_of) {
    if (of.size() < 2) continue;
    if (with_gradient[name] != of)
      throw ConfigError(
          "model '{}': nodes on stages {} share the parameter '{}', which gets a gradient on {} only: cut the model so "
          "that they are on one",
          model.name, fmt::join(of, ", "), name, fmt::join(with_gradient[name], ", "));
    if (of.size() > 2 || !can_be_tied)
      throw ConfigError(
          "model '{}': nodes on stages {} share the parameter '{}'; allowed: on two stages, and without ZeRO, Heat, "
          "DASO, "
          "accumulate=every, loss_scale and max_grad_norm. Cut the model so that they are on one",
          model.name, fmt::join(of, ", "), name);
    ties[name] = {*of.begin(), *of.rbegin()};
  }
}

void Plan::find_where_played() {
  const std::vector<bool> is_constant = model.made_of_constants();
  std::vector<std::set<std::uint32_t>> read_in(stage.size());
  played_in.resize(stage.size());
  for (std::size_t n = stage.size(); n-- > 0;) {  // readers come later
    if (!is_constant[n] || read_in[n].empty()) read_in[n] = {part[n]};
    std::set<std::uint32_t> known;  // stages
    for (const std::uint32_t p : read_in[n])
      if (known.insert(rank_of(p).stage).second) played_in[n].push_back(p);
    for (const int source : model.nodes[n].inputs)
      if (source >= 0) read_in[static_cast<std::size_t>(source)].insert(played_in[n].begin(), played_in[n].end());
  }
}

/// What a rank has received for one of its parts the later ones have, too.
void Plan::find_edges() {
  std::map<std::pair<int, std::uint32_t>, std::uint32_t> first;  // of a node and a rank: the part that receives it
  for (std::size_t n = 0; n < stage.size(); ++n)                 // parts don't decrease
    for (const int source : model.nodes[n].inputs) {
      if (source < 0) continue;
      for (const std::uint32_t reader : played_in[n]) {
        const std::uint32_t by_stage = rank_of(reader).stage;
        if (std::ranges::any_of(played_in[static_cast<std::size_t>(source)],
                                [&](std::uint32_t p) { return rank_of(p).stage == by_stage; }))
          continue;
        const auto by = first.try_emplace({source, by_stage}, reader).first;
        if (by->second == reader) edges[{part[static_cast<std::size_t>(source)], reader}].insert(source);
      }
    }
  for (std::size_t n = 0; n < stage.size(); ++n)
    for (std::size_t i = 0; i < model.nodes[n].inputs.size(); ++i)
      if ((grads[n] >> i & 1U) != 0) gradients_from.insert({stage[n], model.nodes[n].inputs[i]});
}

void Plan::place_nodes() {
  together.resize(whole.size());
  for (std::size_t n = 0; n < whole.size(); ++n) {
    const std::size_t inputs = whole[n].inputs.size(), parameters = whole_signatures[n].parameters.size(),
                      buffers = whole_signatures[n].buffers.size();
    NodePlacements& node = placements.emplace_back();
    node = {std::vector(inputs, everywhere()),
            std::vector(inputs, everywhere()),
            everywhere(),
            everywhere(),
            everywhere(),
            std::vector(parameters, everywhere()),
            std::vector(parameters, everywhere()),
            std::vector(buffers, everywhere())};
    OpInstance op = whole[n];
    for (std::uint32_t axis = 0; axis < layout.mesh.axes.size(); ++axis) {
      const Layout::Play& play = layout.play[n][axis];
      if (axis == stage_axis) continue;
      const auto set_all = [&](const auto& of) {
        for (std::size_t k = 0; k < inputs; ++k) {
          node.inputs[k][axis] = of.inputs.at(k);
          node.grad_inputs[k][axis] = of.grad_inputs.at(k);
        }
        for (std::size_t p = 0; p < std::min(parameters, of.parameters.size()); ++p) {
          node.parameters[p][axis] = of.parameters[p];
          node.grad_parameters[p][axis] = of.grad_parameters.at(p);
        }
        for (std::size_t b = 0; b < std::min(buffers, of.buffers.size()); ++b) node.buffers[b][axis] = of.buffers[b];
        node.output[axis] = of.output;
        node.grad_output[axis] = of.grad_output;
      };
      if (play.at != Layout::Play::kAll) {
        const std::vector<Placement> there(std::max(inputs, parameters), rooted(play.at));
        set_all(Rule{.inputs = there,
                     .parameters = there,
                     .output = there[0],
                     .grad_output = there[0],
                     .grad_inputs = there,
                     .grad_parameters = there});
      } else if (!play.rule.empty()) {
        const Rule rule = naming(model, n, [&] { return rule_of(op, play.rule); });
        set_all(rule);
        if (rule.together) together[n] |= 1U << axis;
        const std::uint32_t last = layout.mesh.axes[axis].size - 1;  // it has all parameters
        op = naming(model, n, [&] { return part_of(op, rule, layout.mesh.axes[axis], last); });
      }
    }
    if (together[n] == 0 && is_synced(op.attributes) && whole[n].inputs[0].elements() == whole[n].inputs[0].shape[1])
      throw ConfigError("model '{}', node '{}': op 'batch_norm' needs more than one value per channel, found {}",
                        model.name, model.nodes[n].name, to_string(whole[n].inputs[0]));
  }
}

/// The gradients of nodes that share a parameter are added where they are made, and summed together.
void Plan::check_shared() const {
  std::map<std::string_view, std::pair<std::size_t, const Placements*>> first;  // by name: a node, and its gradient
  std::map<std::string_view, Dtype> dtypes;
  for (std::size_t n = 0; n < placements.size(); ++n)
    for (std::size_t p = 0; p < model.nodes[n].parameters.size(); ++p) {
      const Placements& gradient = placements[n].grad_parameters[p];
      const auto [known, is_new] = first.try_emplace(model.nodes[n].parameters[p], n, &gradient);
      const auto dtype = dtypes.try_emplace(known->first, whole_signatures[n].parameters[p].spec.dtype).first->second;
      if (dtype != whole_signatures[n].parameters[p].spec.dtype)
        throw ConfigError("model '{}': nodes '{}' and '{}' share the parameter '{}', which is {} and {}", model.name,
                          model.nodes[known->second.first].name, model.nodes[n].name, known->first, to_string(dtype),
                          to_string(whole_signatures[n].parameters[p].spec.dtype));
      if (is_new || *known->second.second == gradient) continue;
      throw ConfigError(
          "model '{}': nodes '{}' and '{}' share the parameter '{}', but what they are played by makes {} and {} of "
          "its gradient",
          model.name, model.nodes[known->second.first].name, model.nodes[n].name, known->first,
          placements_text(*known->second.second), placements_text(gradient));
    }
}

/// Whether every rank gets a part of it. Axes may cut one dimension after each other into too many.
bool Plan::can_be_cut(const TensorSpec& whole_spec, const Placements& of) const {
  try {
    for (std::uint32_t rank = 0; rank < layout.mesh.ranks(); ++rank)
      static_cast<void>(piece(whole_spec.shape, of, layout.mesh, rank));
  } catch (const ConfigError&) {
    return false;
  }
  return true;
}

/// A sum is made for all readers at once: of what they need where they agree, else of all of it for everyone.
void Plan::resolve_sums() {
  for (NodePlacements& node : placements) node.resolved = node.output;
  for (std::uint32_t axis = 0; axis < layout.mesh.axes.size(); ++axis)
    for (std::size_t n = 0; n < whole.size(); ++n) {
      if (placements[n].output[axis].kind != Kind::partial || n + 1 == whole.size()) continue;
      std::optional<Placement> need;
      bool agree = !layout.rooted;
      for (std::size_t reader = n + 1; reader < whole.size(); ++reader)
        for (std::size_t k = 0; k < model.nodes[reader].inputs.size(); ++k) {
          if (model.nodes[reader].inputs[k] != static_cast<int>(n)) continue;
          const Placement& of_reader = placements[reader].inputs[k][axis];
          agree &= !need || *need == of_reader;
          need = of_reader;
        }
      Placements& resolved = placements[n].resolved;
      resolved[axis] = agree ? need.value_or(replicate()) : replicate();
      const auto cuts_the_same = [&](const Placement& other) {
        return &other != &resolved[axis] && other.kind == Kind::shard && other.dim == resolved[axis].dim;
      };
      if (resolved[axis].kind == Kind::shard && std::ranges::any_of(resolved, cuts_the_same) &&
          !can_be_cut(whole_signatures[n].output, resolved))
        resolved[axis] = replicate();
    }
}

std::uint32_t Plan::axes_of(const Placements& placements, Placement::Kind kind) {
  std::uint32_t axes = 0;
  for (std::uint32_t axis = 0; axis < placements.size(); ++axis)
    if (placements[axis].kind == kind) axes |= 1U << axis;
  return axes;
}

std::uint32_t Plan::axes_of_updates() const {
  const std::uint32_t cut = layout.parameters.cut ? 1U << layout.parameters.cut->axis : 0;
  return stages > 1 ? cut | 1U << stage_axis : cut;
}

const Placements& Plan::batch(int source) const {
  if (source == kModelInput) return layout.input;
  return model.is_per_sample(source) ? layout.target : everywhere_;
}

std::optional<TensorSpec> Plan::local(const TensorSpec& whole_spec, const Placements& of, const RolePlan& role) const {
  const auto ranges = piece(whole_spec.shape, of, layout.mesh, role.rank);
  if (!ranges) return std::nullopt;
  TensorSpec spec = whole_spec;
  std::ranges::transform(*ranges, spec.shape.begin(), &Range::size);
  return spec;
}

/// Ops are cut along one axis after the other, those of ranks with the same coordinates on the outer axes together.
class Plan::Cuts {
 public:
  explicit Cuts(const Plan& plan) : plan_(plan) {
    known_[{}].parts = std::make_shared<Parts>(Parts{plan.whole, plan.whole_signatures});
  }

  /// `at`: coordinates on all axes. Which stage it is makes no difference. The signatures may be missing.
  const std::shared_ptr<Parts>& at(const std::vector<std::uint32_t>& at) { return cut(at).parts; }

 private:
  struct Cut {
    std::shared_ptr<Parts> parts;
    std::vector<Rule> rules;  // by node, along the next axis; nameless: not asked for yet
  };

  /// `at`: on the outermost axes.
  Cut& cut(std::vector<std::uint32_t> at) {
    if (plan_.stage_axis < at.size()) at[plan_.stage_axis] = 0;
    Cut& here = known_[at];
    if (here.parts) return here;
    const std::size_t axis = at.size() - 1;
    const std::uint32_t coordinate = at.back();
    at.pop_back();
    Cut& outer = cut(at);
    const std::vector<std::vector<Layout::Play>>& play = plan_.layout.play;
    if (std::ranges::all_of(play, [&](const auto& of_node) { return of_node[axis].rule.empty(); })) {
      here.parts = outer.parts;
      return here;
    }
    std::vector<OpInstance> ops = outer.parts->ops;
    outer.rules.resize(ops.size());
    for (std::size_t n = 0; n < ops.size(); ++n) {
      if (play[n][axis].rule.empty()) continue;
      Rule& rule = outer.rules[n];
      ops[n] = naming(plan_.model, n, [&] {
        if (rule.name.empty()) rule = rule_of(ops[n], play[n][axis].rule);
        return part_of(ops[n], rule, plan_.layout.mesh.axes[axis], coordinate);
      });
    }
    here.parts = std::make_shared<Parts>(Parts{std::move(ops), {}});
    return here;
  }

  const Plan& plan_;
  std::map<std::vector<std::uint32_t>, Cut> known_;  // by coordinates
};

RolePlan Plan::role_of(const std::vector<std::uint32_t>& at, Cuts& cuts) const {
  RolePlan role{.at = at};
  const std::vector<Axis>& axes = layout.mesh.axes;
  for (std::uint32_t axis = 0; axis < axes.size(); ++axis) {
    role.rank = role.rank * axes[axis].size + at[axis];
    if (axis == stage_axis) role.stage = at[axis];
  }
  for (const std::vector<Layout::Play>& of_node : layout.play) {
    bool plays = true;
    for (std::uint32_t axis = 0; axis < axes.size(); ++axis)
      plays &= axis == stage_axis || of_node[axis].at == Layout::Play::kAll || of_node[axis].at == at[axis];
    role.plays.push_back(plays);
  }
  const std::shared_ptr<Parts>& parts = cuts.at(at);
  if (parts->signatures.empty()) parts->signatures = signatures_of(parts->ops);
  role.parts = parts;
  return role;
}

/// Along the axis some rank takes its part of what it has all of: which part depends on its coordinate.
bool Plan::takes_own_parts(std::uint32_t axis) const {
  const auto cuts = [&](const Placements& from, const Placements& to) {
    const Placement &before = from[axis], &after = to[axis];
    if (after.kind != Kind::shard || from == to) return false;
    const bool moved_there = (before.kind == Kind::shard && before.dim != after.dim) || before.kind == Kind::rooted ||
                             (before.kind == Kind::partial && !layout.rooted);
    return (before != after && !moved_there) || axes_that_let_go(from, to)[axis];
  };
  for (std::size_t n = 0; n < whole.size(); ++n) {
    if (cuts(placements[n].output, placements[n].resolved)) return true;
    for (std::size_t k = 0; k < model.nodes[n].inputs.size(); ++k) {
      const int source = model.nodes[n].inputs[k];
      const NodePlacements* of = source >= 0 ? &placements[static_cast<std::size_t>(source)] : nullptr;
      if (cuts(of != nullptr ? of->resolved : batch(source), placements[n].inputs[k])) return true;
      if (of != nullptr && cuts(placements[n].grad_inputs[k], of->grad_output)) return true;
    }
  }
  return false;
}

/// The last coordinate's parts have other shapes than the first's, whatever the other coordinates are.
bool Plan::last_differs(std::uint32_t axis, Cuts& cuts) const {
  std::vector<std::uint32_t> first_of_all(layout.mesh.axes.size(), 0), last_of_all, first, last;
  for (const Axis& each : layout.mesh.axes) last_of_all.push_back(each.size - 1);
  for (const std::vector<std::uint32_t>& others : {first_of_all, last_of_all}) {
    first = last = others;
    first[axis] = 0;
    last[axis] = layout.mesh.axes[axis].size - 1;
    if (cuts.at(first)->ops != cuts.at(last)->ops) return true;
  }
  return false;
}

/// Along an axis ranks differ by their stages, as ranks of DASO's nodes, and where one takes its part of a whole; or the
/// first, where something lies there only; and the last, where it has a part of another size, or something lies there
/// only.
void Plan::make_roles() {
  const std::vector<Axis>& axes = layout.mesh.axes;
  Cuts cuts(*this);
  std::vector<std::vector<std::vector<std::uint32_t>>> classes;  // [axis][class]: coordinates
  for (std::uint32_t axis = 0; axis < axes.size(); ++axis) {
    std::vector<std::vector<std::uint32_t>>& of_axis = classes.emplace_back();
    const std::uint32_t size = axes[axis].size;
    const bool first_differs =
        layout.rooted || layout.parameters.at_root ||
        std::ranges::any_of(layout.play, [&](const auto& play) { return play[axis].at != Layout::Play::kAll; });
    const bool synchronizes_in_turn = layout.parameters.averages && axis == layout.parameters.averages->local();
    const bool each_differs = axis == stage_axis || synchronizes_in_turn || takes_own_parts(axis),
               last_is_other = !each_differs && last_differs(axis, cuts);
    for (std::uint32_t c = 0; c < size; ++c) {
      const bool starts_one = c == 0 || each_differs || (c == 1 && first_differs) || (c + 1 == size && last_is_other);
      if (starts_one) of_axis.emplace_back();
      of_axis.back().push_back(c);
    }
  }
  std::vector<std::vector<std::vector<std::uint32_t>>> products{{}};  // [role][axis]: coordinates
  for (const auto& of_axis : classes) {
    std::vector<std::vector<std::vector<std::uint32_t>>> longer;
    for (const auto& product : products)
      for (const auto& coordinates : of_axis) {
        longer.push_back(product);
        longer.back().push_back(coordinates);
      }
    products = std::move(longer);
  }
  for (const auto& product : products) {
    std::vector<std::uint32_t> at, ranks{0};
    std::string name;
    for (std::uint32_t axis = 0; axis < axes.size(); ++axis) {
      at.push_back(product[axis][0]);
      std::vector<std::uint32_t> inner;
      for (const std::uint32_t rank : ranks)
        for (const std::uint32_t c : product[axis]) inner.push_back(rank * axes[axis].size + c);
      ranks = std::move(inner);
      if (axis != stage_axis && classes[axis].size() == 1) continue;
      const std::string coordinate =
          axis == stage_axis ? fmt::format("stage{}", at.back()) : fmt::format("{}={}", axes[axis].name, at.back());
      name += (name.empty() ? "" : ".") + coordinate;
    }
    RolePlan role = role_of(at, cuts);
    role.name = name.empty() ? "all" : name;
    role.ranks = std::move(ranks);
    roles.push_back(std::move(role));
  }
}

std::uint32_t Tables::group(std::uint32_t axes) {
  const auto known = std::ranges::find(groups, axes, &Group::axes);
  if (known != groups.end()) return static_cast<std::uint32_t>(known - groups.begin());
  std::string name;
  for (std::size_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (axes >> axis & 1U) name += (name.empty() ? "" : ".") + mesh.axes[axis].name;
  groups.emplace_back(name, axes, mesh);
  return static_cast<std::uint32_t>(groups.size() - 1);
}

}  // namespace sim
