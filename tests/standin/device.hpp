// The stand-in accelerator as LibTorch knows it: device "standin" (PrivateUse1), with a device guard, an allocator and
// operators. Linking libstandin.so, or loading it before a program (LD_PRELOAD), is all that it takes.
//
// How many devices there are: STANDIN_DEVICES (1 unless given). Memory of each: STANDIN_MEMORY_MIB (no limit unless
// given). A process that ends with races says so and has exit status 86.
//
// Memory is poisoned (0xff: NaN, −1) when it is allocated and, in stream order, when it is freed; a freed block goes at once to
// whoever allocates as much on the same stream, as CUDA's do. What is allocated while a stream captures is of a pool that
// the graph has for itself as long as it lives; what is freed there is poisoned in every replay.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tests/standin/runtime.hpp"

namespace standin {

constexpr int kRaceStatus = 86;
constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;

/// Of the calling thread, on its current device; a runtime's number.
std::size_t current_stream();

}  // namespace standin
