// The kernels behind the table's rows, one per .cpp of this folder, listed in table.cpp.
#pragma once

#include <cstdint>

#include "backend/op/op.hpp"

namespace backend {

void run_conv2d(const sim::Work& work, const Operands& operands);
void run_linear(const sim::Work& work, const Operands& operands);
void run_batch_norm(const sim::Work& work, const Operands& operands);
void run_relu(const sim::Work& work, const Operands& operands);
void run_max_pool(const sim::Work& work, const Operands& operands);
void run_adaptive_avg_pool(const sim::Work& work, const Operands& operands);
void run_flatten(const sim::Work& work, const Operands& operands);
void run_add(const sim::Work& work, const Operands& operands);
void run_softmax(const sim::Work& work, const Operands& operands);
void run_mse_loss(const sim::Work& work, const Operands& operands);
void run_cross_entropy(const sim::Work& work, const Operands& operands);
void run_sgd(const sim::Work& work, const Operands& operands);
void run_adam(const sim::Work& work, const Operands& operands);
void run_accumulate(const sim::Work& work, const Operands& operands);
void run_scaled_copy(const sim::Work& work, const Operands& operands);
void run_make_input(const sim::Work& work, const Operands& operands);
void run_make_target(const sim::Work& work, const Operands& operands);
void run_read_result(const sim::Work& work, const Operands& operands);

/// Bit 0 and bit 31 of `grads`: which gradients a backward pass writes.
inline bool wants_input_grad(const sim::Work& work) { return (work.grads & 1U) != 0; }
inline bool wants_parameter_grads(const sim::Work& work) { return (work.grads & sim::kParameterGrads) != 0; }

}  // namespace backend
