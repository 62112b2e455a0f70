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

#include "sim/program.hpp"

namespace backend {

/// Sets `tensor` to the first value that `description` asks for (`none`: leaves it alone).
///   model_input    uniform with mean 0 and variance 1
///   model_target   a class from 0 to `classes` − 1 per row: as its index (i64[rows]) or one-hot ([rows, classes])
void set_initial(const at::Tensor& tensor, const sim::Tensor& description, std::int64_t classes, std::uint32_t replica,
                 std::uint64_t seed);

}  // namespace backend
