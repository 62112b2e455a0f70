// Attention where there is no CPU: a body imported on one calls `_scaled_dot_product_flash_attention_for_cpu` and its
// backward. On an accelerator the same is played by kernels of that.
//
//   if (const Substitute attention = attention_of_accelerator("_scaled_dot_product_flash_attention_for_cpu")) attention(stack);
//
// Of CUDA: flash attention in half precision without a mask (which needs compute capability 8), memory-efficient attention
// in f32 and with one. In f64, and on other devices, products and a softmax. What is saved is the same: the output, and each
// row's log-sum-exp [B, H, L]. PyTorch 2.11 chooses so, too, but for half precision on capability 9 and 10, where it
// prefers cuDNN's from cuDNN 9.15.1 on (ATen/native/transformers/cuda/sdp_utils.cpp); and for queries that share keys in
// f32, which it plays by products.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <optional>
#include <string_view>
#include <tuple>

namespace backend {

/// Takes the arguments that its op takes off the stack, and leaves the results.
using Substitute = void (*)(torch::jit::Stack& stack);

/// nullptr: `op` (a name of ATen without its namespace) is played as it is.
Substitute attention_of_accelerator(std::string_view op);

/// q [B, H, L, E], k [B, H, S, E], v [B, H, S, Ev]; mask […, L, S] is added to the scores; scale: 1/√E unless given.
struct Attention {
  at::Tensor q, k, v;
  bool is_causal = false;
  std::optional<at::Tensor> mask = std::nullopt;
  std::optional<double> scale = std::nullopt;
};

/// By products and a softmax: output [B, H, L, Ev] and log-sum-exp [B, H, L].
std::tuple<at::Tensor, at::Tensor> plain_attention(const Attention& of);
/// Gradients of q, k and v (Dao et al., "FlashAttention", 2022, appendix B.2).
std::tuple<at::Tensor, at::Tensor, at::Tensor> plain_attention_backward(const at::Tensor& gradient, const Attention& of,
                                                                        const at::Tensor& output,
                                                                        const at::Tensor& log_sum_exp);

}  // namespace backend
