#include "sim/report/result.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <tuple>

#include "sim/error.hpp"
#include "sim/program/memory.hpp"
#include "sim/text/file_format.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using Json = nlohmann::ordered_json;
using nlohmann::literals::operator""_json_pointer;

struct Part {
  std::string_view name;
  double StepTime::*value;
};
constexpr std::array<Part, 5> kParts{{{"step_s", &StepTime::step_s},
                                      {"compute_s", &StepTime::compute_s},
                                      {"exposed_communication_s", &StepTime::exposed_communication_s},
                                      {"bubble_s", &StepTime::bubble_s},
                                      {"host_s", &StepTime::host_s}}};

struct MemoryPart {
  std::string_view name;
  std::optional<std::int64_t> CellMemory::*value;
};
constexpr std::array<MemoryPart, 7> kMemoryParts{
    {{"predicted_peak_bytes", &CellMemory::predicted_peak_bytes},
     {"measured_peak_bytes", &CellMemory::measured_peak_bytes},
     {"allocator_peak_bytes", &CellMemory::allocator_peak_bytes},
     {"predicted_allocator_peak_bytes", &CellMemory::predicted_allocator_peak_bytes},
     {"predicted_resident_peak_bytes", &CellMemory::predicted_resident_peak_bytes},
     {"resident_peak_bytes", &CellMemory::resident_peak_bytes},
     {"capacity_bytes", &CellMemory::capacity_bytes}}};

template <class T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

Json to_json(const Round& round) {
  Json json{{"round", round.round}};
  Json& predicted = json["predicted"] = Json::object();
  for (const auto& [cost_model, time] : round.predicted)
    for (const Part& part : kParts) predicted[cost_model][part.name] = time.*part.value;
  json["replayed_s"] = or_null(round.replayed_s);
  Json& measured = json["measured"];
  for (const Part& part : kParts) {
    Json& list = measured[part.name] = Json::array();
    for (const StepTime& time : round.measured) list.push_back(time.*part.value);
  }
  Json& attribution = json["attribution"] = Json::object();
  for (const auto& [cost_model, classes] : round.attribution) {
    Json& list = attribution[cost_model] = Json::array();
    for (const ClassError& c : classes)
      list.push_back(
          {{"class", c.name}, {"predicted_s", c.predicted_s}, {"measured_s", c.measured_s}, {"effect_s", c.effect_s}});
  }
  return json;
}

// Longer and shorter times have sums and ratios that are no numbers any more.
constexpr double kLongest_s = 1e9, kShortest_s = 1e-15;

double seconds(const JsonObject& json, std::string_view key, double value) {
  if (!(std::abs(value) <= kLongest_s))
    throw ConfigError("{}: '{}' must be from {} to {} s, found {}", json.where(), key, -kLongest_s, kLongest_s, value);
  return value;
}

double positive(const JsonObject& json, std::string_view key, double value) {
  if (!(value > 0)) throw ConfigError("{}: '{}' must be positive, found {}", json.where(), key, value);
  if (value < kShortest_s || value > kLongest_s)
    throw ConfigError("{}: '{}' must be from {} to {} s, found {}", json.where(), key, kShortest_s, kLongest_s, value);
  return value;
}

std::int64_t at_least(JsonObject& json, std::string_view key, std::int64_t minimum) {
  const std::int64_t value = json.integer(key);
  if (value < minimum) throw ConfigError("{}: '{}' must be at least {}, found {}", json.where(), key, minimum, value);
  return value;
}

Round read_round(JsonObject& json) {
  Round round;
  const std::int64_t number = at_least(json, "round", 0);
  if (number > 1'000'000) throw ConfigError("{}: 'round' must be at most 1000000, found {}", json.where(), number);
  round.round = static_cast<int>(number);
  JsonObject predicted = json.object("predicted");
  for (const std::string& cost_model : predicted.keys()) {
    JsonObject parts = predicted.object(cost_model);
    StepTime& time = round.predicted[cost_model];
    for (const Part& part : kParts)
      time.*part.value = part.name == "step_s" ? positive(parts, part.name, parts.number(part.name))
                                               : seconds(parts, part.name, parts.number(part.name));
    parts.finish();
  }
  if (!json.value("replayed_s").is_null()) round.replayed_s = positive(json, "replayed_s", json.number("replayed_s"));
  JsonObject measured = json.object("measured");
  round.measured.resize(measured.numbers("step_s").size());
  for (const Part& part : kParts) {
    const std::vector<double> values = measured.numbers(part.name);
    if (values.size() != round.measured.size())
      throw ConfigError("{}: '{}' has {} values, 'step_s' has {}", measured.where(), part.name, values.size(),
                        round.measured.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      round.measured[i].*part.value =
          part.name == "step_s" ? positive(measured, part.name, values[i]) : seconds(measured, part.name, values[i]);
  }
  measured.finish();
  JsonObject attribution = json.object("attribution");
  for (const std::string& cost_model : attribution.keys())
    for (JsonObject& row : attribution.objects(cost_model)) {
      ClassError& c = round.attribution[cost_model].emplace_back();
      c.name = row.text("class");
      c.predicted_s = seconds(row, "predicted_s", row.number("predicted_s"));
      c.measured_s = seconds(row, "measured_s", row.number("measured_s"));
      c.effect_s = seconds(row, "effect_s", row.number("effect_s"));
      row.finish();
    }
  json.finish();
  return round;
}

CellMemory read_memory(JsonObject json) {
  CellMemory memory;
  for (const MemoryPart& part : kMemoryParts)
    if (json.has(part.name) && !json.value(part.name).is_null()) memory.*part.value = at_least(json, part.name, 0);
  JsonObject classes = json.object("predicted_at_peak_bytes");
  for (const std::string& name : classes.keys()) memory.predicted_at_peak_bytes[name] = at_least(classes, name, 0);
  if (json.has("needed_bytes")) {
    JsonObject uses = json.object("needed_bytes");
    for (const std::string& name : uses.keys()) memory.needed_bytes[name] = at_least(uses, name, 0);
    if (!memory.needed()) throw ConfigError("{}: 'needed_bytes' add up to more than 2^60", json.where());
  }
  json.finish();
  return memory;
}

Cell read_cell(JsonObject& json) {
  Cell cell;
  cell.model = json.text("model");
  cell.strategy = json.text("strategy");
  static_cast<void>(SpecText(cell.strategy, json.where() + ": strategy"));  // ConfigError where it is none
  cell.world = json.text("world");
  cell.executor = json.text("executor");
  cell.ranks = at_least(json, "ranks", 1);
  cell.replicas = at_least(json, "replicas", 1);
  cell.microbatches = at_least(json, "microbatches", 1);
  cell.global_batch = at_least(json, "global_batch", 1);
  if (cell.replicas > cell.global_batch || cell.microbatches > cell.global_batch / cell.replicas)
    throw ConfigError("{}: replicas={} of microbatches={} are more than the global_batch={}", json.where(),
                      cell.replicas, cell.microbatches, cell.global_batch);
  cell.device = json.text("device", "");
  if (json.has("devices")) cell.devices = at_least(json, "devices", 0);
  if (!json.value("skipped").is_null()) cell.skipped = json.text("skipped");
  if (!json.value("verify_error").is_null()) cell.verify_error = json.number("verify_error");
  cell.memory = read_memory(json.object("memory"));
  std::set<int> numbers;
  for (JsonObject& row : json.objects("rounds")) {
    cell.rounds.push_back(read_round(row));
    if (!numbers.insert(cell.rounds.back().round).second)
      throw ConfigError("{}: round {} is there twice", row.where(), cell.rounds.back().round);
  }
  json.finish();
  return cell;
}

}  // namespace

Cell& Result::cell(std::string_view model, std::string_view strategy, std::string_view world,
                   std::string_view executor) {
  for (Cell& cell : cells)
    if (cell.model == model && cell.strategy == strategy && cell.world == world && cell.executor == executor)
      return cell;
  Cell& added = cells.emplace_back();
  added.model = model, added.strategy = strategy, added.world = world, added.executor = executor;
  return added;
}

Cell& Result::cell(const Program& program, std::string_view world, std::string_view executor) {
  Cell& found = cell(program.model, program.strategy, world, executor);
  found.ranks = program.ranks();
  found.replicas = program.replicas;
  found.microbatches = program.microbatches;
  found.global_batch = program.global_batch;
  return found;
}

std::optional<std::int64_t> CellMemory::needed() const {
  if (needed_bytes.empty()) return std::nullopt;
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  std::int64_t sum = 0;
  for (const auto& [use, bytes] : needed_bytes) {
    if (bytes > kMost - sum) return std::nullopt;
    sum += bytes;
  }
  return sum;
}

std::optional<bool> CellMemory::fits() const {
  const std::optional<std::int64_t> bytes = needed();
  return bytes && capacity_bytes ? std::optional(*bytes <= *capacity_bytes) : std::nullopt;
}

void place(Cell& cell, const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes) {
  CellMemory& memory = cell.memory;
  memory.predicted_peak_bytes = 0;
  for (const Role& role : program.roles) {
    const Memory peak = peak_memory(role);
    if (peak.peak_bytes < *memory.predicted_peak_bytes) continue;
    memory.predicted_peak_bytes = peak.peak_bytes;
    for (int c = 0; c < kTensorClasses; ++c)
      memory.predicted_at_peak_bytes[std::string(to_string(static_cast<TensorClass>(c)))] =
          peak.at_peak[static_cast<std::size_t>(c)];
  }
  const MemoryFit fit = fit_memory(program, cluster, workspace_bytes);
  cell.device = cluster.device_name();
  cell.devices = fit.devices;
  if (fit.capacity_bytes > 0) memory.capacity_bytes = fit.capacity_bytes;
  for (int use = 0; use < kMemoryUses; ++use)
    memory.needed_bytes[std::string(to_string(static_cast<MemoryUse>(use)))] =
        fit.needed[static_cast<std::size_t>(use)];
}

int Result::next_round() const {
  const auto lacks = [](const Cell& cell, int round) {
    return cell.skipped.empty() && std::ranges::none_of(cell.rounds, [&](const Round& r) { return r.round == round; });
  };
  int next = 0;
  if (std::ranges::all_of(cells, [](const Cell& cell) { return !cell.skipped.empty(); })) return next;
  while (std::ranges::none_of(cells, [&](const Cell& cell) { return lacks(cell, next); })) ++next;
  return next;
}

nlohmann::ordered_json to_json(const Cell& cell) {
  Json json{{"model", cell.model},
            {"strategy", cell.strategy},
            {"world", cell.world},
            {"executor", cell.executor},
            {"ranks", cell.ranks},
            {"replicas", cell.replicas},
            {"microbatches", cell.microbatches},
            {"global_batch", cell.global_batch},
            {"device", cell.device},
            {"devices", cell.devices},
            {"skipped", cell.skipped.empty() ? Json() : Json(cell.skipped)},
            {"verify_error", or_null(cell.verify_error)}};
  Json& memory = json["memory"];
  for (const MemoryPart& part : kMemoryParts) memory[part.name] = or_null(cell.memory.*part.value);
  memory["predicted_at_peak_bytes"] = Json::object();
  for (const auto& [name, bytes] : cell.memory.predicted_at_peak_bytes) memory["predicted_at_peak_bytes"][name] = bytes;
  if (!cell.memory.needed_bytes.empty()) memory["needed_bytes"] = cell.memory.needed_bytes;
  json["rounds"] = Json::array();
  for (const Round& round : cell.rounds) json["rounds"].push_back(to_json(round));
  return json;
}

Result result_from_json(std::string_view text, const std::string& where) {
  JsonObject file = parse_json(text, where);
  check_format(file, "paragauge-result", 1, "measure again into a new file");
  Result result;
  file.object("context");  // must be an object
  result.context = file.value("context");
  std::set<std::tuple<std::string, std::string, std::string, std::string>> names;
  for (JsonObject& row : file.objects("cells")) {
    const Cell& cell = result.cells.emplace_back(read_cell(row));
    if (!names.emplace(cell.model, cell.strategy, cell.world, cell.executor).second)
      throw ConfigError("{}: the cell {} × {} × {} × {} is there twice", row.where(), cell.model, cell.strategy,
                        cell.world, cell.executor);
  }
  for (const char* computed : {"columns", "rows", "summary"}) file.objects(computed);
  file.finish();
  // Older files name a CPU's device only in their context.
  const auto cpu = result.context.value("/environment/cpu/model"_json_pointer, nlohmann::json());
  if (result.context.value("device", "") == "cpu" && cpu.is_string())
    for (Cell& cell : result.cells)
      if (cell.device.empty()) cell.device = cpu;
  return result;
}

Result load_result(const std::filesystem::path& path) { return result_from_json(read_text_file(path), path.string()); }

Result resume_or_new(const std::filesystem::path& path, const nlohmann::json& context) {
  if (std::filesystem::exists(path)) return load_result(path);
  Result result;
  result.context = context;
  return result;
}

}  // namespace sim
