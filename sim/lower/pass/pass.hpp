// Passes: what a strategy does beyond cutting and scheduling, as edits of the instruction lists before they become a
// Program.
//
//   // `draft`: one stage, forward and backward done, gradients complete
//   add_buffer_broadcast(draft, /*group=*/0);
//   add_gradient_buckets(draft, strategy, /*replicas=*/2, /*group=*/0);
//   add_updates(draft, model);
//   add_frees(draft);                                  // last: frees every storage after its last use
//   program.roles.push_back(std::move(draft).finish());
//
// Each pass is one file, its header comment shows a before and after in text form. The order is lower's.
#pragma once

#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

/// A list under construction. Posted instructions have a ticket, and a wait awaits a ticket, so that passes may insert
/// anywhere.
struct DraftInstruction {
  Instruction instruction;  // wait: `awaits` is a ticket
  std::uint32_t ticket = kNone;
};

/// One parameter of the stage.
struct DraftParameter {
  std::string name;                                // "conv1.weight"
  std::uint32_t node = kNone;                      // index into Program::names
  std::uint32_t weight = kNone, gradient = kNone;  // tensors
};

struct Draft {
  WorkTable* works = nullptr;  // of the program that the role becomes part of
  NameTable* names = nullptr;
  Role role;  // ranks, tensors and storages; no instructions yet
  std::vector<DraftInstruction> list;
  std::vector<DraftInstruction> last;      // what comes after the updates
  std::vector<DraftParameter> parameters;  // in the model's order
  std::vector<std::uint32_t> arrival;      // indices of `parameters` in the order their gradients are complete
  std::vector<std::uint32_t> buffers;      // tensors: batch-norm statistics, in the model's order
  std::uint32_t tickets = 0;

  /// Posts and returns the ticket.
  std::uint32_t post(const Instruction& instruction);
  void wait(std::uint32_t ticket, std::uint32_t node, std::int32_t microbatch = -1);
  /// A tensor that holds these, all of one dtype, one after the other, and its slices in their order (flat).
  struct Flat {
    std::uint32_t tensor = kNone;
    std::vector<std::uint32_t> slices;
  };
  Flat add_flat(const std::string& name, const std::vector<std::uint32_t>& tensors, bool persistent = false);
  /// In place; its ticket.
  std::uint32_t post_collective(CollectiveKind kind, std::uint32_t group, std::uint32_t tensor, std::uint32_t node);
  /// Of any kind (sim/program/collective.hpp).
  std::uint32_t post_collective(CollectiveKind kind, std::uint32_t group, std::uint32_t root,
                                const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                                std::uint32_t node);
  /// destination = scale × source.
  void scaled_copy(std::uint32_t source, std::uint32_t destination, double scale, std::uint32_t node);
  /// Resolves tickets and moves the list into the role.
  Role finish() &&;
};

/// DDP: rank 0's buffers to all replicas, before anything else.
void add_buffer_broadcast(Draft& draft, std::uint32_t group);
/// DDP: gradients into buckets, all-reduce, back; with strategy.overlap each bucket as soon as it is complete. Call it
/// when the list ends with the last backward.
void add_gradient_buckets(Draft& draft, const Strategy& strategy, std::uint32_t replicas, std::uint32_t group);
/// The optimizer's update of every parameter, in the model's order, with its persistent states.
void add_updates(Draft& draft, const Model& model);
/// Frees every storage that isn't persistent after its last use (for a transfer: after its wait).
void add_frees(Draft& draft);

/// PyTorch's buckets from the second step on, as lists of indices into `sizes` (bytes, in arrival order): a bucket
/// closes with the tensor that makes it reach its cap; the first cap is first_cap, the others are cap. Source:
/// torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size and rebuild_buckets
/// (tests/golden/ddp_buckets.json holds what DDP 2.11 really makes).
std::vector<std::vector<std::uint32_t>> bucket_assignment(const std::vector<std::int64_t>& sizes,
                                                          double first_cap_bytes, double cap_bytes);

}  // namespace sim
