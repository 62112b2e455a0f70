#include "backend/op/kernels.hpp"

namespace backend {

void run_accumulate(const sim::Work&, const Operands& operands) {
  operands.writes[0] = operands.reads[0].add_(operands.reads[1]);
}

}  // namespace backend
