#include <array>

#include "backend/op/kernels.hpp"

namespace backend {

const sim::Table<OpKernel>& op_kernels() {
  static constexpr std::array kKernels{OpKernel{"conv2d", run_conv2d},
                                       OpKernel{"linear", run_linear},
                                       OpKernel{"batch_norm", run_batch_norm},
                                       OpKernel{"relu", run_relu},
                                       OpKernel{"max_pool", run_max_pool},
                                       OpKernel{"adaptive_avg_pool", run_adaptive_avg_pool},
                                       OpKernel{"flatten", run_flatten},
                                       OpKernel{"add", run_add},
                                       OpKernel{"softmax", run_softmax},
                                       OpKernel{"mse_loss", run_mse_loss},
                                       OpKernel{"cross_entropy", run_cross_entropy},
                                       OpKernel{"sgd", run_sgd},
                                       OpKernel{"adam", run_adam},
                                       OpKernel{"accumulate", run_accumulate},
                                       OpKernel{"scaled_copy", run_scaled_copy},
                                       OpKernel{"make_input", run_make_input},
                                       OpKernel{"make_target", run_make_target},
                                       OpKernel{"read_result", run_read_result}};
  static constexpr sim::Table<OpKernel> kTable("op kernel", kKernels);
  return kTable;
}

}  // namespace backend
