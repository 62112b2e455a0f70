// A named table: the one list of the entries of an extension point. Looking up an unknown name lists the valid ones.
//
//   const OpKind& kind = op_table().at("conv2d");
//   for (const OpKind& each : op_table()) fmt::print("{}\n", each.name);
//
// An entry is a small struct with a `name`; entries are listed explicitly in the folder's table.cpp.
#pragma once

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/error.hpp"

namespace sim {

template <class Entry>
class Table : public std::span<const Entry> {
 public:
  /// `what` names an entry in messages ("op kind", "strategy"); `entries` must outlive the table.
  constexpr Table(std::string_view what, std::span<const Entry> entries)
      : std::span<const Entry>(entries), what_(what) {}

  [[nodiscard]] const Entry* find(std::string_view name) const {
    for (const Entry& entry : *this)
      if (entry.name == name) return &entry;
    return nullptr;
  }
  /// Throws ConfigError: "unknown op kind 'conv3d'; known: conv2d, linear, …; did you mean 'conv2d'?".
  [[nodiscard]] const Entry& at(std::string_view name) const {
    if (const Entry* entry = find(name)) return *entry;
    std::vector<std::string_view> known;
    for (const Entry& entry : *this) known.push_back(entry.name);
    throw ConfigError("unknown {} '{}'; known: {}{}", what_, name, names(), did_you_mean(name, known));
  }
  [[nodiscard]] std::string names() const {
    std::string list;
    for (const Entry& entry : *this) list += (list.empty() ? "" : ", ") + std::string(entry.name);
    return list;
  }

 private:
  std::string_view what_;
};

/// The names of an enum's values, in their order.
///
///   constexpr EnumNames<Pass, 3> kPasses{"pass", {"forward", "backward", "update"}};
///   kPasses.of(Pass::update);       // "update"; InternalError for a value beyond the names
///   kPasses.find("backward");       // Pass::backward; nullopt for any other text
template <class Enum, std::size_t count>
struct EnumNames {
  std::string_view what;
  std::array<std::string_view, count> names;

  [[nodiscard]] std::string_view of(Enum value) const {
    const auto index = static_cast<std::size_t>(value);
    check_internal(index < count, "{} {}", what, index);
    return names[index];
  }
  [[nodiscard]] std::optional<Enum> find(std::string_view name) const {
    for (std::size_t i = 0; i < count; ++i)
      if (names[i] == name) return static_cast<Enum>(i);
    return std::nullopt;
  }
};

}  // namespace sim
