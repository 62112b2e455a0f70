// All that a strategy decides, as data: where each node is played, and where
// parameters live. Lowering reads nothing else.
//
//   const Layout layout = layout_of(model, strategy);
//   const Program program = lower(model, strategy);   // asks for it itself
//
// A strategy is a row of table.cpp: axes (axis/axis.hpp), each of which adds its part, and what becomes of parameters.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "sim/mesh/mesh.hpp"
#include "sim/mesh/placement.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

/// ZeRO (https://arxiv.org/abs/1910.02054): along one axis each rank keeps the optimizer's states of a part of the
/// parameters, updates it, and gets the sums of its gradients. What is cut are flat units (sim/lower/pass/units.cpp).
struct ParameterCut {
  std::uint32_t axis = 0;  // of the mesh
  bool by_rows = false;    // each parameter of a unit by its rows, as FSDP2; else the flat unit
  /// Which unit a node's parameters belong to; and how many bytes make a unit full (0: it is never).
  std::vector<std::uint32_t> unit_of;
  double unit_bytes = 0;
  /// ZeRO 3: the weights are cut, too, and gathered when they're used; but parameters of at most so many elements.
  bool weights = false;
  std::int64_t whole_up_to = 0;
  bool reshard = true;                 // what a forward has gathered is freed before the backward
  bool reshard_after_backward = true;  // else it's kept for further microbatches
  double reuse_elements = 0;           // nothing is freed that is used again before so many others
  std::uint32_t prefetch = 1;          // how many units are gathered ahead
  double prefetch_elements = 0;        // and at most so many elements (0: of any size)
  bool after_backward = false;         // not as soon as a unit's gradients are there
  /// A model of half precision: what matrix ops multiply travels in it, and is kept in f32 by who updates it; and their
  /// gradients travel in it.
  bool half_parameters = false, half_sums = false;
  bool scatters = true;  // everyone gets its part of the sums; else all of them, as DeepSpeed's first two stages
};

/// DASO: along an axis, the nodes, each coordinate has parameters of its own; along the next one are a node's ranks.
struct NodeAverages {
  Daso daso;
  std::uint32_t nodes = 0;          // axis of the mesh
  std::int64_t chunk_elements = 0;  // that are summed over the nodes in one piece
  Dtype downcast = Dtype::bf16;     // f32 parameters travel so where they are waited for at once

  [[nodiscard]] std::uint32_t local() const { return nodes + 1; }
};

/// What becomes of every parameter in a step. Its gradient is summed over the axes on which it is partial.
struct ParameterCycle {
  /// It lives at the first coordinate of each axis that replicates it, and is updated there; the others get a copy
  /// before the forward. Else everyone who plays with it has it.
  bool at_root = false;
  /// Gradients (or parameters) travel in flat tensors that are full with so much; or each by itself, where it lies.
  double first_bucket_MiB = 0, bucket_MiB = 0;
  bool in_place = false;
  /// Heat: or each by itself, in a copy that the update takes. Delayed: a layer is updated in the next step, just before
  /// its forward, and until then the sums are on their way; else the backward stands still for each.
  bool single = false, delayed = false;
  /// Gradients are summed as soon as a bucket is complete. Else after the backward, one after the other.
  bool overlap = false;
  /// Sums are made after each microbatch's backward; else of all microbatches' gradients together (DDP's no_sync).
  bool every_microbatch = false;
  /// Gradients are of the mean over a rank's own samples: the sum is divided by the number of ranks. Else a rank's loss
  /// weighs as much as its share of the batch.
  bool is_mean = false;
  bool broadcast_buffers = false;  // the first coordinate's to all, before everything else
  std::optional<ParameterCut> cut = {};
  std::optional<NodeAverages> averages = {};
  /// Along which each coordinate has parameters, and sums of gradients, of its own.
  [[nodiscard]] std::uint32_t own_axes() const { return averages ? 1U << averages->nodes : 0; }
};

struct Layout {
  Mesh mesh;
  /// How a node is played along an axis: by a rule of its op (sim/model/op/rule.hpp), at one coordinate only, or, if it
  /// is neither, by all alike.
  struct Play {
    std::string rule;
    std::uint32_t at = kAll;
    static constexpr std::uint32_t kAll = 0xffffffffU;
  };
  std::vector<std::vector<Play>> play;   // [node][axis]
  std::vector<Placement> input, target;  // by axis: where the batch lies before the step
  std::vector<Placement> rows;           // by axis: which samples ops that depend on the cut see together
  ParameterCycle parameters;
  bool rooted = false;  // sums go to the first coordinate, and from there to those who need them
  /// A sum of gradients goes before the gradients of parameters are computed, which belong to the same node's backward.
  bool sums_early = false;
  /// What a node has gathered of another's output along an axis isn't kept for its backward, which gathers it again
  /// (Megatron's LinearWithGradAccumulationAndAsyncCommunication with sequence_parallel).
  bool regather = false;
  /// Axes, beside those of rows, along which ranks draw random numbers of their own.
  std::uint32_t draw_axes = 0;
  std::string schedule = "gpipe";
  std::int64_t microbatches = 1;
  std::int32_t chunks = 1;
  Recompute recompute = Recompute::none;
  std::vector<std::uint32_t> segment_of;  // by node: what the backward computes anew (sim/strategy/recompute.hpp)

  /// The axis along which every node is played at one coordinate: that which has its stage, one of chunks times the
  /// axis's size (rank_of_part).
  static constexpr std::uint32_t kNoStages = 0xffffffffU;
  std::uint32_t stage_axis = kNoStages;

  /// Becomes the innermost axis. `rows_along`: of `rows`, and of input and target.
  void add_axis(const Axis& axis, const Placement& rows_along, const std::function<Play(std::size_t node)>& play_of);
};

/// ConfigError where the strategy doesn't fit the model.
Layout layout_of(const Model& model, const Strategy& strategy);

/// What a strategy with half parameters plays in the model's place; nullopt: the model as it is.
std::optional<Model> halved_model(const Model& model, const Strategy& strategy);

}  // namespace sim
