// What lowering needs to know of a model on a layout, once for all roles; and of the ranks of one role.
//
//   const Plan plan(model, layout_of(model, strategy));
//   for (const RolePlan& role : plan.roles) fmt::print("{}: {}\n", role.name, role.parts->ops[0].inputs[0].shape[0]);
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/model/op/rule.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {

/// A placement for each axis of the mesh; along the stages' axis always R.
using Placements = std::vector<Placement>;

/// Where the tensors of a node lie: what its rules need and give, by axis.
struct NodePlacements {
  std::vector<Placements> inputs, grad_inputs;  // by input
  Placements output, grad_output;
  /// The output as its readers find it: sums are made at once, of what they need where all need the same.
  Placements resolved;
  std::vector<Placements> parameters, grad_parameters;  // by parameter
  std::vector<Placements> buffers;                      // by buffer
};

/// The ops as some ranks play them, by node: with the shapes of a microbatch's part.
struct Parts {
  std::vector<OpInstance> ops;
  std::vector<Signature> signatures;
};

/// Ranks that do the same.
struct RolePlan {
  std::string name;
  std::vector<std::uint32_t> at;     // coordinates of the first of them
  std::uint32_t rank = 0;            // the first of them
  std::vector<std::uint32_t> ranks;  // ascending
  std::uint32_t stage = 0;
  std::shared_ptr<const Parts> parts;  // of every stage; roles that differ by their stage only share them
  std::vector<bool> plays;             // by node; of every stage
};

class Plan {
 public:
  /// ConfigError where a node has no such rule, or a size can't be cut so.
  Plan(const Model& model, Layout layout);

  const Model& model;
  const Layout layout;
  const ScheduleKind& schedule;
  const std::uint32_t stage_axis, stages;
  const std::int32_t microbatches;
  const bool one_loss;               // on all microbatches together: its op has the shapes of all of them
  std::vector<std::uint32_t> part;   // of every node: which of the model's stages, in its order
  std::vector<std::uint32_t> stage;  // of every node: the coordinate of that part's ranks
  /// Of every node: the parts that play it, ascending, one of a rank at most. What constants alone say (the angles of rotary
  /// embeddings) is nobody's to send: each rank that reads it makes it itself. Else it is the node's part.
  std::vector<std::vector<std::uint32_t>> played_in;
  std::vector<OpInstance> whole;  // of every node: all samples of a microbatch, all channels
  std::vector<Signature> whole_signatures;
  std::vector<NodePlacements> placements;  // of every node
  std::vector<std::uint32_t> together;     // of every node: axes along which parts find its result out (Rule::together)
  std::vector<std::uint32_t> grads;        // of every node: Model::grads
  std::vector<RolePlan> roles;
  /// Nodes of part `from` whose output a later part `to` of another rank reads, the first of that rank's, in the model's
  /// order.
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::set<int>> edges;
  std::set<std::pair<std::uint32_t, int>> gradients_from;  // a stage, and a node of whose gradient it makes a part
  /// Parameters that nodes of two stages share (tied weights), and the stages.
  std::map<std::string, std::pair<std::uint32_t, std::uint32_t>> ties;

  /// Whether a node's parameters are in half precision, and who updates them keeps them in f32.
  [[nodiscard]] bool has_half_parameters(std::size_t n) const {
    return half_parameters_ && (whole[n].half_parameters || model.nodes[n].halved != nullptr);
  }
  [[nodiscard]] PartOfRank rank_of(std::uint32_t of_part) const {
    return rank_of_part(of_part, stages, schedule.order);
  }
  [[nodiscard]] std::vector<Action> actions(std::uint32_t of_stage) const {
    return schedule.stage(of_stage, stages, microbatches, layout.chunks);
  }
  /// The part of a whole tensor that the role's first rank has; nullopt: nothing.
  [[nodiscard]] std::optional<TensorSpec> local(const TensorSpec& whole_spec, const Placements& placements,
                                                const RolePlan& role) const;
  /// Whether a stage's nodes make some of the gradient of a node's output.
  [[nodiscard]] bool gives_gradient(std::uint32_t of_stage, int source) const {
    return gradients_from.contains({of_stage, source});
  }
  /// Those along which ranks have running statistics of their own.
  [[nodiscard]] std::uint32_t axes_of_rows() const { return axes_of(layout.rows, Placement::Kind::shard); }
  /// Where the model's input or target lies before the step.
  [[nodiscard]] const Placements& batch(int source) const;
  /// Those along which all ranks update different parameters: of stages, and ZeRO's.
  [[nodiscard]] std::uint32_t axes_of_updates() const;
  /// Axes along which a placement is of this kind, as a mask.
  [[nodiscard]] static std::uint32_t axes_of(const Placements& placements, Placement::Kind kind);
  [[nodiscard]] Placements everywhere() const { return Placements(layout.mesh.axes.size(), replicate()); }

 private:
  void find_ties();
  void find_where_played();
  void find_edges();
  void place_nodes();
  void check_shared() const;
  void resolve_sums();
  [[nodiscard]] bool can_be_cut(const TensorSpec& whole_spec, const Placements& of) const;
  void make_roles();
  [[nodiscard]] bool takes_own_parts(std::uint32_t axis) const;
  const Placements everywhere_;
  const bool half_parameters_;  // those of matrix ops, and of bodies
  class Cuts;
  [[nodiscard]] bool last_differs(std::uint32_t axis, Cuts& cuts) const;
  [[nodiscard]] RolePlan role_of(const std::vector<std::uint32_t>& at, Cuts& cuts) const;
};

/// What the roles share of the program under construction.
struct Tables {
  WorkTable works;
  NameTable names;
  std::vector<Group>& groups;
  const Mesh& mesh;

  explicit Tables(Program& program)
      : works(program.works), names(program.names), groups(program.groups), mesh(program.mesh) {}
  /// The index of the group of these axes, named after them.
  std::uint32_t group(std::uint32_t axes);
};

}  // namespace sim
