// Element types, tensor shapes and their order in memory.
//
//   TensorSpec weight{Dtype::f32, {64, 3, 7, 7}};       // to_string(weight) == "f32[64,3,7,7]"
//   weight.bytes();                                     // 37632
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

enum class Dtype : std::uint8_t { f32, f64, bf16, f16, i64, i32, boolean };

std::string_view to_string(Dtype dtype);
/// Throws ConfigError for an unknown name.
Dtype dtype_from(std::string_view name);
std::int64_t size_of(Dtype dtype);  // bytes per element

/// How PyTorch multiplies f32 tensors in convolutions and linear layers.
enum class Precision : std::uint8_t {
  f32,   // its defaults: TF32 in convolutions where the device has it (torch.backends.cudnn.allow_tf32), f32 elsewhere
  tf32,  // torch.set_float32_matmul_precision("high"): TF32 in all
  ieee,  // TF32 in none
  bf16,  // torch.autocast: on copies in that dtype
  fp16
};
std::string_view to_string(Precision precision);
/// Throws ConfigError for an unknown name.
Precision precision_from(std::string_view name);
constexpr bool is_autocast(Precision precision) { return precision == Precision::bf16 || precision == Precision::fp16; }

/// What autocast casts to.
constexpr Dtype half_of(Precision precision) { return precision == Precision::fp16 ? Dtype::f16 : Dtype::bf16; }

constexpr bool is_float(Dtype dtype) { return dtype < Dtype::i64; }
constexpr bool is_half(Dtype dtype) { return dtype == Dtype::bf16 || dtype == Dtype::f16; }
/// The dtype of what autocast keeps in f32: parameters, statistics, losses.
constexpr Dtype at_least_f32(Dtype dtype) { return is_half(dtype) ? Dtype::f32 : dtype; }

/// Sizes of the dimensions, outermost first: [batch, channels, height, width]. Empty = scalar.
using Shape = std::vector<std::int64_t>;

/// A tensor's sizes are positive, and it has at most this many elements: bytes and FLOPs can't overflow.
constexpr std::int64_t kMostElements = std::int64_t{1} << 40;
bool fits(const Shape& shape);

/// How many elements a shape has that fits.
std::int64_t elements(const Shape& shape);

struct TensorSpec {
  Dtype dtype = Dtype::f32;
  Shape shape;
  /// The order of four dimensions: the channels of a pixel lie
  /// side by side (PyTorch's memory_format=channels_last, NHWC).
  bool channels_last = false;

  [[nodiscard]] std::int64_t elements() const { return sim::elements(shape); }
  [[nodiscard]] std::int64_t bytes() const { return elements() * size_of(dtype); }
  /// The same elements in one dimension.
  [[nodiscard]] TensorSpec flat() const { return {dtype, {elements()}}; }
  friend auto operator<=>(const TensorSpec&, const TensorSpec&) = default;
};

/// "f32[64,3,7,7]", "f32[64,3,7,7]nhwc"; a scalar is "f32[]".
std::string to_string(const TensorSpec& spec);
/// The inverse of to_string; throws ConfigError.
TensorSpec tensor_spec_from(std::string_view text);

}  // namespace sim
