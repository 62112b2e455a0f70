// Op kernels: the forward and backward of every row of sim's op table, on ATen, autograd off.
//
//   op_kernels().at("conv2d").run(work, {reads, writes, scale});
//
// The operands come in the order that sim/model/op/op.hpp states. A kernel assigns `writes[i]`; for in-place and view outputs
// it assigns the tensor that shares the input's storage. An output that the executor has already allocated (a view into
// a bucket) is written in place where the kind says so (scaled_copy). Written against at::Device: nothing here names a
// CPU or a GPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>

#include "sim/program/program.hpp"
#include "sim/table.hpp"

namespace backend {

struct Operands {
  std::span<const at::Tensor> reads;
  std::span<at::Tensor> writes;
  double scale = 1;
  std::uint64_t seed = 0;  // of this step's data on this replica (make_input, make_target)
};

struct OpKernel {
  std::string_view name;
  void (*run)(const sim::Work& work, const Operands& operands);
};

/// The same names as sim::op_table(), in the same order (a test compares them).
const sim::Table<OpKernel>& op_kernels();

}  // namespace backend
