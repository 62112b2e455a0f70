#include <array>

#include "backend/op/kernels.hpp"

namespace backend {

const sim::Table<OpKernel>& op_kernels() {
  static const std::array kernels{conv2d_kernel(),     linear_kernel(),        batch_norm_kernel(),
                                  relu_kernel(),       max_pool_kernel(),      adaptive_avg_pool_kernel(),
                                  flatten_kernel(),    add_kernel(),           softmax_kernel(),
                                  mse_loss_kernel(),   cross_entropy_kernel(), sgd_kernel(),
                                  adam_kernel(),       accumulate_kernel(),    scaled_copy_kernel(),
                                  make_input_kernel(), make_target_kernel(),   read_result_kernel()};
  static const sim::Table<OpKernel> table("op kernel", kernels);
  return table;
}

}  // namespace backend
