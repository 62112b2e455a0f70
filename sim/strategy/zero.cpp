#include "sim/strategy/zero.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "sim/error.hpp"

namespace sim {
namespace {

/// Bytes of "25MiB", or of so many elements: "2e8". nullopt for what is no size.
std::optional<double> bytes_of(std::string_view text, Dtype dtype) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  if (error != std::errc() || !std::isfinite(number) || number <= 0 || (unit != "" && unit != "MiB"))
    return std::nullopt;
  return number * (unit == "MiB" ? 1048576.0 : static_cast<double>(size_of(dtype)));
}

/// By node: the number of the first prefix that it has; of the others, which FSDP's root keeps, that of the last.
std::vector<std::uint32_t> by_prefix(const Model& model, const Strategy& strategy) {
  std::vector<std::string> prefixes;
  for (std::size_t begin = 0; begin <= strategy.units.size();) {
    const std::size_t end = std::min(strategy.units.find('+', begin), strategy.units.size());
    prefixes.push_back(strategy.units.substr(begin, end - begin));
    begin = end + 1;
  }
  std::vector<std::uint32_t> units(model.nodes.size(), static_cast<std::uint32_t>(prefixes.size()));
  for (std::uint32_t p = 0; p < prefixes.size(); ++p) {
    bool found = false;
    for (std::size_t n = 0; n < units.size(); ++n) {
      const std::string& name = model.nodes[n].name;
      if (name != prefixes[p] && !name.starts_with(prefixes[p] + ".")) continue;
      found = true;
      units[n] = std::min(units[n], p);
    }
    if (!found)
      throw ConfigError(
          "strategy '{}': units '{}' matches no node of model '{}'; allowed: layer, block, all, a size such as 25MiB, "
          "or a prefix such as {}",
          strategy.text(), prefixes[p], model.name, model.nodes[0].name);
  }
  return units;
}

}  // namespace

std::string block_of(const Model& model, const std::string& node) {
  const auto holds = [&](const std::string& unit) { return node == unit || node.starts_with(unit + "."); };
  if (const auto unit = std::ranges::find_if(model.units, holds); unit != model.units.end()) return *unit;
  return node.substr(0, node.rfind('.'));
}

std::optional<ParameterCut> parameter_cut(const Model& model, const Strategy& strategy) {
  if (strategy.zero == 0) return std::nullopt;
  ParameterCut cut{.by_rows = !strategy.flat,
                   .weights = strategy.zero == 3,
                   .whole_up_to = static_cast<std::int64_t>(strategy.persistence),
                   .reshard = strategy.reshard,
                   .reshard_after_backward = strategy.pp == 1 || strategy.reshard,
                   .reuse_elements = strategy.reuse_elements,
                   .prefetch = strategy.prefetch,
                   .prefetch_elements = strategy.prefetch_elements,
                   .after_backward = strategy.zero == 1 && !strategy.overlap,
                   .half_parameters = strategy.half_parameters,
                   .half_sums = strategy.half_sums,
                   .scatters = strategy.scatters};
  for (const auto& [name, parameter] : model.parameters)
    if (cut.by_rows && parameter.spec.shape.empty())
      throw ConfigError(
          "strategy '{}': parameter '{}' of model '{}' is a single number, without rows to cut (PyTorch's fully_shard "
          "refuses it, too): give it the shape [1], or use zero3",
          strategy.text(), name, model.name);
  cut.unit_of.resize(model.nodes.size(), 0);
  if (strategy.units == "layer") {
    for (std::uint32_t n = 0; n < cut.unit_of.size(); ++n) cut.unit_of[n] = n;
  } else if (strategy.units == "block") {
    std::map<std::string, std::uint32_t> blocks;
    for (std::size_t n = 0; n < cut.unit_of.size(); ++n)
      cut.unit_of[n] =
          blocks.try_emplace(block_of(model, model.nodes[n].name), static_cast<std::uint32_t>(blocks.size()))
              .first->second;
  } else if (const std::optional<double> bytes = bytes_of(strategy.units, model.dtype)) {
    cut.unit_bytes = *bytes;
  } else if (strategy.units != "all") {
    cut.unit_of = by_prefix(model, strategy);
  }
  return cut;
}

}  // namespace sim
