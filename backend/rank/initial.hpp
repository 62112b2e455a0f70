// First values of persistent tensors: a function of the seed, the tensor's name and the row in the global batch, and of
// nothing else.
//
//   set_initial(tensor, {"fc.weight", spec, 0, 0, {.kind = sim::Initial::Kind::uniform, .bound = 0.1}}, {}, seed);
//
// So every partition starts from the same parameters and sees the same samples, and float32 is float64 rounded: all is
// drawn in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "sim/program/program.hpp"

namespace backend {

/// Sets `tensor` to the first value that `description` asks for (`none`: leaves it alone), of a piece of a larger
/// tensor to that piece of its first value. `piece`: by dimension (Program::piece_of); empty: all of it.
///   model_input    uniform with mean 0 and variance 1; where it has a bound, in center ± bound; where it has `classes`,
///                  whole numbers from 0 to `classes` − 1
///   model_target   a class from 0 to `classes` − 1 per row and position: as its index (i64[rows, …]) or one-hot
///                  ([rows, …, classes])
void set_initial(const at::Tensor& tensor, const sim::Tensor& description, const std::vector<sim::Range>& piece,
                 std::uint64_t seed);
/// Sets a flat tensor to the first values of the parameters that it has of its unit, and what it has no parameter's
/// of to zero.
void set_initial(const at::Tensor& tensor, std::span<const sim::Program::Slice> slices, std::uint64_t seed);
/// That piece of a tensor, in its storage.
at::Tensor narrowed(at::Tensor tensor, const std::vector<sim::Range>& piece);

/// The data that a step makes for itself (sim::Timing::tutorial), on the CPU: standard normal, as torch.randn makes it,
/// and random classes, as indices or one-hot. `data_seed` is a function of the run's seed,
/// the step and the batch's piece.
std::uint64_t data_seed(std::uint64_t seed, std::int64_t step, std::uint32_t batch_piece);
void make_input(const at::Tensor& tensor, std::uint64_t data_seed);
void make_target(const at::Tensor& tensor, std::int64_t classes, std::uint64_t data_seed);

}  // namespace backend
