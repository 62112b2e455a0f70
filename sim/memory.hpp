// Live tensor bytes of every rank, from the Program alone.
//
//   Memory memory = peak_memory(program.roles[0]);
//   memory.peak_bytes; memory.at_peak[int(TensorClass::activation)];
#pragma once

#include <array>

#include "sim/program.hpp"

namespace sim {

struct Memory {
  std::int64_t peak_bytes = 0;
  std::array<std::int64_t, kTensorClasses> at_peak{};  // by TensorClass, at the moment of the peak
  std::uint32_t peak_instruction = 0;
  std::int64_t persistent_bytes = 0;
};
Memory peak_memory(const Role& role);

}  // namespace sim
