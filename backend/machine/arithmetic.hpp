// What this machine's CPU multiplies by itself.
//
//   if (!cpu_multiplies(sim::Dtype::bf16)) fmt::print("what is timed is an emulation\n");
#pragma once

#include "sim/dtype.hpp"

namespace backend {

/// bf16 with avx512_bf16 or amx_bf16, else oneDNN converts to f32 and back. f16 never: LibTorch 2.11 has no backward of
/// convolutions for it, on a CPU with avx512_fp16 what it does instead takes 127 times as long as in f32.
bool cpu_multiplies(sim::Dtype dtype);

}  // namespace backend
