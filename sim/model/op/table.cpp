#include <array>

#include "sim/model/op/kinds.hpp"

namespace sim {

const Table<OpKind>& op_table() {
  static const std::array kinds{conv2d_kind(),     linear_kind(),        batch_norm_kind(),
                                relu_kind(),       max_pool_kind(),      adaptive_avg_pool_kind(),
                                flatten_kind(),    add_kind(),           softmax_kind(),
                                mse_loss_kind(),   cross_entropy_kind(), sgd_kind(),
                                adam_kind(),       accumulate_kind(),    scaled_copy_kind(),
                                make_input_kind(), make_target_kind(),   read_result_kind()};
  static const Table<OpKind> table("op kind", kinds);
  return table;
}

}  // namespace sim
