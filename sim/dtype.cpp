#include "sim/dtype.hpp"

#include <array>
#include <charconv>
#include <utility>

#include "sim/error.hpp"

namespace sim {
namespace {

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::int64_t size;
};
constexpr std::array<DtypeRow, 5> kDtypes{{{Dtype::f32, "f32", 4},
                                           {Dtype::f64, "f64", 8},
                                           {Dtype::bf16, "bf16", 2},
                                           {Dtype::f16, "f16", 2},
                                           {Dtype::i64, "i64", 8}}};

}  // namespace

std::string_view to_string(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }

Dtype dtype_from(std::string_view name) {
  for (const DtypeRow& row : kDtypes)
    if (row.name == name) return row.dtype;
  throw ConfigError("unknown dtype '{}'; known: f32, f64, bf16, f16, i64", name);
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
  std::int64_t count = 1;
  for (std::int64_t size : shape) count *= size;
  return count;
}

std::string to_string(const TensorSpec& spec) {
  std::string text(to_string(spec.dtype));
  text += '[';
  for (std::size_t i = 0; i < spec.shape.size(); ++i) text += (i ? "," : "") + std::to_string(spec.shape[i]);
  return text + ']';
}

TensorSpec tensor_spec_from(std::string_view text) {
  const std::size_t open = text.find('[');
  if (open == std::string_view::npos || !text.ends_with(']'))
    throw ConfigError("'{}' is not a tensor type; expected e.g. f32[16,3,32,32]", text);
  TensorSpec spec{dtype_from(text.substr(0, open)), {}};
  std::string_view sizes = text.substr(open + 1, text.size() - open - 2);
  // Bounds the product too, so that a byte count can't overflow.
  std::int64_t count = 1;
  while (!sizes.empty()) {
    std::int64_t size = 0;
    const auto [end, error] = std::from_chars(sizes.data(), sizes.data() + sizes.size(), size);
    const bool last = end == sizes.data() + sizes.size();
    if (error != std::errc() || size < 1 || size > kMostElements / count || (!last && *end != ','))
      throw ConfigError("'{}' is not a tensor type; sizes are positive integers, at most 2^40 elements", text);
    count *= size;
    spec.shape.push_back(size);
    const std::size_t used = static_cast<std::size_t>(end - sizes.data());
    if (!last && used + 1 == sizes.size()) throw ConfigError("'{}' is not a tensor type; it ends in a comma", text);
    sizes.remove_prefix(last ? used : used + 1);
  }
  return spec;
}

}  // namespace sim
