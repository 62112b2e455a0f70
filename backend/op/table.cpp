#include "backend/op/op.hpp"

#include "sim/error.hpp"

namespace backend {

at::ScalarType scalar_type(sim::Dtype dtype) {
  switch (dtype) {
    case sim::Dtype::f32:
      return at::kFloat;
    case sim::Dtype::f64:
      return at::kDouble;
    case sim::Dtype::bf16:
      return at::kBFloat16;
    case sim::Dtype::f16:
      return at::kHalf;
    case sim::Dtype::i64:
      return at::kLong;
    case sim::Dtype::i32:
      return at::kInt;
    case sim::Dtype::boolean:
      return at::kBool;
  }
  throw sim::InternalError("dtype {}", static_cast<int>(dtype));
}

at::MemoryFormat memory_format(const sim::TensorSpec& spec) {
  return spec.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

const sim::Table<OpKernel>& op_kernels() {
  static const std::vector<OpKernel> kernels = [] {
    std::vector<OpKernel> all;
    for (const auto& family :
         {layer_kernels(), loss_kernels(), optimizer_kernels(), helper_kernels(), class_kernels(), sync_kernels()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  static const sim::Table<OpKernel> table("op kernel", kernels);
  return table;
}

}  // namespace backend
