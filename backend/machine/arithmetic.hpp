// What this machine's CPU multiplies by itself.
//
//   if (!cpu_multiplies(sim::Dtype::bf16)) fmt::print("what is timed is an emulation\n");
#pragma once

#include "sim/dtype.hpp"

namespace backend {

/// False where oneDNN and MKL convert to f32 and back: half precision without avx512_bf16 or amx_bf16, or without
/// avx512_fp16.
bool cpu_multiplies(sim::Dtype dtype);

}  // namespace backend
