#include "backend/op/kernels.hpp"

namespace backend {
namespace {

void run(const sim::Work&, const Operands& operands) { operands.writes[0] = operands.reads[0].add_(operands.reads[1]); }

}  // namespace

OpKernel accumulate_kernel() { return {.name = "accumulate", .run = run}; }

}  // namespace backend
