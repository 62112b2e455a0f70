#include "sim/model/imported_file.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>

#include "sim/error.hpp"
#include "sim/model/model_file.hpp"

namespace sim {
namespace {

using ImportedJson = nlohmann::json;
constexpr std::int64_t kLargestSize = 1'000'000'000;
constexpr double kLargestBelow = 1e9;
constexpr std::size_t kMostRuns = 4'000'000;

std::int64_t size_from(const ImportedJson& size, const std::string& where) {
  if (!size.is_number_integer() || size.get<std::int64_t>() < 1 || size.get<std::int64_t>() > kLargestSize)
    throw ConfigError("{}: sizes must be from 1 to {}, found {}", where, kLargestSize, size.dump());
  return size.get<std::int64_t>();
}

/// Sizes of a sample, of what has the batch in front: ["B", 3, 32, 32].
Shape per_sample(JsonObject& object) {
  const ImportedJson& sizes = object.value("shape");
  if (!sizes.is_array() || sizes.empty() || sizes[0] != "B")
    throw ConfigError("{}: 'shape' must begin with \"B\", the batch", object.where());
  Shape shape;
  for (std::size_t i = 1; i < sizes.size(); ++i) shape.push_back(size_from(sizes[i], object.where() + ": shape"));
  return shape;
}

Shape fixed_shape(JsonObject& object) {
  const ImportedJson& sizes = object.value("shape");
  if (!sizes.is_array()) throw ConfigError("{}: 'shape' must be a list of sizes", object.where());
  Shape shape;
  for (const ImportedJson& size : sizes) shape.push_back(size_from(size, object.where() + ": shape"));
  if (!fits(shape)) throw ConfigError("{}: 'shape' has more than 2^40 elements", object.where());
  return shape;
}

Initial values_from(JsonObject values, const TensorSpec& spec) {
  const std::string& where = values.where();
  const auto two = [&](std::string_view key) {
    const std::vector<double> numbers = values.numbers(key);
    if (numbers.size() != 2) throw ConfigError("{}: '{}' must be two numbers", where, key);
    values.finish();
    return std::pair{numbers[0], numbers[1]};
  };
  if (values.has("uniform")) {
    const auto [center, bound] = two("uniform");
    return {.kind = Initial::Kind::uniform, .center = center, .bound = bound};
  }
  if (values.has("full")) {
    const double value = values.number("full");
    values.finish();
    return {.kind = Initial::Kind::constant, .center = value};
  }
  /// JSON has no number for infinity.
  const auto number = [&](const ImportedJson& json) -> std::optional<double> {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (json.is_number()) return json.get<double>();
    if (!is_float(spec.dtype) || (json != "inf" && json != "-inf")) return std::nullopt;
    return json == "inf" ? kInfinity : -kInfinity;
  };
  auto runs = std::make_shared<Runs>();
  if (values.has("arange")) {
    const auto [first, step] = two("arange");
    runs->push_back({first, step, spec.elements()});
  } else if (values.has("runs")) {
    const ImportedJson& pairs = values.value("runs");
    if (!pairs.is_array() || pairs.size() > kMostRuns)
      throw ConfigError("{}: 'runs' must be a list of at most {} pairs", where, kMostRuns);
    for (const ImportedJson& pair : pairs) {
      const bool is_pair = pair.is_array() && pair.size() == 2 && pair[1].is_number_integer();
      const std::optional<double> value = is_pair ? number(pair[0]) : std::nullopt;
      if (!value || pair[1].get<std::int64_t>() < 1 || pair[1].get<std::int64_t>() > kMostElements)
        throw ConfigError("{}: 'runs' must be pairs [value, how many], found {}", where, pair.dump());
      runs->push_back({*value, 0, pair[1].get<std::int64_t>()});
    }
  } else {
    const ImportedJson& list = values.value("list");
    if (!list.is_array()) throw ConfigError("{}: 'list' must be a list of numbers", where);
    for (const ImportedJson& entry : list) {
      const std::optional<double> value = number(entry);
      if (!value) throw ConfigError("{}: 'list' must be a list of numbers, found {}", where, entry.dump());
      runs->push_back({*value, 0, 1});
    }
  }
  values.finish();
  if (const std::int64_t count = count_of(*runs); count != spec.elements())
    throw ConfigError("{}: {} values for a tensor {}", where, count, to_string(spec));
  return {.kind = Initial::Kind::runs, .runs = std::move(runs)};
}

void read_inputs(JsonObject& file, Model& model) {
  bool is_first = true;
  for (JsonObject& input : file.objects("inputs")) {
    const std::string name = input.text("name"), type = input.text("dtype");
    const bool is_whole = type == "i64";
    const double below = is_whole ? static_cast<double>(input.integer("below", 0)) : input.number("below", 0);
    const Shape shape = per_sample(input);
    if (type != "f32" && type != "i64")
      throw ConfigError("{}: 'dtype' of an input must be f32 or i64, found '{}'", input.where(), type);
    if (is_whole ? below < 1 : below < 0 || below > kLargestBelow)
      throw ConfigError(
          "{}: 'below' must be {}", input.where(),
          is_whole ? "at least 1, the first number that an input i64 can't have"
                   : "between 0 and 1e9: numbers of an input f32 lie between 0 and it, without it on both sides");
    if (is_first != (name == "input"))
      throw ConfigError("{}: the first input, and it only, is named 'input'; found '{}'", input.where(), name);
    input.finish();
    Initial values{.kind = Initial::Kind::model_input};
    if (is_whole)
      values.classes = static_cast<std::int64_t>(below);
    else
      values.center = values.bound = below / 2;
    if (is_first) {
      model.input = shape;
      model.input_values = std::move(values);
    } else {
      model.given.push_back(
          {.name = name, .spec = {dtype_from(type), shape}, .per_sample = true, .initial = std::move(values)});
    }
    is_first = false;
  }
  if (is_first) throw ConfigError("{}: 'inputs' must have one at least, named 'input'", file.where());
}

/// The target's classes are its own, or the last of its sizes.
void read_target(JsonObject target, Model& model) {
  model.positions = per_sample(target);
  if (target.has("classes")) {
    model.classes = target.integer("classes");
  } else {
    if (model.positions.empty())
      throw ConfigError("{}: a target without 'classes' needs the prediction's shape", target.where());
    model.classes = model.positions.back();
    model.positions.pop_back();
  }
  if (model.classes < 1 || model.classes > kLargestSize)
    throw ConfigError("{}: 'classes' must be from 1 to {}, found {}", target.where(), kLargestSize, model.classes);
  target.finish();
}

void read_parameters(JsonObject table, Model& model) {
  for (const std::string& name : table.keys()) {
    JsonObject parameter = table.object(name);
    ParameterSpec& spec = model.parameters[name];
    const Shape shape = fixed_shape(parameter);
    spec.name = name;
    spec.spec = {Dtype::f32, shape};
    spec.initial_bound = parameter.number("bound");
    spec.initial_center = parameter.number("center", 0);
    if (parameter.has("also")) static_cast<void>(parameter.texts("also"));
    parameter.finish();
  }
}

void read_constants(JsonObject table, Model& model) {
  for (const std::string& name : table.keys()) {
    JsonObject constant = table.object(name);
    Given given{.name = name, .spec = {dtype_from(constant.text("dtype")), fixed_shape(constant)}};
    given.initial = values_from(constant.object("values"), given.spec);
    given.is_frozen = constant.has("frozen");
    if (given.is_frozen) static_cast<void>(constant.text("frozen"));
    given.is_halved = constant.boolean("halved", false);
    if (given.is_halved && given.spec.dtype != Dtype::f32)
      throw ConfigError("{}: 'halved' is for f32, found {}", constant.where(), to_string(given.spec.dtype));
    constant.finish();
    model.given.push_back(std::move(given));
  }
}

/// Tensors of a Program are told apart by their names, and are words of its text.
void check_names(const std::string& where, const Model& model) {
  std::set<std::string_view> taken{"input", "target", "loss"};
  const auto check = [&](const std::string& name, const char* what) {
    if (name.empty() || name.find_first_of(" \t\n\"'") != std::string::npos)
      throw ConfigError("{}: '{}' is no name of {} (no spaces or quotes, not empty)", where, name, what);
    if (!taken.insert(name).second) throw ConfigError("{}: the name '{}' of {} is taken", where, name, what);
  };
  for (const Given& given : model.given) check(given.name, given.per_sample ? "an input" : "a constant");
  for (const auto& [name, parameter] : model.parameters) check(name, "a parameter");
}

/// "0+64B,0+128B": of forward and backward.
std::string amounts_text(JsonObject& object, std::string_view key, std::string_view separator) {
  constexpr std::array<std::string_view, 4> kOfUnits{"", "B", "T", "BT"}, kOfPairs{"", "B", "BB", ""};
  std::vector<std::string> amounts;
  for (const ImportedJson& numbers : object.value(key)) {
    if (!numbers.is_array() || numbers.size() < 2 || numbers.size() > 4 ||
        !std::ranges::all_of(numbers, [](const ImportedJson& number) { return number.is_number(); }))
      throw ConfigError(
          "{}: '{}' must be pairs [fixed, per sample], of forward and backward; of what compares samples [fixed, per "
          "sample, "
          "per pair of samples], of what can be cut [fixed, per sample, per unit, per sample and unit]",
          object.where(), key);
    std::string& text = amounts.emplace_back();
    for (std::size_t n = 0; n < numbers.size(); ++n)
      text += fmt::format("{}{:.0f}{}", n == 0 ? "" : "+", numbers[n].get<double>(),
                          (numbers.size() == 3 ? kOfPairs : kOfUnits)[n]);
  }
  return fmt::to_string(fmt::join(amounts, separator));
}

/// "|products=matmul:f32:0+64B:0+128B": of {"matmul f32": [[0, 64], [0, 128]]}.
std::string products_text(JsonObject products) {
  std::vector<std::string> texts;
  for (const std::string& key : products.keys()) {
    const std::size_t space = key.find(' ');
    if (space == std::string::npos || !kProductKinds.find(key.substr(0, space)))
      throw ConfigError("{}: '{}' must be one of {} and a dtype: \"matmul f32\"", products.where(), key,
                        fmt::to_string(fmt::join(kProductKinds.names, ", ")));
    texts.push_back(
        fmt::format("{}:{}:{}", key.substr(0, space), key.substr(space + 1), amounts_text(products, key, ":")));
  }
  products.finish();
  return texts.empty() ? "" : fmt::format("|products={}", fmt::join(texts, ","));
}

/// body.hpp's text of a body in the file.
std::string body_text(const std::string& name, JsonObject body) {
  const auto joined = [&](std::string_view key) {
    const std::vector<std::string> parts = body.texts(key);
    for (const std::string& part : parts)
      if (part.find_first_of("|; \t\n\"") != std::string::npos)
        throw ConfigError("{}: '{}' has spaces, quotes, '|' or ';'", body.where(), part);
    return fmt::to_string(fmt::join(parts, ";"));
  };
  const std::string inputs = joined("inputs"), parameters = joined("parameters"), output = body.text("output"),
                    saved = joined("saved"), forward = joined("forward"), backward = joined("backward"),
                    flops = amounts_text(body, "flops", ","), bytes = amounts_text(body, "bytes", ",");
  const std::vector<double> kernels = body.numbers("kernels");
  const bool by_rows = body.boolean("rows", false);
  std::string units;
  for (const char* key : {"units", "positions"})
    if (body.has(key))
      units += fmt::format("|{}={}|sums={}", key, body.integer(key), fmt::join(body.texts("sums"), ","));
  const std::string products = body.has("products") ? products_text(body.object("products")) : "";
  const bool is_own = body.boolean("own_backward", false);
  body.finish();
  return fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}|{}{}{}{}", name, inputs, parameters, output, saved, forward,
                     backward, flops, bytes, fmt::join(kernels, ","), by_rows ? "rows" : "whole", units, products,
                     is_own ? "|own" : "");
}

/// A table of bodies by name.
Bodies bodies_from(JsonObject table) {
  Bodies bodies;
  for (const std::string& name : table.keys()) {
    const std::string of_op = name.substr(0, name.find('/'));
    JsonObject body = table.object(name);
    const std::string where = body.where(), text = body_text(of_op, std::move(body));
    try {
      bodies[name] = &body_from(text);
    } catch (const ConfigError& error) {
      throw ConfigError("{}: {}", where, error.what());
    }
  }
  return bodies;
}

}  // namespace

Bodies read_imported(JsonObject& file, Model& model) {
  static_cast<void>(file.text("made_by", ""));
  model.global_batch = file.integer("global_batch", 1);
  if (model.global_batch < 1 || model.global_batch > kLargestGlobalBatch)
    throw ConfigError("{}: 'global_batch' must be from 1 to {}, found {}", file.where(), kLargestGlobalBatch,
                      model.global_batch);
  read_inputs(file, model);
  read_target(file.object("target"), model);
  read_parameters(file.object("parameters"), model);
  read_constants(file.object("constants"), model);
  check_names(file.where(), model);
  return bodies_from(file.object("bodies"));
}

Bodies read_half(JsonObject& file, Model& model) {
  if (file.has("half") && !file.value("half").is_string()) return bodies_from(file.object("half"));
  model.no_half = file.text("half", "the file is of an older importer, which didn't say what autocast does to its ops");
  return {};
}

Bodies read_half_parameters(JsonObject& file, Model& model) {
  if (file.has("half_parameters") && !file.value("half_parameters").is_string())
    return bodies_from(file.object("half_parameters"));
  model.no_half_parameters = file.text(
      "half_parameters",
      "the file doesn't say what its ops are with parameters in half precision: import it with --half-parameters");
  return {};
}

}  // namespace sim
