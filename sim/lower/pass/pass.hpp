// Passes: what a strategy does beyond cutting and scheduling, as edits of the instruction lists before they become a
// Program.
//
//   // `draft`: one role, forward and backward done, gradients complete where each was made
//   add_buffer_broadcast(draft, /*group=*/0);
//   add_gradient_sums(draft, layout, /*mean=*/true, groups);   // or, of parameters in units:
//   add_unit_gathers(draft, *layout.parameters.cut);
//   add_unit_sums(draft, layout, /*mean=*/true, groups);
//   add_gradient_checks(draft, plan, groups);          // loss scale, clipping
//   add_updates(draft, model);
//   add_waits(draft);                                  // for transfers that nobody has waited for
//   add_frees(draft);                                  // last: frees every storage after its last use
//   // or, of steps that reach into each other, instead of these three: add_delayed_updates(draft, model);
//   // or, of steps that differ, instead of all: add_averaged_steps(draft, model, layout, /*mean=*/true, groups);
//   program.roles.push_back(std::move(draft).finish());
//
// Each pass is one file, its header comment shows a before and after in text form. RoleBuilder calls
// add_parameter_copies or add_units before the forward; the others come after the backward, in lower's order.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <utility>

#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/layout.hpp"

namespace sim {

class Plan;

/// One parameter of the role.
struct DraftParameter {
  std::string name;            // "conv1.weight"
  std::uint32_t node = kNone;  // index into Program::names
  std::size_t of = 0;          // node of the model: of several that share it the first that is played here
  TensorSpec spec;
  ParameterUnit::Part part;     // of which it is what this rank plays with
  bool is_half = false;         // `spec` is half precision, of what is kept in f32 (ParameterCut)
  bool is_packed = false;       // ParameterSpec::is_packed
  bool is_frozen = false;       // it isn't trained: it is only cut, and gathered
  std::uint32_t sum_axes = 0;   // along which its gradient is to be summed
  std::uint32_t cut_axes = 0;   // along which no other rank has the same of it
  std::uint32_t copy_axes = 0;  // along which it is copied from the first coordinate (ParameterCycle::at_root)
  bool is_home = true;          // it lives, and is updated, here
  bool is_first = true;         // of those whose gradients are summed
  std::uint32_t weight = kNone, gradient = kNone;  // tensors
  std::vector<std::uint32_t> later_gradients;      // further microbatches', where they aren't added to it
  std::uint32_t sum_ticket = kNone;                // Heat: of the sum that `gradient` is

  /// That its module has of it.
  [[nodiscard]] std::int64_t rows() const { return spec.shape[0] * (is_packed ? spec.shape[1] : 1); }
};
/// Parameters in one flat tensor, of which every rank along ParameterCut::axis keeps a part.
struct DraftUnit {
  std::uint32_t label = kNone;  // its name
  std::uint32_t group = kNone;  // of those ranks
  std::uint32_t sum_axes = 0;
  std::vector<std::uint32_t> parameters;   // indices of Draft::parameters
  std::uint32_t all = kNone, own = kNone;  // tensors: what the weights are views of, the rank's part
  bool is_gathered = false;                // `all` isn't there unless it is gathered
  bool is_half = false;                    // `all` is in half precision, `own` in f32
  bool is_frozen = false;                  // its parameters aren't trained
  std::uint32_t given = kNone;             // what the rank has of an `all` that stays: `own`, or its copy
  std::uint32_t copied = kNone;            // FSDP2: from `all`; the weights are views of that
  std::vector<std::uint32_t> rooms{};      // in it, one for each parameter
  std::uint32_t sum = kNone;               // of the part's gradients, once add_unit_sums has been there
};
/// Persistent tensors of torch.amp.GradScaler; and `found`, once add_gradient_checks has been there.
struct DraftLossScale {
  std::uint32_t scale = kNone, growth = kNone, found = kNone;
};
/// The index, in the program, of the group along a mask of axes.
using GroupOf = std::function<std::uint32_t(std::uint32_t axes)>;

/// A list under construction: passes may insert anywhere, since waits name tickets.
struct Draft {
  WorkTable* works = nullptr;  // of the program that the role becomes part of
  NameTable* names = nullptr;
  Role role;  // ranks, tensors and storages; no instructions yet
  std::vector<Instruction> list;
  std::vector<Instruction> last;           // what comes after the updates
  std::vector<DraftParameter> parameters;  // in the model's order
  std::vector<DraftUnit> units;
  std::vector<std::uint32_t> arrival;  // indices of `parameters` in the order their gradients are complete
  std::vector<std::uint32_t> buffers;  // tensors: batch-norm statistics, in the model's order
  std::optional<DraftLossScale> loss_scale;
  std::set<std::uint32_t> again;  // tensors that a forward makes which the backward plays again
  /// Tensors that nobody reads any more, but whose storage lives on until this instruction of the list is done.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> kept;
  std::uint32_t tickets = 0;
  /// Where the list has sections: of the body, in the list. Else there is none.
  std::size_t body_begin = 0, body_end = 0;

  /// Posts and returns the ticket.
  std::uint32_t post(Instruction instruction);
  void wait(std::uint32_t ticket, std::uint32_t node, std::int32_t microbatch = -1);
  /// A tensor that holds such, all of one dtype, one after the other, and its slices in their order (flat).
  struct Flat {
    std::uint32_t tensor = kNone;
    std::vector<std::uint32_t> slices;
  };
  Flat add_flat(const std::string& name, const std::vector<TensorSpec>& specs, bool persistent = false);
  /// Posts a collective in place and returns its ticket.
  std::uint32_t post_collective(CollectiveKind kind, std::uint32_t group, std::uint32_t tensor, std::uint32_t node);
  /// Posts a collective of any kind (sim/program/collective.hpp).
  std::uint32_t post_collective(CollectiveKind kind, std::uint32_t group, std::uint32_t root,
                                const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                                std::uint32_t node);
  /// destination = scale × source, whatever their dtypes.
  void scaled_copy(std::uint32_t source, std::uint32_t destination, double scale, std::uint32_t node);
  /// destination = 0.
  void fill(std::uint32_t destination, std::uint32_t node);
  /// An elementwise op of any number of tensors; `like`: all of them together.
  void copy(std::string_view kind, const Attributes& attributes, const TensorSpec& like,
            const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes, std::uint32_t node);
  /// a += b.
  void accumulate(std::uint32_t a, std::uint32_t b, std::uint32_t node, std::int32_t microbatch = -1);
  /// By tensor: the instructions of the list that write it.
  [[nodiscard]] std::vector<std::vector<std::size_t>> writes() const;
  /// Moves the list into the role, with tickets in its order.
  Role finish() &&;
};

/// Parameters that travel together: of the same axes, in DDP's buckets or, where
/// the cycle is at_root, DataParallel's chunks.
struct ParameterBucket {
  std::size_t index = 0;  // among all
  std::uint32_t axes = 0;
  std::vector<std::uint32_t> parameters;  // indices of Draft::parameters
  std::vector<TensorSpec> specs;
};
/// `parameters`: in the order in which they fill buckets. `axes`: sum_axes or copy_axes.
std::vector<ParameterBucket> parameter_buckets(const Draft& draft, const std::vector<std::uint32_t>& parameters,
                                               const ParameterCycle& cycle, std::uint32_t DraftParameter::*axes);

/// DDP: the first rank's buffers to all of the group, before anything else.
void add_buffer_broadcast(Draft& draft, std::uint32_t group);
/// R5: the root's parameters to all, who have none yet. Call it before the forward is written.
void add_parameter_copies(Draft& draft, const ParameterCycle& cycle, const GroupOf& group_of);
/// Gradients are summed over their axes: in buckets or one by one, after the backward or during it, for everyone or for
/// the root, as the layout says. `mean`: of a loss that is one. Call it when the list ends with the last backward.
void add_gradient_sums(Draft& draft, const Layout& layout, bool mean, const GroupOf& group_of);
/// Heat: each by itself, in a tensor of its own, which becomes the parameter's gradient. `mean` as above.
void add_single_sums(Draft& draft, const Layout& layout, bool mean, const GroupOf& group_of);
/// ZeRO: puts the parameters into flat units, and makes their weights views of these. `apart`: what ranks along other axes
/// have alike and what they don't, so that norms count each once. Call it before the forward is written.
void add_units(Draft& draft, const Layout& layout, bool apart, const GroupOf& group_of);
/// Units whose weights aren't there are gathered before they're used, and freed after that.
void add_unit_gathers(Draft& draft, const ParameterCut& cut);
/// Of each unit's gradients every rank gets the sums of its part. `mean` as above.
void add_unit_sums(Draft& draft, const Layout& layout, bool mean, const GroupOf& group_of);
/// Where the model asks for it, gradients are unscaled and looked through for what isn't finite, and clipped by their
/// norm. Before the updates.
void add_gradient_checks(Draft& draft, const Plan& plan, const GroupOf& group_of);
struct Updated {
  std::uint32_t label, weight, gradient;
};
/// The optimizer's update of these parameters together, with their persistent states; nothing where there are none.
/// `label` may be kNone: then it is of no node.
void add_update(Draft& draft, const OpInstance& optimizer, std::uint32_t label, const std::vector<Updated>& parameters);
/// That of every parameter that is at home here, in the model's order; of units, of the rank's part, which then goes to
/// all who have the unit's weights.
void add_updates(Draft& draft, const Model& model);
/// Heat: instead of updates, waits and frees. Each layer is updated in the next step, before that reads its parameters:
/// the list becomes a prologue, a body and an epilogue.
void add_delayed_updates(Draft& draft, const Model& model);
/// DASO: instead of buffers, sums, updates, waits and frees. The list becomes an epoch. `mean` as above.
void add_averaged_steps(Draft& draft, const Model& model, const Layout& layout, bool mean, const GroupOf& group_of);
/// Waits for every transfer that has no wait yet, before what first touches what it moves; but for the tickets that are
/// waited for elsewhere.
void add_waits(Draft& draft, const std::vector<std::uint32_t>& elsewhere = {});
/// Frees every storage that isn't persistent after its last use (for a transfer: after its wait),
/// or where it is kept longer, then.
void add_frees(Draft& draft);
/// The same in a part of a list; of storages (by index; empty: none) that a later part uses, not.
void add_frees(const Draft& draft, std::vector<Instruction>& list, const std::vector<bool>& stays);

/// PyTorch's buckets from the second step on, as lists of indices into `sizes` (bytes, in arrival order): a bucket
/// closes with the tensor that makes it reach its cap; the first cap is first_cap, the others are cap. Source:
/// torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and rebuild_buckets
/// (tests/golden/ddp_buckets.json holds what DDP 2.11 really makes).
std::vector<std::vector<std::uint32_t>> bucket_assignment(const std::vector<std::int64_t>& sizes,
                                                          double first_cap_bytes, double cap_bytes);
/// The chunks of nn.DataParallel's broadcast_coalesced and reduce_add_coalesced, in the same form: one closes before
/// the tensor that would make it larger than its cap. Source: torch/_utils.py, _take_tensors.
std::vector<std::vector<std::uint32_t>> chunk_assignment(const std::vector<std::int64_t>& sizes, double cap_bytes);

}  // namespace sim
