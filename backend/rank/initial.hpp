// First values of persistent tensors: a function of the seed, the tensor's name and the row in the global batch, and of
// nothing else.
//
//   set_initial(tensor, {"fc.weight", spec, 0, 0, {.kind = sim::Initial::Kind::uniform, .bound = 0.1}}, model.classes,
//   /*replica=*/0, seed);
//
// So every partition starts from the same parameters and sees the same samples, and float32 is float64 rounded: all is
// drawn in float64.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "sim/program/program.hpp"

namespace backend {

/// Sets `tensor` to the first value that `description` asks for (`none`: leaves it alone).
///   model_input    uniform with mean 0 and variance 1
///   model_target   a class from 0 to `classes` − 1 per row: as its index (i64[rows]) or one-hot ([rows, classes])
void set_initial(const at::Tensor& tensor, const sim::Tensor& description, std::int64_t classes, std::uint32_t replica,
                 std::uint64_t seed);

/// The data that a step makes for itself (sim::Timing::tutorial), on the CPU: standard normal, as torch.randn makes it,
/// and random classes, as indices or one-hot. `data_seed` is a function of the run's seed, the step and the replica.
std::uint64_t data_seed(std::uint64_t seed, std::int64_t step, std::uint32_t replica);
void make_input(const at::Tensor& tensor, std::uint64_t data_seed);
void make_target(const at::Tensor& tensor, std::int64_t classes, std::uint64_t data_seed);

}  // namespace backend
