// Whether a run has computed what it must have.
//
//   Reference reference = execute_reference(model, {program.batch_pieces(), program.microbatches, steps, seed});
//   std::vector<VerifiedTensor> rows = compare(reference, piece, executor.state());  // on every rank
//   result.verified = verdict(reference, losses, rows_of_all_ranks);
//
// What ranks have is compared with the pieces of the reference's whole tensors, and together they must have all of each.
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
#include "backend/rank/reference.hpp"
#include "backend/session.hpp"

namespace backend {

/// What one rank has, which sees that piece of the batch. InternalError for a name or shape that the reference doesn't
/// know.
std::vector<VerifiedTensor> compare(const Reference& reference, std::uint32_t batch_piece,
                                    std::span<const NamedPiece> tensors);

/// The losses ("loss step 2"), then every tensor of the reference with the worst of all ranks. One of which the ranks
/// don't have every element, or that isn't finite, is infinitely wrong.
std::vector<VerifiedTensor> verdict(const Reference& reference, std::span<const double> losses,
                                    std::span<const std::vector<VerifiedTensor>> ranks);

/// How far right results may be apart: the largest of verdict() that a last bit of the parameters' first values makes.
double moved_by_a_last_bit(const sim::Model& model, Partition partition);

}  // namespace backend
