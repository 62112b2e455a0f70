#include "backend/machine/arithmetic.hpp"

namespace backend {

bool cpu_multiplies(sim::Dtype dtype) {
  if (!sim::is_half(dtype)) return true;
#if defined(__x86_64__)
  if (dtype == sim::Dtype::bf16)
    return __builtin_cpu_supports("avx512bf16") != 0 || __builtin_cpu_supports("amx-bf16") != 0;
  return __builtin_cpu_supports("avx512fp16") != 0;
#else
  return false;
#endif
}

}  // namespace backend
