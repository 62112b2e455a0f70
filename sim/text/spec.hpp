// Strict reading of what a user writes: option texts and JSON files.
//
//   SpecText text("pipeline,pp=2,schedule=gpipe", "strategy");
//   int stages = text.integer("pp", 1, 1, 16384);
//   text.finish({"pp", "schedule"});             // an unknown key: ConfigError that lists the known ones
//
//   JsonObject file = read_json_file(path);      // unreadable, truncated, no object: ConfigError that says where
//   double latency = file.number("latency_us");  // missing or wrong type: ConfigError with path and key
//   file.finish();                               // a key nobody asked for: ConfigError that lists those asked for
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/text/file.hpp"

namespace sim {

/// What stands before the keys: all until the first ','; or, of a path, until the first ".json" before a ',' or the
/// end, so that folders' names may have '=' and ',' ("runs/lr=0.1,mom=0.9/net.json,image=64"). Empty where the first
/// item is a key.
std::string_view head_of(std::string_view text);

/// `head,key=value,key=value`; the head may be missing when the first item has a '='.
class SpecText {
 public:
  /// `what` names the text in messages ("strategy", "model").
  SpecText(std::string_view text, std::string_view what);

  [[nodiscard]] const std::string& whole() const { return whole_; }
  [[nodiscard]] const std::string& head() const { return head_; }
  [[nodiscard]] bool has(std::string_view key) const { return text(key).has_value(); }
  [[nodiscard]] std::optional<std::string> text(std::string_view key) const;
  /// The value of `key`, or `otherwise` if it isn't given; ConfigError unless minimum ≤ value ≤ maximum.
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t otherwise, std::int64_t minimum,
                                     std::int64_t maximum) const;
  /// The same of a part of the key's value: a 2 of levels=2x2.
  [[nodiscard]] std::int64_t integer_in(std::string_view key, std::string_view part, std::int64_t minimum,
                                        std::int64_t maximum) const;
  [[nodiscard]] double number(std::string_view key, double otherwise, double minimum, double maximum) const;
  [[nodiscard]] const std::vector<std::pair<std::string, std::string>>& items() const { return items_; }
  /// ConfigError if a key isn't in `known`.
  void finish(const std::vector<std::string_view>& known) const;

 private:
  std::string what_, whole_, head_;
  std::vector<std::pair<std::string, std::string>> items_;
};

/// A JSON object that remembers where it is and which keys were asked for.
class JsonObject {
 public:
  JsonObject(const nlohmann::json& object, std::string where);

  [[nodiscard]] bool has(std::string_view key);
  /// The value, or `otherwise` where it is missing.
  std::string text(std::string_view key, std::optional<std::string_view> otherwise = std::nullopt);
  double number(std::string_view key, std::optional<double> otherwise = std::nullopt);
  std::int64_t integer(std::string_view key, std::optional<std::int64_t> otherwise = std::nullopt);
  bool boolean(std::string_view key, bool otherwise);
  std::vector<std::int64_t> integers(std::string_view key);
  std::vector<double> numbers(std::string_view key);
  std::vector<std::string> texts(std::string_view key);
  JsonObject object(std::string_view key);
  std::vector<JsonObject> objects(std::string_view key);
  /// The value itself, marked as read.
  const nlohmann::json& value(std::string_view key);
  [[nodiscard]] std::vector<std::string> keys() const;
  /// "sim/catalog/models/x.json: nodes[3]".
  [[nodiscard]] const std::string& where() const { return where_; }
  /// ConfigError if the object has a key that nobody asked for.
  void finish() const;

 private:
  std::shared_ptr<const nlohmann::json> object_;
  std::string where_;
  std::set<std::string, std::less<>> asked_;
};

JsonObject read_json_file(const std::filesystem::path& path);
/// `where` names the text in messages.
JsonObject parse_json(std::string_view text, const std::string& where);

/// ConfigError unless the object's "format" is `name`-`version`; `remedy` is what to do about an older file:
///   p.json: format 'paragauge-profile-0' is older than 'paragauge-profile-1'; calibrate again
void check_format(JsonObject& file, std::string_view name, int version, std::string_view remedy);

/// The folder of models/, devices/ and clusters/: PARAGAUGE_CATALOG_DIR in the environment, or the source tree's
/// sim/catalog.
std::filesystem::path catalog_directory();
/// `name` is the name of a file in catalog/<folder> without ".json", or a path that ends in ".json".
/// ConfigError that lists the catalog when it is neither.
std::filesystem::path catalog_file(std::string_view folder, std::string_view what, std::string_view name);
std::vector<std::string> catalog_names(std::string_view folder);

}  // namespace sim
