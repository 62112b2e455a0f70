#include "backend/machine/arithmetic.hpp"

namespace backend {

bool cpu_multiplies(sim::Dtype dtype) {
#if defined(__x86_64__)
  if (dtype == sim::Dtype::bf16)
    return __builtin_cpu_supports("avx512bf16") != 0 || __builtin_cpu_supports("amx-bf16") != 0;
#endif
  return !sim::is_half(dtype);
}

}  // namespace backend
