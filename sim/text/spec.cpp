#include "sim/text/spec.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/error.hpp"

namespace sim {
namespace {

using Json = nlohmann::json;

[[noreturn]] void wrong_type(const std::string& where, std::string_view key, std::string_view expected,
                             const Json& found) {
  std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "…";
  throw ConfigError("{}: '{}' must be {}, found {}", where, key, expected, text);
}

/// Copying and writing a JSON value recurse. No format of ours goes deeper than 10.
constexpr int kDeepestJson = 64;

/// The place of a byte, counted from 0: "line 3, column 14", in bytes.
std::string place_of(std::string_view text, std::size_t byte) {
  const std::string_view before = text.substr(0, byte);
  const std::size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  return fmt::format("line {}, column {}", 1 + std::ranges::count(before, '\n'), before.size() - line_begin + 1);
}

void check_depth(std::string_view text, const std::string& where) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text && c == '\\')
      ++i;  // what is escaped can't end the text
    else if (c == '"')
      in_text = !in_text;
    else if (!in_text && (c == ']' || c == '}'))
      --depth;
    else if (!in_text && (c == '[' || c == '{') && ++depth > kDeepestJson)
      throw ConfigError("{}: {}: lists and objects must lie at most {} deep in each other", where, place_of(text, i),
                        kDeepestJson);
  }
}

/// JSON has no largest number; ours is 2^63 − 1.
bool is_whole(const Json& x) {
  return x.is_number_integer() &&
         (!x.is_number_unsigned() || x.get<std::uint64_t>() <= std::numeric_limits<std::int64_t>::max());
}

template <class T, class Accepts>
std::vector<T> list_of(const Json& found, const std::string& where, std::string_view key, std::string_view expected,
                       const Accepts& accepts) {
  if (!found.is_array() || !std::all_of(found.begin(), found.end(), accepts)) wrong_type(where, key, expected, found);
  return found.get<std::vector<T>>();
}

/// All, or as many as a message of one readable line has room for.
std::string first_names(const std::vector<std::string>& names) {
  constexpr std::size_t kRoom = 205, kShort = 150;
  const std::string all = fmt::to_string(fmt::join(names, ", "));
  if (all.size() <= kRoom) return all;
  return all.substr(0, all.rfind(", ", kShort)) + ", … (paragauge list)";
}

}  // namespace

std::string_view head_of(std::string_view text) {
  constexpr std::string_view kPath = ".json";
  for (std::size_t at = text.find(kPath); at != std::string_view::npos; at = text.find(kPath, at + 1))
    if (const std::size_t end = at + kPath.size(); end == text.size() || text[end] == ',') return text.substr(0, end);
  const std::string_view first = text.substr(0, text.find(','));
  return first.find('=') == std::string_view::npos ? first : std::string_view();
}

SpecText::SpecText(std::string_view text, std::string_view what) : what_(what), whole_(text), head_(head_of(text)) {
  if (head_.size() == text.size()) return;
  std::string_view rest = text.substr(head_.empty() ? 0 : head_.size() + 1);
  for (bool is_last = false; !is_last;) {
    const std::size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    is_last = comma == std::string_view::npos;
    if (!is_last) rest.remove_prefix(comma + 1);
    const std::size_t equals = item.find('=');
    if (item.empty()) throw ConfigError("{} '{}': an empty item; expected name,key=value,…", what_, whole_);
    if (equals == std::string_view::npos)
      throw ConfigError("{} '{}': '{}' has no '='; expected key=value", what_, whole_, item);
    const std::string_view key = item.substr(0, equals);
    if (key.empty() || equals + 1 == item.size())
      throw ConfigError("{} '{}': '{}' lacks a key or a value; expected key=value", what_, whole_, item);
    if (has(key)) throw ConfigError("{} '{}': '{}' is given twice", what_, whole_, key);
    items_.emplace_back(key, item.substr(equals + 1));
  }
}

std::optional<std::string> SpecText::text(std::string_view key) const {
  for (const auto& [name, value] : items_)
    if (name == key) return value;
  return std::nullopt;
}

std::int64_t SpecText::integer(std::string_view key, std::int64_t otherwise, std::int64_t minimum,
                               std::int64_t maximum) const {
  const std::optional<std::string> value = text(key);
  return value ? integer_in(key, *value, minimum, maximum) : otherwise;
}

std::int64_t SpecText::integer_in(std::string_view key, std::string_view part, std::int64_t minimum,
                                  std::int64_t maximum) const {
  std::int64_t result = 0;
  const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), result);
  if (error != std::errc() || end != part.data() + part.size() || result < minimum || result > maximum)
    throw ConfigError("{} '{}': {}={} must be a whole number from {} to {}", what_, whole_, key, part, minimum,
                      maximum);
  return result;
}

double SpecText::number(std::string_view key, double otherwise, double minimum, double maximum) const {
  const std::optional<std::string> value = text(key);
  if (!value) return otherwise;
  double result = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), result);
  if (error != std::errc() || end != value->data() + value->size() || !(result >= minimum && result <= maximum))
    throw ConfigError("{} '{}': {}={} must be a number from {} to {}", what_, whole_, key, *value, minimum, maximum);
  return result;
}

void SpecText::finish(const std::vector<std::string_view>& known) const {
  for (const auto& [key, value] : items_)
    if (std::find(known.begin(), known.end(), key) == known.end())
      throw ConfigError("{} '{}': unknown key '{}'; known: {}{}", what_, whole_, key,
                        fmt::to_string(fmt::join(known, ", ")), did_you_mean(key, known));
}

JsonObject::JsonObject(const Json& object, std::string where)
    : object_(std::make_shared<const Json>(object)), where_(std::move(where)) {
  if (!object_->is_object()) throw ConfigError("{}: must be a JSON object", where_);
}

bool JsonObject::has(std::string_view key) {
  asked_.emplace(key);
  return object_->find(key) != object_->end();
}

const Json& JsonObject::value(std::string_view key) {
  if (!has(key)) throw ConfigError("{}: '{}' is missing", where_, key);
  return object_->at(std::string(key));
}

std::string JsonObject::text(std::string_view key, std::optional<std::string_view> otherwise) {
  if (otherwise && !has(key)) return std::string(*otherwise);
  const Json& found = value(key);
  if (!found.is_string()) wrong_type(where_, key, "a text", found);
  return found.get<std::string>();
}

double JsonObject::number(std::string_view key, std::optional<double> otherwise) {
  if (otherwise && !has(key)) return *otherwise;
  const Json& found = value(key);
  if (!found.is_number()) wrong_type(where_, key, "a number", found);
  const double result = found.get<double>();
  if (!std::isfinite(result)) wrong_type(where_, key, "a finite number", found);
  return result;
}

std::int64_t JsonObject::integer(std::string_view key, std::optional<std::int64_t> otherwise) {
  if (otherwise && !has(key)) return *otherwise;
  const Json& found = value(key);
  if (!is_whole(found)) wrong_type(where_, key, "a whole number", found);
  return found.get<std::int64_t>();
}

bool JsonObject::boolean(std::string_view key, bool otherwise) {
  if (!has(key)) return otherwise;
  const Json& found = value(key);
  if (!found.is_boolean()) wrong_type(where_, key, "true or false", found);
  return found.get<bool>();
}

std::vector<std::int64_t> JsonObject::integers(std::string_view key) {
  return list_of<std::int64_t>(value(key), where_, key, "a list of whole numbers", is_whole);
}

std::vector<double> JsonObject::numbers(std::string_view key) {
  return list_of<double>(value(key), where_, key, "a list of numbers", std::mem_fn(&Json::is_number));
}

std::vector<std::string> JsonObject::texts(std::string_view key) {
  return list_of<std::string>(value(key), where_, key, "a list of texts", std::mem_fn(&Json::is_string));
}

JsonObject JsonObject::object(std::string_view key) {
  const Json& found = value(key);
  if (!found.is_object()) wrong_type(where_, key, "an object", found);
  return {found, fmt::format("{}: {}", where_, key)};
}

std::vector<JsonObject> JsonObject::objects(std::string_view key) {
  const Json& found = value(key);
  if (!found.is_array()) wrong_type(where_, key, "a list of objects", found);
  std::vector<JsonObject> result;
  for (std::size_t i = 0; i < found.size(); ++i)
    result.emplace_back(found[i], fmt::format("{}: {}[{}]", where_, key, i));
  return result;
}

std::vector<std::string> JsonObject::keys() const {
  std::vector<std::string> names;
  for (const auto& [key, value] : object_->items()) names.push_back(key);
  return names;
}

void JsonObject::finish() const {
  for (const auto& [key, value] : object_->items())
    if (!asked_.contains(key))
      throw ConfigError("{}: unknown key '{}'; known: {}{}", where_, key, fmt::to_string(fmt::join(asked_, ", ")),
                        did_you_mean(key, {asked_.begin(), asked_.end()}));
}

JsonObject parse_json(std::string_view text, const std::string& where) {
  check_depth(text, where);
  try {
    return {Json::parse(text), where};
  } catch (const Json::parse_error& error) {
    const std::size_t byte = std::max<std::size_t>(error.byte, 1) - 1;
    throw ConfigError("{}: not valid JSON at {}{}", where, place_of(text, byte),
                      byte >= text.size() ? " (the file is truncated)" : "");
  } catch (const Json::out_of_range& error) {  // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
    const std::string_view reason = error.what();
    throw ConfigError("{}: not valid JSON: {}", where, reason.substr(reason.find("] ") + 2));
  }
}

JsonObject read_json_file(const std::filesystem::path& path) { return parse_json(read_text_file(path), path.string()); }

void check_format(JsonObject& file, std::string_view name, int version, std::string_view remedy) {
  const std::string format = file.text("format"), &where = file.where();
  const std::string expected = fmt::format("{}-{}", name, version);
  if (format == expected) return;
  if (format.starts_with(fmt::format("{}-", name))) {
    int found = 0;
    const auto [end, error] = std::from_chars(format.data() + name.size() + 1, format.data() + format.size(), found);
    if (error == std::errc() && end == format.data() + format.size()) {
      if (found < version) throw ConfigError("{}: format '{}' is older than '{}'; {}", where, format, expected, remedy);
      throw ConfigError("{}: format '{}' is newer than '{}'; it needs a newer paragauge", where, format, expected);
    }
  }
  throw ConfigError("{}: format '{}' is not '{}'", where, format, expected);
}

std::filesystem::path catalog_directory() {
  if (const char* directory = std::getenv("PARAGAUGE_CATALOG_DIR")) return directory;
  std::error_code error;  // an installed program's lies in share/ beside its bin/
  const std::filesystem::path installed =
      std::filesystem::read_symlink("/proc/self/exe", error).parent_path().parent_path() / "share/paragauge/catalog";
  return std::filesystem::is_directory(installed, error) ? installed : PARAGAUGE_CATALOG_DIR;
}

std::vector<std::string> catalog_names(std::string_view folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(catalog_directory() / folder, error))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  if (error) throw ConfigError("catalog folder {}: {}", (catalog_directory() / folder).string(), error.message());
  std::sort(names.begin(), names.end());
  return names;
}

std::filesystem::path catalog_file(std::string_view folder, std::string_view what, std::string_view name) {
  if (name.ends_with(".json")) return name;
  const std::vector<std::string> names = catalog_names(folder);
  if (std::find(names.begin(), names.end(), name) == names.end())
    throw ConfigError("unknown {} '{}'; known: {}, or a path to a .json file{}", what, name, first_names(names),
                      did_you_mean(name, {names.begin(), names.end()}));
  return catalog_directory() / folder / (std::string(name) + ".json");
}

}  // namespace sim
