// Op kernels: the forward and backward of every row of sim's op table on ATen, autograd off; and in the same row what
// PyTorch makes of it under autograd, the reference that kernels and whole runs are compared with.
//
//   const OpKernel& conv = op_kernels().at("conv2d");
//   conv.run(work, {reads, writes, scale});
//   at::Tensor expected = conv.reference(work.op, {inputs, parameters, buffers});
//
// The operands come in the order that sim/model/op/op.hpp states. A kernel assigns `writes[i]`; for in-place and view
// outputs it assigns the tensor that shares the input's storage. An output that the executor has already allocated (a
// view into a bucket) is written in place where the kind says so (scaled_copy). Written against at::Device: only
// attention asks whether it's a GPU (attention.hpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "sim/program/program.hpp"
#include "sim/table.hpp"

namespace backend {

struct Operands {
  std::span<const at::Tensor> reads;
  std::span<at::Tensor> writes;
  double scale = 1;
  std::uint64_t seed = 0;  // of this step's data on this replica (make_input, make_target)
  bool is_exact = false;   // nothing is left to chance: dropout drops nothing (to verify)
};

at::ScalarType scalar_type(sim::Dtype dtype);
at::MemoryFormat memory_format(const sim::TensorSpec& spec);

/// The tensor's elements in the order in which they lie in memory, in one dimension unless it is contiguous.
at::Tensor in_memory_order(const at::Tensor& tensor);

/// What a reference forward is given. It may change the buffers.
struct ReferenceInputs {
  std::span<const at::Tensor> inputs, parameters = {}, buffers = {};
  bool is_training = true;  // else batch norm goes by its running statistics
};

/// One row of the table.
struct OpKernel {
  std::string_view name;
  void (*run)(const sim::Work& work, const Operands& operands);
  /// Layers and losses: the op as torch.nn.functional computes it, differentiable. In-place attributes are ignored.
  at::Tensor (*reference)(const sim::OpInstance& op, const ReferenceInputs& given) = nullptr;
  /// Optimizers: the step of PyTorch's own over these parameters and their gradients.
  std::function<void()> (*reference_step)(const sim::OpInstance& op,
                                          const std::vector<at::Tensor>& parameters) = nullptr;
};

/// The same names as sim::op_table(), in the same order, with the reference that the op's role asks for (a test
/// compares them). Its rows by sim::OpRole, a file of this folder each:
const sim::Table<OpKernel>& op_kernels();
/// Whether it draws random numbers (dropout, stochastic depth), of PyTorch's default generator.
bool draws(const sim::OpInstance& op);
std::vector<OpKernel> layer_kernels();
OpKernel aten_kernel();
std::vector<OpKernel> loss_kernels();
std::vector<OpKernel> optimizer_kernels();
std::vector<OpKernel> helper_kernels();
std::vector<OpKernel> class_kernels();
std::vector<OpKernel> sync_kernels();

}  // namespace backend
