#include "sim/report/result.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <set>
#include <tuple>
#include <utility>

#include "sim/cost/statistic.hpp"
#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using Json = nlohmann::ordered_json;

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

/// Five digits: as many as a table shows, and noise begins at the third. Of what tells noise, or causes, three.
double rounded(double value, int digits = 5) {
  const std::string text = fmt::format("{:.{}e}", value, digits - 1);
  return std::strtod(text.c_str(), nullptr);
}

Json list_of(const StepTime& time, int digits = 5) {
  Json list = Json::array();
  for (const StepPart& part : kStepParts) list.push_back(rounded(time.*part.value, digits));
  return list;
}

Json speed_json(const MachineSpeed& speed) {
  Json list = {rounded(speed.compute_s), rounded(speed.memory_alone_s), rounded(speed.memory_together_s),
               rounded(speed.change)};
  if (speed.core_to_core_s > 0) list.push_back(rounded(speed.core_to_core_s));
  return list;
}

/// What a round says of a cost model's forecast, by key; nothing where it has none.
Json forecast_json(const Round& round, const std::string& cost_model) {
  Json json = Json::object();
  const auto time = round.predicted.find(cost_model);
  if (time == round.predicted.end()) return json;
  json["predicted"] = list_of(time->second);
  if (const auto stated = round.stated_90.find(cost_model); stated != round.stated_90.end())
    json["stated_90"] = {rounded(stated->second.low), rounded(stated->second.high)};
  if (const auto novelty = round.novelty.find(cost_model); novelty != round.novelty.end())
    json["novelty"] = rounded(novelty->second);
  if (const auto guesses = round.guesses.find(cost_model); guesses != round.guesses.end())
    json["guesses"] = guesses->second;
  return json;
}

/// Adds what the forecasts say. `before`: the cell's round before, or null.
void add_forecasts(Json& json, const Round& round, const Round* before) {
  for (const auto& [cost_model, time] : round.predicted) {
    const Json forecast = forecast_json(round, cost_model);
    if (before && forecast == forecast_json(*before, cost_model)) {
      json["as_before"].push_back(cost_model);
      continue;
    }
    for (const auto& [key, value] : forecast.items()) json[key][cost_model] = value;
  }
}

/// Adds what was measured; of single steps only `with_samples`.
void add_measured(Json& json, const Round& round, bool with_samples) {
  if (round.replayed_s) json["replayed_s"] = rounded(*round.replayed_s);
  if (round.measured.empty()) return;
  Json& measured = json["measured"];
  measured = {{"count", round.measured.count},
              {"mean", list_of(round.measured.mean)},
              {"sd_s", rounded(round.measured.sd_s, 3)},
              {"median_s", rounded(round.measured.median_s)}};
  if (with_samples)
    for (const StepTime& step : round.measured.samples) measured["samples"].push_back(list_of(step));
}

/// Puts a row's values at the ends of their lists, which have `before` entries each, or fewer.
void add_row(Json& columns, const Json& row, std::size_t before) {
  for (const auto& [key, value] : row.items()) {
    Json& column = columns[key];
    if (value.is_object()) {
      if (column.is_null()) column = Json::object();
      add_row(column, value, before);
    } else {
      if (column.is_null()) column = Json::array();
      column.get_ref<Json::array_t&>().resize(before);
      column.push_back(value);
    }
  }
}

/// Makes every list as long as there are rows.
void fill(Json& columns, std::size_t rows) {
  for (Json& column : columns)
    if (column.is_object())
      fill(column, rows);
    else
      column.get_ref<Json::array_t&>().resize(rows);
}

/// A list of each value, null where a row has none: {"round": [0, 1], "measured": {"count": [4, null]}}.
Json columns_of(const std::vector<Json>& rows) {
  Json columns = Json::object();
  for (std::size_t i = 0; i < rows.size(); ++i) add_row(columns, rows[i], i);
  fill(columns, rows.size());
  return columns;
}

/// What a round says but for what was measured in it: references to it.
template <class AnyRound>
auto forecasts_of(AnyRound& round) {
  return std::tie(round.predicted, round.stated_90, round.novelty, round.guesses, round.speed);
}

/// The cell's round of this number, which is mostly at this place; null: it has none.
const Round* find_round(const Cell& cell, int number, std::size_t place) {
  if (place < cell.rounds.size() && cell.rounds[place].round == number) return &cell.rounds[place];
  const auto found = std::ranges::find(cell.rounds, number, &Round::round);
  return found == cell.rounds.end() ? nullptr : &*found;
}

/// Whether our cell has all that the peer's rounds say but what it measured.
bool is_as_ours(const Cell& peer, const Cell& ours) {
  for (std::size_t i = 0; i < peer.rounds.size(); ++i) {
    const Round* same = find_round(ours, peer.rounds[i].round, i);
    if (!same || forecasts_of(*same) != forecasts_of(peer.rounds[i])) return false;
  }
  return true;
}

/// "round", "predicted", …: a list of each, see result.hpp.
Json rounds_json(const Cell& cell, bool with_samples, bool as_ours) {
  std::vector<Json> rows;
  const Round* before = nullptr;
  for (const Round& round : cell.rounds) {
    Json& row = rows.emplace_back();
    row["round"] = round.round;
    if (!as_ours) add_forecasts(row, round, before);
    if (!as_ours && round.speed) row["speed"] = speed_json(*round.speed);
    add_measured(row, round, with_samples);
    before = &round;
  }
  return columns_of(rows);
}

/// Mean over the rounds that measured something; 0 where none has.
double measured_step_s(const Cell& cell) {
  std::vector<double> means_s;
  for (const Round& round : cell.rounds)
    if (!round.measured.empty()) means_s.push_back(round.measured.mean.step_s);
  return mean_of(means_s);
}

/// What is less than a two-thousandth of the step is in its "rest".
Json to_json(const Attribution& attribution, double step_s) {
  constexpr double kLeast = 5e-4;
  Json json{{"rounds", attribution.rounds}, {"effects_s", Json::object()}};
  double rest_s = 0;
  for (const auto& [name, effect_s] : attribution.effects_s)
    if (name == kRestOfEffects || std::abs(effect_s) < kLeast * step_s)
      rest_s += effect_s;
    else
      json["effects_s"][name] = rounded(effect_s, 3);
  json["effects_s"][kRestOfEffects] = rounded(rest_s, 3);
  return json;
}

// Longer and shorter times have sums and ratios that are no numbers any more.
constexpr double kLongest_s = 1e9, kShortest_s = 1e-15;

double between(const JsonObject& json, std::string_view key, double value, double least, double most) {
  if (!(value >= least && value <= most))
    throw ConfigError("{}: '{}' must be from {} to {} s, found {}", json.where(), key, least, most, value);
  return value;
}

double seconds(const JsonObject& json, std::string_view key, double value) {
  return between(json, key, value, -kLongest_s, kLongest_s);
}

double positive(const JsonObject& json, std::string_view key, double value) {
  if (!(value > 0)) throw ConfigError("{}: '{}' must be positive, found {}", json.where(), key, value);
  return between(json, key, value, kShortest_s, kLongest_s);
}

std::int64_t at_least(JsonObject& json, std::string_view key, std::int64_t minimum) {
  const std::int64_t value = json.integer(key);
  if (value < minimum) throw ConfigError("{}: '{}' must be at least {}, found {}", json.where(), key, minimum, value);
  return value;
}

StepTime parts_from(const JsonObject& json, std::string_view key, const std::vector<double>& values) {
  if (values.size() != kStepParts.size())
    throw ConfigError("{}: '{}' must have {} values, found {}", json.where(), key, kStepParts.size(), values.size());
  StepTime time;
  for (std::size_t i = 0; i < values.size(); ++i) time.*kStepParts[i].value = values[i];
  return time;
}

/// Files from before 27 November 2026 have `sd`, of every part.
double sd_from(JsonObject& json) {
  const std::string_view key = json.has("sd") ? "sd" : "sd_s";
  const double sd_s = key == "sd" ? parts_from(json, key, json.numbers(key)).step_s : json.number(key);
  return between(json, key, sd_s, 0, 2 * kLongest_s);  // of two steps it is up to √2 times their distance
}

StepTime step_from(const JsonObject& json, std::string_view key, const std::vector<double>& values) {
  const StepTime time = parts_from(json, key, values);
  positive(json, key, time.step_s);
  for (const StepPart& part : kStepParts) seconds(json, key, time.*part.value);
  return time;
}

RoundSteps read_measured(JsonObject json) {
  RoundSteps steps;
  steps.count = static_cast<std::size_t>(at_least(json, "count", 1));
  steps.mean = step_from(json, "mean", json.numbers("mean"));
  steps.sd_s = sd_from(json);
  steps.median_s = positive(json, "median_s", json.number("median_s"));
  if (json.has("samples")) {
    std::vector<StepTime> samples;
    if (!json.value("samples").is_array()) throw ConfigError("{}: 'samples' must be a list", json.where());
    for (const nlohmann::json& sample : json.value("samples")) {
      JsonObject step(nlohmann::json{{"samples", sample}}, json.where());
      samples.push_back(step_from(json, "samples", step.numbers("samples")));
    }
    if (samples.size() != steps.count)
      throw ConfigError("{}: 'samples' has {} steps, 'count' says {}", json.where(), samples.size(), steps.count);
    steps = {};
    steps.add(samples);
  }
  json.finish();
  return steps;
}

/// The classes of files that also said how long each took.
std::vector<ClassError> read_classes(std::vector<JsonObject> rows) {
  std::vector<ClassError> classes;
  for (JsonObject& row : rows) {
    ClassError& c = classes.emplace_back();
    c.name = row.text("class");
    c.predicted_s = seconds(row, "predicted_s", row.number("predicted_s"));
    c.measured_s = seconds(row, "measured_s", row.number("measured_s"));
    c.effect_s = seconds(row, "effect_s", row.number("effect_s"));
    row.finish();
  }
  return classes;
}

/// The rows of columns_of.
std::vector<JsonObject> rows_of(JsonObject columns) {
  std::vector<JsonObject> found;
  if (columns.keys().empty()) return found;
  if (!columns.value("round").is_array()) throw ConfigError("{}: 'round' must be a list", columns.where());
  std::vector<nlohmann::json> rows(columns.value("round").size(), nlohmann::json::object());
  const auto column = [&](JsonObject& of, const std::string& key, const std::string* outer) {
    const nlohmann::json& values = of.value(key);
    if (!values.is_array() || values.size() != rows.size())
      throw ConfigError("{}: '{}' must be a list of {}, a value for each round", of.where(), key, rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (!values[i].is_null()) (outer ? rows[i][*outer] : rows[i])[key] = values[i];
  };
  for (const std::string& key : columns.keys()) {
    if (!columns.value(key).is_object()) {
      column(columns, key, nullptr);
      continue;
    }
    JsonObject inner = columns.object(key);
    for (const std::string& of : inner.keys()) column(inner, of, &key);
  }
  for (std::size_t i = 0; i < rows.size(); ++i) found.emplace_back(rows[i], fmt::format("{}[{}]", columns.where(), i));
  return found;
}

/// The samples of format 1: {part: [one per step]}.
RoundSteps read_samples(JsonObject measured) {
  std::vector<StepTime> steps(measured.numbers("step_s").size());
  for (const StepPart& part : kStepParts) {
    const std::vector<double> values = measured.numbers(part.name);
    if (values.size() != steps.size())
      throw ConfigError("{}: '{}' has {} values, 'step_s' has {}", measured.where(), part.name, values.size(),
                        steps.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      steps[i].*part.value =
          part.name == "step_s" ? positive(measured, part.name, values[i]) : seconds(measured, part.name, values[i]);
  }
  measured.finish();
  RoundSteps round;
  round.add(steps);
  return round;
}

/// Copies what the round before says of the forecasts that are as they were.
void read_as_before(const JsonObject& json, const std::vector<std::string>& cost_models, const Round* before,
                    Round& round) {
  for (const std::string& cost_model : cost_models) {
    if (!before || !before->predicted.contains(cost_model))
      throw ConfigError("{}: 'as_before' names '{}', of which the round before has no forecast", json.where(),
                        cost_model);
    const auto copy = [&](const auto& from, auto& to) {
      if (const auto found = from.find(cost_model); found != from.end()) to[cost_model] = found->second;
    };
    copy(before->predicted, round.predicted);
    copy(before->stated_90, round.stated_90);
    copy(before->novelty, round.novelty);
    copy(before->guesses, round.guesses);
  }
}

/// `before`: the cell's round before, or null.
Round read_round(JsonObject& json, int version, std::map<std::string, Attribution>& attribution, const Round* before) {
  Round round;
  const std::int64_t number = at_least(json, "round", 0);
  if (number > 1'000'000) throw ConfigError("{}: 'round' must be at most 1000000, found {}", json.where(), number);
  round.round = static_cast<int>(number);
  if (version < 4 || json.has("predicted")) {
    JsonObject predicted = json.object("predicted");
    for (const std::string& cost_model : predicted.keys()) {
      std::vector<double> values;
      if (version > 1) {
        values = predicted.numbers(cost_model);
      } else {
        JsonObject parts = predicted.object(cost_model);
        for (const StepPart& part : kStepParts) values.push_back(parts.number(part.name));
        parts.finish();
      }
      round.predicted[cost_model] = step_from(predicted, cost_model, values);
    }
  }
  if (json.has("stated_90")) {
    JsonObject stated = json.object("stated_90");
    for (const std::string& cost_model : stated.keys()) {
      const std::vector<double> ends = stated.numbers(cost_model);
      if (ends.size() != 2 || !(ends[0] <= ends[1]))
        throw ConfigError("{}: '{}' must be [low_s, high_s], found [{}]", stated.where(), cost_model,
                          fmt::join(ends, ", "));
      round.stated_90[cost_model] = {seconds(stated, cost_model, ends[0]), seconds(stated, cost_model, ends[1])};
    }
  }
  if (json.has("novelty")) {
    JsonObject novelty = json.object("novelty");
    for (const std::string& cost_model : novelty.keys()) {
      const double share = round.novelty[cost_model] = novelty.number(cost_model);
      if (!(share >= 0 && share <= 1))
        throw ConfigError("{}: '{}' must be from 0 to 1, found {}", novelty.where(), cost_model, share);
    }
  }
  if (json.has("guesses")) {
    JsonObject guesses = json.object("guesses");
    for (const std::string& cost_model : guesses.keys()) round.guesses[cost_model] = guesses.texts(cost_model);
  }
  if (json.has("as_before")) read_as_before(json, json.texts("as_before"), before, round);
  if (json.has("replayed_s") && !json.value("replayed_s").is_null())
    round.replayed_s = positive(json, "replayed_s", json.number("replayed_s"));
  if (json.has("speed")) {
    const std::vector<double> speed = json.numbers("speed");
    if (speed.size() != 4 && speed.size() != 5)
      throw ConfigError("{}: 'speed' must have 4 or 5 values, found {}", json.where(), speed.size());
    for (std::size_t i = 0; i < speed.size(); ++i) seconds(json, "speed", speed[i]);
    round.speed = {speed[0], speed[1], speed[2], speed[3], speed.size() > 4 ? speed[4] : 0};
  }
  if (version == 1) {
    round.measured = read_samples(json.object("measured"));
    JsonObject causes = json.object("attribution");
    for (const std::string& cost_model : causes.keys())
      attribution[cost_model].add(read_classes(causes.objects(cost_model)));
  } else if (json.has("measured") && !json.value("measured").is_null()) {
    round.measured = read_measured(json.object("measured"));
  }
  json.finish();
  return round;
}

/// Gives a peer's rounds what those of our cell say, which stands before it.
void read_as_ours(const JsonObject& json, const Result& result, Cell& peer) {
  const auto ours = result.find(peer.model, peer.strategy, peer.world, kOurs);
  for (std::size_t i = 0; i < peer.rounds.size(); ++i) {
    Round& round = peer.rounds[i];
    const Round* same = ours ? find_round(result.cells[*ours], round.round, i) : nullptr;
    if (!same)
      throw ConfigError("{}: 'as_ours', but no cell of ours before it has round {}", json.where(), round.round);
    if (const Round empty; forecasts_of(round) != forecasts_of(empty))
      throw ConfigError("{}: 'as_ours', but round {} has forecasts or a speed of its own", json.where(), round.round);
    forecasts_of(round) = forecasts_of(*same);
  }
}

std::map<std::string, std::int64_t> read_bytes(JsonObject json) {
  std::map<std::string, std::int64_t> bytes;
  for (const std::string& name : json.keys()) bytes[name] = at_least(json, name, 0);
  return bytes;
}

CellMemory read_memory(JsonObject json) {
  CellMemory memory;
  for (const MemoryPart& part : kMemoryParts)
    if (json.has(part.name) && !json.value(part.name).is_null()) memory.*part.value = at_least(json, part.name, 0);
  memory.predicted_at_peak_bytes = read_bytes(json.object("predicted_at_peak_bytes"));
  if (json.has("needed_bytes")) {
    memory.needed_bytes = read_bytes(json.object("needed_bytes"));
    if (!memory.needed()) throw ConfigError("{}: 'needed_bytes' add up to more than 2^60", json.where());
  }
  if (json.has("fused_needed_bytes")) memory.fused_needed_bytes = at_least(json, "fused_needed_bytes", 0);
  if (json.has("by_device"))
    for (JsonObject& device : json.objects("by_device")) {
      DeviceNeed& need = memory.by_device.emplace_back();
      need.ranks = device.text("ranks");
      need.devices = at_least(device, "devices", 1);
      need.needed_bytes = device.has("needed_bytes") ? read_bytes(device.object("needed_bytes")) : memory.needed_bytes;
      device.finish();
    }
  json.finish();
  return memory;
}

/// Until format 2 `ddp` and `mesh` let their buckets wait for the end of the backward, unless they said overlap=1.
std::string name_of_today(const SpecText& old) {
  const bool overlaps = old.text("overlap") == "1", is_mesh = old.head().empty() || old.head() == "mesh";
  std::string name = old.head() == "ddp" && !overlaps ? "ddp_blocking" : old.head();
  bool is_said = !(is_mesh && old.has("dp") && !overlaps);  // overlap=0, behind the buckets
  const auto add = [&](const std::string& item) { name += (name.empty() ? "" : ",") + item; };
  for (const auto& [key, value] : old.items()) {
    if (key == "broadcast_buffers" && !std::exchange(is_said, true)) add("overlap=0");
    if (key != "overlap") add(key + "=" + value);
  }
  if (!is_said) add("overlap=0");
  return name;
}

/// All but `as_ours`.
Cell read_cell(JsonObject& json, int version) {
  Cell cell;
  cell.model = json.text("model");
  cell.strategy = json.text("strategy");
  const SpecText strategy(cell.strategy, json.where() + ": strategy");  // ConfigError where it is none
  if (version < 3) cell.strategy = name_of_today(strategy);
  const bool is_renamed = cell.strategy != strategy.whole();
  cell.world = json.text("world");
  cell.executor = json.text("executor");
  cell.settings = json.text("settings", "");
  cell.ranks = at_least(json, "ranks", 1);
  cell.replicas = at_least(json, "replicas", 1);
  cell.microbatches = at_least(json, "microbatches", 1);
  cell.global_batch = at_least(json, "global_batch", 1);
  if (cell.replicas > cell.global_batch || cell.microbatches > cell.global_batch / cell.replicas)
    throw ConfigError("{}: replicas={} of microbatches={} are more than the global_batch={}", json.where(),
                      cell.replicas, cell.microbatches, cell.global_batch);
  cell.device = json.text("device", "");
  if (json.has("devices")) cell.devices = at_least(json, "devices", 0);
  if (json.has("threads")) cell.threads = at_least(json, "threads", 1);
  if (json.has("cores")) cell.cores = at_least(json, "cores", 0);
  if (json.has("sent_bytes")) cell.sent_bytes = at_least(json, "sent_bytes", 0);
  if (json.has("transfers")) cell.transfers = at_least(json, "transfers", 0);
  if (!json.value("skipped").is_null()) cell.skipped = json.text("skipped");
  if (!json.value("verify_error").is_null()) cell.verify_error = json.number("verify_error");
  cell.memory = read_memory(json.object("memory"));
  cell.program = json.text("program", "");
  if (is_renamed) cell.program.clear();  // its text holds the old name
  if (version > 1) {
    JsonObject causes = json.object("attribution");
    for (const std::string& cost_model : causes.keys()) {
      JsonObject one = causes.object(cost_model);
      Attribution& attribution = cell.attribution[cost_model];
      if (one.has("classes")) {
        attribution.add(read_classes(one.objects("classes")));
      } else {
        JsonObject effects = one.object("effects_s");
        for (const std::string& name : effects.keys())
          attribution.effects_s[name] = seconds(effects, name, effects.number(name));
      }
      attribution.rounds = static_cast<std::size_t>(at_least(one, "rounds", 1));
      one.finish();
    }
  }
  std::set<int> numbers;
  for (JsonObject& row : version < 4 ? json.objects("rounds") : rows_of(json.object("rounds"))) {
    const Round* before = cell.rounds.empty() ? nullptr : &cell.rounds.back();
    cell.rounds.push_back(read_round(row, version, cell.attribution, before));
    if (!numbers.insert(cell.rounds.back().round).second)
      throw ConfigError("{}: round {} is there twice", row.where(), cell.rounds.back().round);
  }
  return cell;
}

bool has_content(const std::filesystem::path& path) {
  std::error_code ignored;  // what is wrong with the path, writing it will say
  return std::filesystem::is_regular_file(path, ignored) && std::filesystem::file_size(path, ignored) > 0;
}

void check_kind(const Result& result, const std::filesystem::path& path, std::string_view kind) {
  if (result.kind == kind) return;
  std::size_t rounds = 0;
  for (const Cell& cell : result.cells) rounds = std::max(rounds, cell.rounds.size());
  throw ConfigError(
      "{}: is a result of '{}' ({} round{}), which '{}' neither goes on with nor replaces: choose another file",
      path.string(), result.kind, rounds, rounds == 1 ? "" : "s", kind);
}

}  // namespace

nlohmann::ordered_json to_json(const Cell& cell, bool with_samples, const Cell* ours) {
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
            {"program", cell.program},
            {"skipped", cell.skipped.empty() ? Json() : Json(cell.skipped)},
            {"verify_error", or_null(cell.verify_error)}};
  if (cell.threads > 1) json["threads"] = cell.threads;
  if (cell.cores > 0) json["cores"] = cell.cores;
  if (cell.sent_bytes) json["sent_bytes"] = *cell.sent_bytes;
  if (cell.transfers) json["transfers"] = *cell.transfers;
  if (!cell.settings.empty()) json["settings"] = cell.settings;
  Json& memory = json["memory"];
  for (const MemoryPart& part : kMemoryParts)
    if (cell.memory.*part.value) memory[part.name] = *(cell.memory.*part.value);
  memory["predicted_at_peak_bytes"] = cell.memory.predicted_at_peak_bytes;
  if (!cell.memory.needed_bytes.empty()) memory["needed_bytes"] = cell.memory.needed_bytes;
  if (cell.memory.fused_needed_bytes) memory["fused_needed_bytes"] = *cell.memory.fused_needed_bytes;
  for (const DeviceNeed& need : cell.memory.by_device) {
    Json& device = memory["by_device"].emplace_back(Json{{"ranks", need.ranks}, {"devices", need.devices}});
    if (need.needed_bytes != cell.memory.needed_bytes) device["needed_bytes"] = need.needed_bytes;
  }
  json["attribution"] = Json::object();
  const double step_s = measured_step_s(cell);
  for (const auto& [cost_model, attribution] : cell.attribution)
    json["attribution"][cost_model] = to_json(attribution, step_s);
  const bool as_ours = ours && is_as_ours(cell, *ours);
  if (as_ours) json["as_ours"] = true;
  json["rounds"] = rounds_json(cell, with_samples, as_ours);
  return json;
}

Result result_from_json(std::string_view text, const std::string& where) {
  JsonObject file = parse_json(text, where);
  int version = 4;
  for (const int old : {1, 2, 3})
    if (file.has("format") && file.text("format") == fmt::format("paragauge-result-{}", old)) version = old;
  check_format(file, "paragauge-result", version, "measure again into a new file");
  Result result;
  if (version == 1) {
    file.object("context");  // must be an object
    result.sessions.push_back({0, file.value("context")});
    const std::string command = " " + result.sessions[0].context.value("command", std::string()) + " ";
    for (const std::string kind : {"compare", "measure", "predict", "report"})
      if (result.kind.empty() && command.find(" " + kind + " ") != std::string::npos) result.kind = kind;
  } else {
    result.kind = file.text("kind");
    for (JsonObject& row : file.objects("sessions")) {
      Session& session = result.sessions.emplace_back();
      session.first_round = static_cast<int>(std::min<std::int64_t>(at_least(row, "first_round", 0), 1'000'000));
      row.object("context");
      session.context = row.value("context");
      row.finish();
    }
  }
  for (JsonObject& row : file.objects("cells")) {
    Cell cell = read_cell(row, version);
    if (result.find(cell.model, cell.strategy, cell.world, cell.executor))
      throw ConfigError("{}: the cell {} × {} × {} × {} is there twice", row.where(), cell.model, cell.strategy,
                        cell.world, cell.executor);
    if (version >= 4 && row.boolean("as_ours", false)) read_as_ours(row, result, cell);
    row.finish();
    result.cells.push_back(std::move(cell));
  }
  for (const char* computed : {"columns", "rows", "summary"})
    if (file.has(computed)) file.objects(computed);
  file.finish();
  if (version > 1) return result;
  // Format 1 names a CPU in its context only.
  const nlohmann::json& context = result.sessions[0].context;
  const nlohmann::json::json_pointer model("/environment/cpu/model"), device("/device");
  if (context.contains(device) && context.at(device) == "cpu" && context.contains(model) &&
      context.at(model).is_string())
    for (Cell& cell : result.cells) cell.device = context.at(model);
  return result;
}

Result load_result(const std::filesystem::path& path) { return result_from_json(read_text_file(path), path.string()); }

Result resume_or_new(const std::filesystem::path& path, std::string_view kind) {
  Result result;
  result.kind = kind;
  if (!has_content(path)) return result;
  result = load_result(path);
  check_kind(result, path, kind);
  return result;
}

void check_replaceable(const std::filesystem::path& path, std::string_view kind) {
  if (has_content(path)) check_kind(load_result(path), path, kind);
}

}  // namespace sim
