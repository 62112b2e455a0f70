// The constructors of the table's rows (one per .cpp of this folder, listed in table.cpp), and what these files share.
#pragma once

#include <optional>

#include "backend/op/op.hpp"

namespace backend {

OpKernel conv2d_kernel();
OpKernel linear_kernel();
OpKernel batch_norm_kernel();
OpKernel relu_kernel();
OpKernel max_pool_kernel();
OpKernel adaptive_avg_pool_kernel();
OpKernel flatten_kernel();
OpKernel add_kernel();
OpKernel softmax_kernel();
OpKernel mse_loss_kernel();
OpKernel cross_entropy_kernel();
OpKernel sgd_kernel();
OpKernel adam_kernel();
OpKernel accumulate_kernel();
OpKernel scaled_copy_kernel();
OpKernel make_input_kernel();
OpKernel make_target_kernel();
OpKernel read_result_kernel();

/// Bit 0 and bit 31 of `grads`: which gradients a backward pass writes.
inline bool wants_input_grad(const sim::Work& work) { return (work.grads & 1U) != 0; }
inline bool wants_parameter_grads(const sim::Work& work) { return (work.grads & sim::kParameterGrads) != 0; }

/// Of conv2d and linear.
inline std::optional<at::Tensor> bias_of(const ReferenceInputs& given) {
  return given.parameters.size() > 1 ? std::optional(given.parameters[1]) : std::nullopt;
}

}  // namespace backend
