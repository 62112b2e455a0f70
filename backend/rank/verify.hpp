// What a run must have computed: one device executing the same partition, under autograd.
//
//   Reference reference = execute_reference(model, {program.batch_pieces(), program.microbatches, steps, seed});
//   std::vector<VerifiedTensor> rows = compare(reference, piece, executor.state());  // on every rank
//   result.verified = verdict(reference, losses, rows_of_all_ranks);
//
// Independent of lowering, Programs and our own kernels: it interprets the Model with the references of the op table's
// rows (torch's functions, autograd, torch::optim), in float64 on the CPU. It knows no strategy: it plays the whole
// batch, one microbatch after the other, or, where an op depends on the cut (batch norm), piece by piece. Batch-norm
// statistics are those of a piece's microbatch; each piece has running statistics of its own. What ranks have is
// compared with the pieces of these whole tensors, and together they must have all of each.
//
// Errors are max |difference| / ‖reference‖₂. A tensor that is zero but for rounding (the bias of a convolution before
// a batch norm: its gradient) has nothing to be relative to: the divisor is at least 1e-3 of the largest norm among the
// tensors of its kind.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/rank/execute.hpp"
#include "backend/session.hpp"
#include "sim/model/model.hpp"

namespace backend {

/// How the global batch is cut up: pieces of its samples, these again in microbatches.
struct Partition {
  std::vector<sim::Range> pieces;
  std::int64_t microbatches = 1, steps = 1;
  std::uint64_t seed = 1;
  bool broadcast_buffers = true;  // before every step, all pieces take the first one's running statistics (DDP)
  bool one_loss = false;          // on the microbatches' outputs together (schedule forward_only)
};

struct Reference {
  using Tensors = std::map<std::string, at::Tensor>;
  std::vector<double> losses;    // per step, of the global batch
  Tensors tensors;               // "gradient fc.weight" of the last step, "parameter fc.weight" after it
  std::vector<Tensors> buffers;  // per piece: "buffer bn1.running_mean" after the last step
};

Reference execute_reference(const sim::Model& model, const Partition& partition);

/// How far the parts' gradient in the first step is from that of one device with the whole batch: ‖difference‖₂ of all
/// parameters together over the latter's norm. nullopt where no op sees which samples come with it: there they are
/// equal but for rounding.
std::optional<double> distance_from_whole_batch(const sim::Model& model, Partition partition);

/// What one rank has, which sees that piece of the batch. InternalError for a name or shape that the reference doesn't
/// know.
std::vector<VerifiedTensor> compare(const Reference& reference, std::uint32_t batch_piece,
                                    std::span<const NamedPiece> tensors);

/// The losses ("loss step 2"), then every tensor of the reference with the worst of all ranks. One of which the ranks
/// don't have every element, or that isn't finite, is infinitely wrong.
std::vector<VerifiedTensor> verdict(const Reference& reference, std::span<const double> losses,
                                    std::span<const std::vector<VerifiedTensor>> ranks);

}  // namespace backend
