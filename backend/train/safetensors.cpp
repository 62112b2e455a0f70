#include "backend/train/safetensors.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <ranges>
#include <utility>
#include <vector>

#include "sim/error.hpp"

namespace backend {
namespace {

static_assert(std::endian::native == std::endian::little, "values are written as they lie in memory");

constexpr std::size_t kLength = 8;  // bytes of the header's length
constexpr std::string_view kMetadata = "__metadata__";

constexpr std::array<std::pair<std::string_view, at::ScalarType>, 6> kDtypes{{{"F32", at::kFloat},
                                                                              {"F64", at::kDouble},
                                                                              {"BF16", at::kBFloat16},
                                                                              {"F16", at::kHalf},
                                                                              {"I64", at::kLong},
                                                                              {"I32", at::kInt}}};

std::string_view name_of(at::ScalarType type) {
  const auto found = std::ranges::find(kDtypes, type, &decltype(kDtypes)::value_type::second);
  sim::check_internal(found != kDtypes.end(), "safetensors: dtype {}", c10::toString(type));
  return found->first;
}

nlohmann::json header_of(std::string_view bytes, const std::string& where) {
  std::uint64_t length = 0;
  if (bytes.size() >= kLength) std::memcpy(&length, bytes.data(), kLength);
  if (bytes.size() < kLength || length > bytes.size() - kLength)
    throw sim::ConfigError("{}: no safetensors file, or a truncated one ({} bytes)", where, bytes.size());
  nlohmann::json header = nlohmann::json::parse(bytes.substr(kLength, length), nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) throw sim::ConfigError("{}: no safetensors file: its header is no JSON object", where);
  return header;
}

std::map<std::string, std::string> metadata_in(const nlohmann::json& header, const std::string& where) {
  const auto found = header.find(kMetadata);
  if (found == header.end()) return {};
  try {
    return found->get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception&) {
    throw sim::ConfigError("{}: {} must be texts by name", where, kMetadata);
  }
}

}  // namespace

std::string to_bytes(const Safetensors& file) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const auto& [name, tensor] : file.tensors) tensors.emplace_back(name, tensor.contiguous());
  // So that each begins at a multiple of its element's size.
  std::ranges::stable_sort(tensors, std::greater(), [](const auto& entry) { return entry.second.element_size(); });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!file.metadata.empty()) header[kMetadata] = file.metadata;
  std::size_t values = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t begin = std::exchange(values, values + tensor.nbytes());
    header[name] = {
        {"dtype", name_of(tensor.scalar_type())}, {"shape", tensor.sizes().vec()}, {"data_offsets", {begin, values}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + kLength - 1) / kLength * kLength, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(kLength, '\0');
  std::memcpy(bytes.data(), &length, kLength);
  bytes.reserve(kLength + text.size() + values);
  bytes += text;
  for (const auto& [name, tensor] : tensors)
    bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
  return bytes;
}

Safetensors safetensors_from(std::string_view bytes, const std::string& where) {
  const nlohmann::json header = header_of(bytes, where);
  Safetensors file{.tensors = {}, .metadata = metadata_in(header, where)};
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLength);
  const std::string_view values = bytes.substr(kLength + length);
  for (const auto& [name, entry] : header.items()) {
    if (name == kMetadata) continue;
    try {
      const auto dtype = entry.at("dtype").get<std::string>();
      const auto type = std::ranges::find(kDtypes, dtype, &decltype(kDtypes)::value_type::first);
      if (type == kDtypes.end())
        throw sim::ConfigError("{}: '{}': unknown dtype '{}'; known: {}", where, name, dtype,
                               fmt::join(kDtypes | std::views::keys, ", "));
      const auto [begin, end] = entry.at("data_offsets").get<std::pair<std::uint64_t, std::uint64_t>>();
      if (begin > end || end > values.size())
        throw sim::ConfigError("{}: truncated: '{}' ends at byte {} of {} bytes of values", where, name, end,
                               values.size());
      const auto shape = entry.at("shape").get<std::vector<std::int64_t>>();
      std::uint64_t elements = 1;
      for (const std::int64_t size : shape)
        if (size < 0 || __builtin_mul_overflow(elements, static_cast<std::uint64_t>(size), &elements))
          throw sim::ConfigError("{}: '{}': no tensor has the shape [{}]", where, name, fmt::join(shape, ","));
      if (const std::uint64_t bytes_of_element = c10::elementSize(type->second);
          (end - begin) % bytes_of_element != 0 || (end - begin) / bytes_of_element != elements)
        throw sim::ConfigError("{}: '{}': has {} bytes, but {} [{}] takes {}", where, name, end - begin, dtype,
                               fmt::join(shape, ","), elements * bytes_of_element);
      at::Tensor tensor = at::empty(shape, type->second);
      std::memcpy(tensor.mutable_data_ptr(), values.data() + begin, end - begin);
      file.tensors[name] = std::move(tensor);
    } catch (const nlohmann::json::exception&) {
      throw sim::ConfigError("{}: '{}': must have dtype, shape and data_offsets", where, name);
    }
  }
  return file;
}

}  // namespace backend
