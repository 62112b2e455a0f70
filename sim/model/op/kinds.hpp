// The constructors of the table's rows (one per .cpp of this folder, listed in table.cpp), and what these files share.
#pragma once

#include <cmath>

#include "sim/error.hpp"
#include "sim/model/op/op.hpp"

namespace sim {

OpKind conv2d_kind();
OpKind linear_kind();
OpKind batch_norm_kind();
OpKind relu_kind();
OpKind max_pool_kind();
OpKind adaptive_avg_pool_kind();
OpKind flatten_kind();
OpKind add_kind();
OpKind softmax_kind();
OpKind mse_loss_kind();
OpKind cross_entropy_kind();
OpKind sgd_kind();
OpKind adam_kind();
OpKind accumulate_kind();
OpKind scaled_copy_kind();
OpKind make_input_kind();
OpKind make_target_kind();
OpKind read_result_kind();

/// Of helpers that write a tensor like their first input.
inline Signature like_input(const OpInstance& op) {
  Signature s;
  s.output = op.inputs[0];
  return s;
}

/// Bytes of a tensor as a number for a Demand.
inline double size(const TensorSpec& spec) { return static_cast<double>(spec.bytes()); }
inline double count(const TensorSpec& spec) { return static_cast<double>(spec.elements()); }

/// ConfigError unless the first input has `rank` dimensions.
inline void need_rank(const OpInstance& op, std::size_t rank, std::string_view expected) {
  if (op.inputs[0].shape.size() != rank)
    throw ConfigError("op '{}' needs an input {}, found {}", op.kind->name, expected, to_string(op.inputs[0]));
}

}  // namespace sim
