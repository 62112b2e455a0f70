#include "backend/op/op.hpp"

namespace backend {

const sim::Table<OpKernel>& op_kernels() {
  static const std::vector<OpKernel> kernels = [] {
    std::vector<OpKernel> all;
    for (const auto& family : {layer_kernels(), loss_kernels(), optimizer_kernels(), helper_kernels()})
      all.insert(all.end(), family.begin(), family.end());
    return all;
  }();
  static const sim::Table<OpKernel> table("op kernel", kernels);
  return table;
}

}  // namespace backend
