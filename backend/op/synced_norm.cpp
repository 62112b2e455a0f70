// A batch norm of whose samples each rank has a part: what torch.nn.SyncBatchNorm does on GPUs
// (torch/nn/modules/_functions.py), of ops that CPUs have, too.
#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/batch_norm_update_stats.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <tuple>

#include "backend/op/op.hpp"

namespace backend {
namespace {

/// Of numbers per channel, so that they meet the channels of x.
at::Tensor along_channels(const at::Tensor& numbers, const at::Tensor& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = -1;
  return numbers.view(shape);
}

std::int64_t values_per_channel(const at::Tensor& x) { return x.numel() / x.size(1); }

void norm_stats(const sim::Work& work, const Operands& operands) {
  const at::Tensor& x = operands.reads[0];
  const at::TensorOptions options = x.options().dtype(scalar_type(work.op.signature().output.dtype));
  const at::Tensor zeros = at::zeros({2, x.size(1)}, options);  // running statistics: they say the dtype
  const auto [mean, var] = at::batch_norm_update_stats(x, zeros[0], zeros[1], /*momentum=*/0);
  operands.writes[0] = at::cat({mean, var, at::full({1}, static_cast<double>(values_per_channel(x)), options)});
}

/// Means and variances of parts are put together as Chan et al. do ("Updating formulae and a pairwise algorithm for
/// computing sample variances", 1979). Of more than one value: Plan sees to that.
void norm_apply(const sim::Work& work, const Operands& operands) {
  const at::Tensor &x = operands.reads[0], &stats = operands.reads[1], &weight = operands.reads[2],
                   &bias = operands.reads[3], &running_mean = operands.reads[4], &running_var = operands.reads[5],
                   &num_batches_tracked = operands.reads[6];
  const std::int64_t channels = x.size(1);
  const double eps = work.op.number("eps"), momentum = work.op.number("momentum");
  const at::Tensor means = stats.narrow(1, 0, channels), counts = stats.narrow(1, 2 * channels, 1), all = counts.sum(0),
                   shares = counts / all, mean = (means * shares).sum(0),
                   var = ((stats.narrow(1, channels, channels) + (means - mean).square()) * shares).sum(0);
  operands.writes[0] =
      std::get<0>(at::native_batch_norm(x, weight, bias, mean, var, /*training=*/false, /*momentum=*/0, eps));
  operands.writes[1] = mean;
  operands.writes[2] = (var + eps).rsqrt();
  operands.writes[3] = all;
  running_mean.mul_(1 - momentum).add_(mean, momentum);
  running_var.mul_(1 - momentum).add_(var * (all / (all - 1)), momentum);
  num_batches_tracked.add_(1);
}

void norm_sums(const sim::Work& work, const Operands& operands) {
  const at::Tensor &grad_output = operands.reads[0], &x = operands.reads[1], &mean = operands.reads[2],
                   &invstd = operands.reads[3];
  // Of a norm with given statistics: the gradients of weight and bias are the sums.
  const auto [none, grad_weight, grad_bias] = at::native_batch_norm_backward(
      grad_output, x, /*weight=*/at::ones_like(mean), /*running_mean=*/mean, /*running_var=*/invstd.pow(-2),
      /*save_mean=*/{}, /*save_invstd=*/{}, /*train=*/false, /*eps=*/0, {false, true, true});
  operands.writes[0] = at::cat({grad_bias, grad_weight});
  if (work.op.integer("parameters") == 0) return;
  operands.writes[1] = grad_weight;
  operands.writes[2] = grad_bias;
}

/// w / std * (grad_y - sum of grad_y / n - (x - mean) / std * (sum of grad_y * (x - mean) / std) / n), as one factor of
/// grad_y, one of x, and a summand.
void norm_grad(const sim::Work& work, const Operands& operands) {
  const at::Tensor &grad_output = operands.reads[0], &x = operands.reads[1], &weight = operands.reads[2],
                   &mean = operands.reads[3], &invstd = operands.reads[4], &count = operands.reads[5],
                   &sums = operands.reads[6];
  const std::int64_t channels = x.size(1);
  const at::Tensor of_grad = weight * invstd, of_x = -of_grad * invstd * sums.narrow(0, channels, channels) / count,
                   summand = -of_grad * sums.narrow(0, 0, channels) / count - of_x * mean;
  at::Tensor grad = at::addcmul(along_channels(summand, x), x, along_channels(of_x, x));
  grad.addcmul_(grad_output, along_channels(of_grad, x));
  operands.writes[0] = grad.to(scalar_type(work.op.inputs[0].dtype));
}

}  // namespace

std::vector<OpKernel> sync_kernels() {
  return {{"norm_stats", norm_stats}, {"norm_apply", norm_apply}, {"norm_sums", norm_sums}, {"norm_grad", norm_grad}};
}

}  // namespace backend
