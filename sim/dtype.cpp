#include "sim/dtype.hpp"

#include <fmt/ranges.h>

#include <array>
#include <charconv>
#include <functional>
#include <numeric>
#include <ranges>

#include "sim/error.hpp"

namespace sim {
namespace {

struct DtypeRow {
  std::string_view name;
  std::int64_t size;
};
constexpr std::string_view kChannelsLast = "nhwc";
// By Dtype.
constexpr std::array<DtypeRow, 7> kDtypes{
    {{"f32", 4}, {"f64", 8}, {"bf16", 2}, {"f16", 2}, {"i64", 8}, {"i32", 4}, {"bool", 1}}};

constexpr std::array<std::string_view, 5> kPrecisions{"f32", "tf32", "ieee", "bf16", "fp16"};  // by Precision

}  // namespace

std::string_view to_string(Precision precision) { return kPrecisions[static_cast<std::size_t>(precision)]; }

Precision precision_from(std::string_view name) {
  for (std::size_t i = 0; i < kPrecisions.size(); ++i)
    if (kPrecisions[i] == name) return static_cast<Precision>(i);
  throw ConfigError("unknown precision '{}'; known: {}", name, fmt::join(kPrecisions, ", "));
}

std::string_view to_string(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }

Dtype dtype_from(std::string_view name) {
  for (std::size_t i = 0; i < kDtypes.size(); ++i)
    if (kDtypes[i].name == name) return static_cast<Dtype>(i);
  throw ConfigError("unknown dtype '{}'; known: f32, f64, bf16, f16, i64, i32, bool", name);
}

std::int64_t size_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].size; }

bool fits(const Shape& shape) {
  std::int64_t count = 1;
  for (std::int64_t size : shape) {
    if (size < 1 || size > kMostElements / count) return false;
    count *= size;
  }
  return true;
}

std::int64_t elements(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies());
}

std::string to_string(const TensorSpec& spec) {
  return fmt::format("{}[{}]{}", to_string(spec.dtype), fmt::join(spec.shape, ","),
                     spec.channels_last ? kChannelsLast : "");
}

TensorSpec tensor_spec_from(std::string_view text) {
  const bool channels_last = text.ends_with(kChannelsLast);
  if (channels_last) text.remove_suffix(kChannelsLast.size());
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos || !text.ends_with(']'))
    throw ConfigError("'{}' is not a tensor type; expected e.g. f32[16,3,32,32]", text);
  TensorSpec spec{dtype_from(text.substr(0, open)), {}, channels_last};
  const std::string_view sizes = text.substr(open + 1, text.size() - open - 2);
  for (const auto part : std::views::split(sizes, ',')) {
    const std::string_view size(part.begin(), part.end());
    if (size.empty() && size.data() == sizes.data() + sizes.size())
      throw ConfigError("'{}' is not a tensor type; it ends in a comma", text);
    const char* last = size.data() + size.size();
    const auto [end, error] = std::from_chars(size.data(), last, spec.shape.emplace_back());
    if (error != std::errc() || end != last || !fits(spec.shape))
      throw ConfigError("'{}' is not a tensor type; sizes are positive integers, at most 2^40 elements", text);
  }
  if (channels_last && spec.shape.size() != 4)
    throw ConfigError("'{}{}' is not a tensor type; only four dimensions can be {}", text, kChannelsLast,
                      kChannelsLast);
  return spec;
}

}  // namespace sim
