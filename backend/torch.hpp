// The part of LibTorch that every file here needs, precompiled: tensors, and what all operator headers share. Operators
// are included one by one where they are used, which costs nothing measurable on top:
//
//   #include "backend/torch.hpp"
//   #include <ATen/ops/convolution.h>
//   at::Tensor y = at::convolution(x, weight, bias, stride, padding, dilation, /*transposed=*/false, {0, 0},
//   /*groups=*/1);
//
// A file then compiles in about 1.5 s instead of 4.5 s. c10d's process group headers add 5 to 10 s: include them in one
// .cpp each, behind a header of ours. Don't include <torch/torch.h> (18 s) or <ATen/ATen.h> (7 to 12 s) anywhere.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>  // brings Context, DeviceGuard, TensorOptions, which every ATen/ops/*.h includes
