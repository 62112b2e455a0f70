#include <ATen/ScalarOps.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/stack.h>

#include "backend/op/op.hpp"
#include "backend/rank/initial.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

void accumulate(const sim::Work&, const Operands& operands) {
  operands.writes[0] = operands.reads[0].add_(operands.reads[1]);
}

/// Into a tensor of the executor (a bucket's slice) where there is one. The same call as DDP's reducer makes.
void scaled_copy(const sim::Work&, const Operands& operands) {
  const at::Tensor source = in_memory_order(operands.reads[0]);
  at::Tensor& destination = operands.writes[0];
  if (!destination.defined()) destination = at::empty_like(operands.reads[0]);
  at::Tensor view = in_memory_order(destination).view_as(source);
  if (operands.scale == 1)
    view.copy_(source);
  else
    at::mul_out(view, source, at::native::wrapped_scalar_tensor(operands.scale));
}

/// As DASO's `param *= factor; param += update`, of all at once.
void blend(const sim::Work& work, const Operands& operands) {
  const std::size_t count = operands.writes.size();
  std::vector<at::Tensor> parameters, received;
  for (std::size_t k = 0; k < count; ++k) {
    parameters.push_back(in_memory_order(operands.writes[k]).view(-1));
    received.push_back(in_memory_order(operands.reads[count + k]).view(-1));
  }
  at::_foreach_mul_(parameters, work.op.number("keep"));
  at::_foreach_add_(parameters, received, work.op.number("take"));
}

/// What can't be trained any more is no measurement.
void count_nans(const sim::Work&, const Operands& operands) {
  if (const auto nans = at::isnan(operands.reads[0]).sum().item<std::int64_t>(); nans > 0)
    throw sim::RunError("{} of {} parameters are NaN", nans, operands.reads[0].numel());
}

std::vector<at::Tensor> all_in_memory_order(std::span<const at::Tensor> tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(in_memory_order(tensor));
  return flat;
}

/// As torch.amp.GradScaler.unscale_.
void unscale(const sim::Work&, const Operands& operands) {
  const std::size_t count = operands.reads.size() - 1;
  at::Tensor& found = operands.writes[count];
  found.zero_();
  at::_amp_foreach_non_finite_check_and_unscale_(all_in_memory_order(operands.reads.first(count)), found,
                                                 at::reciprocal(operands.reads[count]));
}

/// As torch.nn.utils.get_total_norm, before it draws the root.
void square_norm(const sim::Work&, const Operands& operands) {
  const std::vector<at::Tensor> norms = at::_foreach_norm(all_in_memory_order(operands.reads));
  at::mul_out(operands.writes[0], at::stack(norms).square().sum(), at::native::wrapped_scalar_tensor(operands.scale));
}

/// As torch.nn.utils.clip_grads_with_norm_.
void clip(const sim::Work& work, const Operands& operands) {
  const std::size_t count = operands.reads.size() - 1;
  const at::Tensor factor = work.op.number("max_norm") / (operands.reads[count].sqrt() + 1e-6);
  at::_foreach_mul_(all_in_memory_order(operands.reads.first(count)), factor.clamp_max(1.0));
}

/// As torch.amp.GradScaler.update, with its own settings.
void update_scale(const sim::Work&, const Operands& operands) {
  at::Tensor scale = operands.writes[0], growth = operands.writes[1];
  at::_amp_update_scale_(scale, growth, operands.reads[2], /*scale_growth_factor=*/2, /*scale_backoff_factor=*/0.5,
                         /*growth_interval=*/2000);
}

void fill(const sim::Work&, const Operands& operands) { operands.writes[0].zero_(); }

/// Block k of x along the op's dim.
at::Tensor block_of(const at::Tensor& x, const sim::Work& work, std::size_t k, std::size_t blocks) {
  const std::int64_t dim = work.op.integer("dim"), each = work.op.integer("block"),
                     begin = static_cast<std::int64_t>(k) * each;
  return x.narrow(dim, begin, k + 1 == blocks ? x.size(dim) - begin : each);
}

void slice(const sim::Work& work, const Operands& operands) {
  const at::Tensor& x = operands.reads[0];
  operands.writes[0].copy_(x.narrow(work.op.integer("dim"), work.op.integer("begin"), work.op.integer("size")));
}

void pack(const sim::Work& work, const Operands& operands) {
  const std::size_t blocks = operands.writes.size();
  for (std::size_t k = 0; k < blocks; ++k) operands.writes[k].copy_(block_of(operands.reads[0], work, k, blocks));
}

void unpack(const sim::Work& work, const Operands& operands) {
  const std::size_t blocks = operands.reads.size();
  for (std::size_t k = 0; k < blocks; ++k) block_of(operands.writes[0], work, k, blocks).copy_(operands.reads[k]);
}

/// Of FSDP2 (torch.split_with_sizes_copy). What it writes has room for as many rows as all ranks together.
void split_out(const sim::Work& work, const Operands& operands) {
  const at::Tensor table = operands.reads[0].view({work.op.integer("parts"), -1});
  std::int64_t begin = 0;
  for (const at::Tensor& parameter : operands.writes) {
    const at::Tensor lines = parameter.view({table.size(0), -1});
    lines.copy_(table.narrow(1, begin, lines.size(1)));
    begin += lines.size(1);
  }
}

/// As c10d's flatten_dense_tensors.
void cat(const sim::Work& /*work*/, const Operands& operands) {
  std::vector<at::Tensor> flat;
  flat.reserve(operands.reads.size());
  for (const at::Tensor& tensor : operands.reads) flat.push_back(in_memory_order(tensor).view(-1));
  at::Tensor all = operands.writes[0].view(-1);
  at::cat_out(all, flat);
}

/// Of FSDP2 (torch._chunk_cat).
void chunk_in(const sim::Work& work, const Operands& operands) {
  const std::int64_t parts = work.op.integer("parts");
  const at::Tensor table = operands.writes[0].view({parts, -1});
  std::int64_t begin = 0;
  for (const at::Tensor& gradient : operands.reads) {
    const std::int64_t rows = gradient.size(0), each = (rows + parts - 1) / parts * (gradient.numel() / rows);
    const at::Tensor lines = in_memory_order(gradient).view(-1), room = table.narrow(1, begin, each);
    begin += each;
    const std::int64_t full = lines.numel() / each, rest = lines.numel() - full * each;
    room.narrow(0, 0, full).copy_(lines.narrow(0, 0, full * each).view({full, each}));
    if (full == parts) continue;
    room.narrow(0, full, parts - full).zero_();
    room[full].narrow(0, 0, rest).copy_(lines.narrow(0, full * each, rest));
  }
}

/// Made on the host, and brought to the device.
template <class Make>
void on_the_host(const at::Tensor& tensor, const Make& make) {
  if (tensor.is_cpu() && tensor.is_contiguous()) return make(tensor);
  const at::Tensor made = at::empty(tensor.sizes(), tensor.options().device(at::kCPU));
  make(made);
  tensor.copy_(made);
}

void make_step_input(const sim::Work&, const Operands& operands) {
  on_the_host(operands.writes[0], [&](const at::Tensor& x) { make_input(x, operands.seed); });
}

void make_step_target(const sim::Work& work, const Operands& operands) {
  on_the_host(operands.writes[0],
              [&](const at::Tensor& target) { make_target(target, work.op.integer("classes"), operands.seed); });
}

/// Both reads wait for the device.
void read_result(const sim::Work&, const Operands& operands) {
  static_cast<void>(operands.reads[0].item<double>());
  const at::Tensor predicted = at::argmax(operands.reads[1], -1), &target = operands.reads[2];
  const bool is_one_hot = target.is_floating_point();  // else each row's, or position's, class
  static_cast<void>(at::eq(predicted, is_one_hot ? at::argmax(target, -1) : target).sum().item<std::int64_t>());
}

}  // namespace

at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : tensor.as_strided({tensor.numel()}, {1});
}

std::vector<OpKernel> helper_kernels() {
  return {{"accumulate", accumulate},
          {"scaled_copy", scaled_copy},
          {"cast", scaled_copy},
          {"blend", blend},
          {"fill", fill},
          {"slice", slice},
          {"pack", pack},
          {"unpack", unpack},
          {"cat", cat},
          {"split_out", split_out},
          {"chunk_in", chunk_in},
          {"make_input", make_step_input},
          {"make_target", make_step_target},
          {"count_nans", count_nans},
          {"unscale", unscale},
          {"square_norm", square_norm},
          {"clip", clip},
          {"update_scale", update_scale},
          {"read_result", read_result}};
}

}  // namespace backend
