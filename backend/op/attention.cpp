#include "backend/op/attention.hpp"

#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention_backward.h>
#include <ATen/ops/_scaled_dot_product_flash_attention.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_backward.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>

#include <cmath>
#include <limits>
#include <vector>

#include "sim/error.hpp"

namespace backend {
namespace {

using Stack = torch::jit::Stack;

enum class Kernel : std::uint8_t { flash, efficient, plain };

Kernel kernel_for(const Attention& of) {
  const at::ScalarType type = of.q.scalar_type();
  if (!of.q.is_cuda() || type == at::kDouble) return Kernel::plain;
  const bool is_half = type != at::kFloat;
  const std::int64_t size = of.q.size(-1);
  // Flash attention has the last query see the last key, the CPU's kernel the first one the first.
  const bool is_square = !of.is_causal || of.q.size(-2) == of.k.size(-2);
  if (is_half && !of.mask && is_square && size % 8 == 0 && size <= 256 && size == of.v.size(-1)) return Kernel::flash;
  const std::int64_t aligned = is_half ? 8 : 4;  // elements in 16 bytes
  return size % aligned == 0 && of.v.size(-1) % aligned == 0 ? Kernel::efficient : Kernel::plain;
}

/// k and v for each head of q: where several share one, each has its own.
at::Tensor for_each_head(const at::Tensor& shared, std::int64_t heads) {
  return shared.size(1) == heads ? shared : shared.repeat_interleave(heads / shared.size(1), 1);
}

/// The gradient of what several heads share: the sum of theirs.
at::Tensor sum_of_heads(const at::Tensor& gradient, std::int64_t heads) {
  if (gradient.size(1) == heads) return gradient;
  return gradient.unflatten(1, {heads, gradient.size(1) / heads}).sum(2);
}

double scale_of(const Attention& of) { return of.scale.value_or(1 / std::sqrt(static_cast<double>(of.q.size(-1)))); }

/// In the type in which rows are summed.
at::Tensor wide(const at::Tensor& tensor) { return tensor.to(at::toOpMathType(tensor.scalar_type())); }

at::Tensor scores_of(const Attention& of) {
  at::Tensor scores = wide(at::matmul(of.q, of.k.transpose(-2, -1))).mul_(scale_of(of));
  if (of.mask) scores.add_(*of.mask);
  if (of.is_causal) {
    const at::Tensor later = at::ones({of.q.size(-2), of.k.size(-2)}, of.q.options().dtype(at::kBool)).triu_(1);
    scores.masked_fill_(later, -std::numeric_limits<double>::infinity());
  }
  return scores;
}

// The calls that follow take views, so what is made must lie in memory as the CPU's kernel leaves it.

/// The output, in q's order of dimensions.
at::Tensor in_order_of(const at::Tensor& q, const at::Tensor& output) {
  const std::vector<std::int64_t> strides =
      q.is_non_overlapping_and_dense() ? q.strides().vec() : at::infer_dense_strides(q.sizes(), q.strides());
  if (output.strides() == at::IntArrayRef(strides)) return output;
  return at::empty_strided(output.sizes(), strides, output.options()).copy_(output);
}
/// A gradient: [B, L, H, E].
at::Tensor by_position(const at::Tensor& heads) { return heads.transpose(1, 2).contiguous().transpose(1, 2); }

/// The mask as the efficient kernel reads it: rows that begin on 16 elements.
std::optional<at::Tensor> bias_of(const Attention& of) {
  constexpr std::int64_t kAlignment = 16;
  if (!of.mask) return std::nullopt;
  const std::int64_t keys = of.k.size(-2);
  std::vector<std::int64_t> sizes = of.mask->sizes().vec();
  sizes.back() = keys;
  at::Tensor bias = of.mask->to(of.q.scalar_type()).expand(sizes);
  bool is_aligned = bias.stride(-1) == 1;
  for (std::int64_t d = 0; d + 1 < bias.dim(); ++d)
    is_aligned = is_aligned && (bias.size(d) == 1 || bias.stride(d) % kAlignment == 0);
  if (!is_aligned) {
    const std::int64_t more = (kAlignment - keys % kAlignment) % kAlignment;
    bias = at::constant_pad_nd(bias, {0, more}).contiguous().slice(-1, 0, keys);
  }
  return bias.expand({of.q.size(0), of.q.size(1), of.q.size(2), keys});
}

/// Each row's number as the efficient kernel's backward reads it: rows padded to 32, those behind the last without weight.
at::Tensor padded(const at::Tensor& log_sum_exp) {
  constexpr std::int64_t kRows = 32;
  const std::int64_t more = (kRows - log_sum_exp.size(-1) % kRows) % kRows;
  if (more == 0) return log_sum_exp;
  return at::constant_pad_nd(log_sum_exp, {0, more}, std::numeric_limits<double>::infinity());
}

/// Of kernels that draw: nothing is dropped, so that nobody reads it.
at::Tensor no_seed(const Attention& of) { return at::empty({}, of.q.options().dtype(at::kLong)); }

std::tuple<at::Tensor, at::Tensor> forward(const Attention& of) {
  switch (kernel_for(of)) {
    case Kernel::flash: {
      auto made = at::_scaled_dot_product_flash_attention(of.q, of.k, of.v, 0, of.is_causal, false, of.scale);
      return {std::get<0>(made), std::get<1>(made)};
    }
    case Kernel::efficient: {
      auto made =
          at::_scaled_dot_product_efficient_attention(of.q, of.k, of.v, bias_of(of), true, 0, of.is_causal, of.scale);
      return {std::get<0>(made), std::get<1>(made).slice(-1, 0, of.q.size(-2))};  // of padded rows
    }
    case Kernel::plain:
      break;
  }
  return plain_attention(of);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const at::Tensor& gradient, const Attention& of,
                                                        const at::Tensor& output, const at::Tensor& log_sum_exp) {
  switch (kernel_for(of)) {
    case Kernel::flash:
      return at::_scaled_dot_product_flash_attention_backward(gradient, of.q, of.k, of.v, output, log_sum_exp, {}, {},
                                                              of.q.size(-2), of.k.size(-2), 0, of.is_causal,
                                                              no_seed(of), no_seed(of), of.scale);
    case Kernel::efficient: {
      auto made = at::_scaled_dot_product_efficient_attention_backward(
          gradient, of.q, of.k, of.v, bias_of(of).value_or(at::Tensor()), output, padded(log_sum_exp), no_seed(of),
          no_seed(of), 0, {true, true, true, false}, of.is_causal, of.scale);
      return {std::get<0>(made), std::get<1>(made), std::get<2>(made)};
    }
    case Kernel::plain:
      break;
  }
  return plain_attention_backward(gradient, of, output, log_sum_exp);
}

/// The arguments from `dropout` on: dropout_p, is_causal, attn_mask, scale.
Attention read(const Stack& stack, std::size_t q, std::size_t dropout) {
  sim::check_internal(stack.at(dropout).toDouble() == 0, "the CPU's attention drops something");
  return {.q = stack.at(q).toTensor(),
          .k = stack.at(q + 1).toTensor(),
          .v = stack.at(q + 2).toTensor(),
          .is_causal = stack.at(dropout + 1).toBool(),
          .mask = stack.at(dropout + 2).toOptional<at::Tensor>(),
          .scale = stack.at(dropout + 3).toOptional<double>()};
}

/// With keys and values for each head of q, unless the kernel sees to it.
Attention for_kernel(Attention given) {
  if (kernel_for(given) == Kernel::flash) return given;
  for (at::Tensor* shared : {&given.k, &given.v}) *shared = for_each_head(*shared, given.q.size(1));
  return given;
}

void play_forward(Stack& stack) {
  const Attention given = read(stack, 0, 3);
  auto [output, log_sum_exp] = forward(for_kernel(given));
  stack.clear();
  stack.emplace_back(in_order_of(given.q, output));
  stack.emplace_back(std::move(log_sum_exp));
}

void play_backward(Stack& stack) {
  const Attention given = read(stack, 1, 6);
  auto [q, k, v] = backward(stack.at(0).toTensor(), for_kernel(given), stack.at(4).toTensor(), stack.at(5).toTensor());
  stack.clear();
  stack.emplace_back(by_position(q));
  stack.emplace_back(by_position(sum_of_heads(k, given.k.size(1))));
  stack.emplace_back(by_position(sum_of_heads(v, given.v.size(1))));
}

}  // namespace

Substitute attention_of_accelerator(std::string_view op) {
  if (op == "_scaled_dot_product_flash_attention_for_cpu") return &play_forward;
  if (op == "_scaled_dot_product_flash_attention_for_cpu_backward") return &play_backward;
  return nullptr;
}

std::tuple<at::Tensor, at::Tensor> plain_attention(const Attention& of) {
  const at::Tensor scores = scores_of(of);
  const at::Tensor largest = scores.amax(-1, /*keepdim=*/true);
  at::Tensor log_sum_exp = ((scores - largest).exp().sum(-1, /*keepdim=*/true).log() + largest).squeeze(-1);
  const at::Tensor weights = (scores - log_sum_exp.unsqueeze(-1)).exp_();
  return {at::matmul(weights.to(of.v.scalar_type()), of.v), log_sum_exp};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> plain_attention_backward(const at::Tensor& gradient, const Attention& of,
                                                                        const at::Tensor& output,
                                                                        const at::Tensor& log_sum_exp) {
  const at::ScalarType type = of.q.scalar_type();
  const at::Tensor weights = (scores_of(of) - log_sum_exp.unsqueeze(-1)).exp_();  // the softmax
  const at::Tensor of_output = (wide(gradient) * wide(output)).sum(-1, /*keepdim=*/true);
  const at::Tensor of_weights = wide(at::matmul(gradient, of.v.transpose(-2, -1)));
  const at::Tensor of_scores = (of_weights - of_output).mul_(weights).mul_(scale_of(of)).to(type);
  return {at::matmul(of_scores, of.k), at::matmul(of_scores.transpose(-2, -1), of.q),
          at::matmul(weights.transpose(-2, -1).to(type), gradient)};
}

}  // namespace backend
