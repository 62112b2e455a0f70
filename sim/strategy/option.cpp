#include "sim/strategy/option.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <utility>

#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;
// DeepSpeed's as Lightning's DeepSpeedStrategy gives them: stage3_prefetch_bucket_size, stage3_param_persistence_threshold.
constexpr double kPrefetchElements = 5e7, kPersistence = 1e5;

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// ---- Degrees ----

std::uint32_t read_degree(const StrategyReading& r, std::string_view key) {
  const auto least = static_cast<std::int64_t>(r.kind.otherwise(key, 1));
  const std::int64_t degree = r.text.integer(key, least, 1, kMostRanks);
  if (degree < least) throw ConfigError("strategy '{}': {}={} must be at least {}", r.text.whole(), key, degree, least);
  return static_cast<std::uint32_t>(degree);
}

/// dp=8 of 250 samples: "dp=5 or 10, or global_batch=248 or 256".
std::string allowed_beside(std::int64_t dp, std::int64_t batch) {
  const auto either = [](const std::vector<std::int64_t>& values) { return fmt::to_string(fmt::join(values, " or ")); };
  std::vector<std::int64_t> degrees, batches;
  for (std::int64_t fewer = dp - 1; fewer > 1 && degrees.empty(); --fewer)
    if (batch % fewer == 0) degrees.push_back(fewer);
  for (std::int64_t more = batch / dp; more > 0; --more)  // by samples per replica
    if (batch % more == 0) {
      degrees.push_back(batch / more);
      break;
    }
  if (batch > dp) batches.push_back(batch - batch % dp);
  batches.push_back(batch + dp - batch % dp);
  return fmt::format("{}global_batch={}", degrees.empty() ? "" : "dp=" + either(degrees) + ", or ", either(batches));
}

/// Into how many parts torch.chunk cuts so many samples when asked for `parts`.
std::uint32_t chunks(std::int64_t samples, std::uint32_t parts) {
  const std::int64_t size = (samples + parts - 1) / parts;
  return static_cast<std::uint32_t>((samples + size - 1) / size);
}

void read_dp(const StrategyReading& r, Strategy& s) {
  const std::int64_t batch = r.model.global_batch;
  s.dp = read_degree(r, "dp");
  if (r.kind.needs_equal_parts) {
    if (batch % s.dp != 0)
      throw ConfigError("strategy '{}': dp={} must divide global_batch={} of model '{}'; near: {}", r.text.whole(),
                        s.dp, batch, r.model.name, allowed_beside(s.dp, batch));
    return;
  }
  const std::uint32_t asked = std::exchange(s.dp, chunks(batch, s.dp));
  s.idle = asked - s.dp;
  if (s.dp < r.kind.otherwise("dp", 1))
    throw ConfigError("strategy '{}': the {} sample of global_batch={} is played by one device; use single",
                      r.text.whole(), batch, batch);
}

/// HSDP's: dp is their product.
void read_replicas(const StrategyReading& r, Strategy& s) {
  const bool is_given = r.text.has("replicas") || r.text.has("shard");
  if (!is_given && r.kind.otherwise("replicas", 0) == 0) return;
  if (r.text.has("dp")) throw ConfigError("strategy '{}': give dp, or replicas and shard, not both", r.text.whole());
  const std::int64_t replicas = r.text.integer("replicas", 2, 2, kMostRanks),
                     shard = r.text.integer("shard", 2, 2, kMostRanks), batch = r.model.global_batch;
  if (replicas * shard > kMostRanks || batch % (replicas * shard) != 0)
    throw ConfigError("strategy '{}': replicas={} times shard={} must divide global_batch={} of model '{}'; near: {}",
                      r.text.whole(), replicas, shard, batch, r.model.name, allowed_beside(replicas * shard, batch));
  s.dp = static_cast<std::uint32_t>(replicas * shard);
  s.shard = static_cast<std::uint32_t>(shard);
}

/// The last of the degrees.
void read_tp(const StrategyReading& r, Strategy& s) {
  s.tp = read_degree(r, "tp");
  if (std::uint64_t{s.dp} * s.pp * s.tp > kMostRanks)
    throw ConfigError("strategy '{}': dp={} times pp={}{} must be at most {} ranks", r.text.whole(), s.dp, s.pp,
                      s.tp > 1 ? fmt::format(" times tp={}", s.tp) : "", kMostRanks);
}

void read_order(const StrategyReading& r, Strategy& s) {
  const std::optional<std::string> given = r.text.text("order");
  if (!given) return;
  std::vector<std::string> usual;
  for (const AxisKind* axis : r.kind.axes) usual.emplace_back(axis->name);
  s.order = split(*given, '-');
  if (!std::ranges::is_permutation(s.order, usual))
    throw ConfigError("strategy '{}': order={} must name each of {} once, joined by -", r.text.whole(), *given,
                      fmt::to_string(fmt::join(usual, ", ")));
  if (s.order == usual) s.order.clear();
}

/// Values of tp that cut the model.
std::vector<std::string> tried_tp(const Model& model, const StrategyKind& /*kind*/) {
  try {
    static_cast<void>(layout_of(model, parse_strategy("mesh,tp=2", model)));
  } catch (const ConfigError&) {
    return {};
  }
  return {"2"};
}

// ---- Pipelines ----

/// Without a pipeline microbatches only save memory: one at a time.
std::string usual_schedule(const Strategy& s) { return s.pp > 1 ? "gpipe" : "1f1b"; }

bool has_microbatches(const Strategy& s, const StrategyKind& kind) {
  return s.microbatches > 1 || kind.otherwise("microbatches", 1) > 1;
}

void read_schedule(const StrategyReading& r, Strategy& s) {
  s.schedule = r.text.text("schedule").value_or(usual_schedule(s));
  static_cast<void>(schedule_table().at(s.schedule));
}

void read_microbatches(const StrategyReading& r, Strategy& s) {
  const std::int64_t rows = r.model.global_batch / s.dp;
  const std::string_view key = r.text.has("split_size") ? "split_size" : "microbatches";
  if (r.text.has("split_size") && r.text.has("microbatches"))
    throw ConfigError("strategy '{}': give split_size or microbatches, not both", r.text.whole());
  const auto otherwise = static_cast<std::int64_t>(r.kind.otherwise("microbatches", 1));
  const std::int64_t part = r.text.integer(key, otherwise, 1, 10'000'000);
  if (rows % part != 0)
    throw ConfigError("strategy '{}': {}={} must divide the {} samples per replica of model '{}'", r.text.whole(), key,
                      part, rows, r.model.name);
  s.microbatches = key == "split_size" ? rows / part : part;
  if (!has_microbatches(s, r.kind)) s.schedule = usual_schedule(s);
}

void read_cut(const StrategyReading& r, Strategy& s) {
  const std::string given = r.text.text("cut").value_or("balanced");
  if (const auto preset = r.model.cuts.find(given); preset != r.model.cuts.end())
    s.cut = preset->second;
  else if (given != "balanced")
    s.cut = split(given, '+');
  if (!s.cut.empty() && s.cut.size() + 1 != s.pp)
    throw ConfigError("strategy '{}': cut names {} nodes, so pp must be {}, found pp={}", r.text.whole(), s.cut.size(),
                      s.cut.size() + 1, s.pp);
}

// ---- DDP ----

double read_MiB(const StrategyReading& r, std::string_view key, double usual) {
  return r.text.number(key, r.kind.otherwise(key, usual), 0, 1 << 20);
}

/// Empty where the preset has it anyway.
std::string unless_usual(double value, const StrategyKind& kind, std::string_view key, double usual) {
  return value == kind.otherwise(key, usual) ? "" : fmt::format("{}", value);
}

bool read_switch(const StrategyReading& r, std::string_view key, bool usual) {
  return r.text.integer(key, static_cast<std::int64_t>(r.kind.otherwise(key, usual ? 1 : 0)), 0, 1) == 1;
}

void read_overlap(const StrategyReading& r, Strategy& s) {
  s.overlap = read_switch(r, "overlap", false);
  if (!s.overlap && r.kind.name == "ddp")
    throw ConfigError("strategy '{}': ddp overlaps; use ddp_blocking", r.text.whole());
  s.overlap = s.overlap && s.dp > 1;
}

std::string write_overlap(const Strategy& s, const StrategyKind& kind) {
  return s.dp > 1 ? unless_usual(s.overlap ? 1 : 0, kind, "overlap", 0) : "";
}

/// Where steps reach into each other, one alone isn't the period.
void read_bodies(const StrategyReading& r, Strategy& s) {
  constexpr std::int64_t kMostBodies = 64;
  const auto usual = static_cast<std::int64_t>(r.kind.otherwise("bodies", 1));
  s.bodies = static_cast<std::uint32_t>(r.text.integer("bodies", usual, usual > 1 ? 2 : 1, kMostBodies));
}

// ---- ZeRO ----

void read_zero(const StrategyReading& r, Strategy& s) {
  const auto own = static_cast<std::int64_t>(r.kind.otherwise("zero", 0));
  const std::int64_t zero = r.text.integer("zero", own, 0, 3);
  if (own > 0 && zero != own)
    throw ConfigError("strategy '{}': {} is zero={}; use mesh,zero={}", r.text.whole(), r.kind.name, own, zero);
  s.zero = static_cast<std::uint32_t>(zero);
  if (s.zero > 0 && s.dp < 2)
    throw ConfigError("strategy '{}': zero={} needs dp of at least 2, found dp={}", r.text.whole(), s.zero, s.dp);
  for (const char* key : {"replicas", "shard", "units", "prefetch", "reshard", "flat", "wire"})
    if (r.text.has(key) && s.zero == 0)
      throw ConfigError("strategy '{}': {} needs zero=1, 2 or 3, found zero=0", r.text.whole(), key);
  for (const char* key : {"prefetch", "reshard", "flat"})
    if (r.text.has(key) && s.zero < 3)
      throw ConfigError("strategy '{}': {} needs zero=3, found zero={}", r.text.whole(), key, s.zero);
  for (const char* key : {"first_bucket_MiB", "bucket_MiB"})
    if (r.text.has(key) && s.zero > 0)
      throw ConfigError("strategy '{}': {} is DDP's; with zero={} give units", r.text.whole(), key, s.zero);
}

/// What they are without being given.
std::string usual_units(const Strategy& s, const StrategyKind& kind) {
  if (s.zero == 0) return "";
  if (const double elements = kind.otherwise("units", 0); elements > 0) return fmt::format("{}", elements);
  return kind.takes("persistence") ? "layer" : s.zero == 3 ? "block" : "25MiB";
}

/// DeepSpeed releases no weights whose next use is less than 10^9 elements away; a pipeline's stage keeps them as
/// torch.distributed.pipelining does.
bool usual_reshard(const Strategy& s, const StrategyKind& kind) { return s.pp == 1 && !kind.takes("persistence"); }

bool usual_sums_each(const Strategy& s) { return s.zero > 1 && s.pp == 1; }

bool usual_scatters(const StrategyKind& kind) { return kind.otherwise("units", 0) == 0; }

void read_accumulate(const StrategyReading& r, Strategy& s) {
  const std::string given = r.text.text("accumulate").value_or(usual_sums_each(s) ? "every" : "last");
  if (given != "every" && given != "last")
    throw ConfigError("strategy '{}': accumulate={} must be every or last", r.text.whole(), given);
  s.sums_each_microbatch = given == "every";
}

void read_wire(const StrategyReading& r, Strategy& s) {
  s.scatters = usual_scatters(r.kind);
  const std::optional<std::string> given = r.text.text("wire");
  if (!given) return;
  if (*given != "scatter" && *given != "all")
    throw ConfigError("strategy '{}': wire={} must be scatter or all", r.text.whole(), *given);
  if ((*given == "scatter") != s.scatters && r.kind.otherwise("zero", 0) > 0)
    throw ConfigError("strategy '{}': wire must be {}; {} is {}{}", r.text.whole(), s.scatters ? "scatter" : "all",
                      s.scatters ? "all_reduce into shards" : "reduce_scatter",
                      s.scatters ? "deepspeed_stage_" : "zero", s.zero);
  s.scatters = *given == "scatter";
}

std::vector<std::string> if_zero(const StrategyKind& kind, std::vector<std::string> values) {
  return kind.otherwise("zero", 0) > 0 ? values : std::vector<std::string>{};
}

// ---- HyPar ----

void read_levels(const StrategyReading& r, Strategy& s) {
  if (!r.kind.takes("levels")) return;
  std::int64_t ranks = 1;
  for (const std::string& level : split(r.text.text("levels").value_or("2"), 'x')) {
    s.levels.push_back(static_cast<std::uint32_t>(r.text.integer_in("levels", level, 2, kMostRanks)));
    ranks *= s.levels.back();
    if (s.levels.size() > 8 || ranks > kMostRanks)
      throw ConfigError("strategy '{}': levels must be at most 8, of at most {} ranks together", r.text.whole(),
                        kMostRanks);
  }
}

/// dp+3*in: dp+in+in+in.
std::vector<std::string> read_choices(const SpecText& text, const std::string& level) {
  constexpr std::int64_t kMost = 10'000;
  std::vector<std::string> choices;
  for (const std::string& item : split(level, '+')) {
    const std::size_t star = item.find('*');
    const bool is_repeated = star != std::string::npos;
    const std::int64_t times = is_repeated ? text.integer_in("layers", item.substr(0, star), 1, kMost) : 1;
    choices.insert(choices.end(), static_cast<std::size_t>(times), is_repeated ? item.substr(star + 1) : item);
    if (std::ssize(choices) > kMost) throw ConfigError("strategy '{}': more than {} layers", text.whole(), kMost);
  }
  return choices;
}

void read_layers(const StrategyReading& r, Strategy& s) {
  if (s.levels.empty()) return;
  for (const std::string& level : split(r.text.text("layers").value_or("dp"), '/'))
    s.layers.push_back(read_choices(r.text, level));
  if (s.layers.size() == 1) s.layers.resize(s.levels.size(), s.layers[0]);
  if (s.layers.size() != s.levels.size())
    throw ConfigError("strategy '{}': layers for {} levels, but {} levels; give one list for all or one for each",
                      r.text.whole(), s.layers.size(), s.levels.size());
}

/// The inverse of read_choices: three alike or more are counted.
std::string choices_text(const std::vector<std::string>& choices) {
  constexpr std::ptrdiff_t kCounted = 3;
  std::vector<std::string> items;
  for (auto begin = choices.begin(); begin != choices.end();) {
    const auto end = std::find_if(begin, choices.end(), [&](const std::string& choice) { return choice != *begin; });
    if (end - begin >= kCounted)
      items.push_back(fmt::format("{}*{}", end - begin, *begin));
    else
      items.insert(items.end(), begin, end);
    begin = end;
  }
  return fmt::to_string(fmt::join(items, "+"));
}

std::string write_layers(const Strategy& s, const StrategyKind& /*kind*/) {
  std::vector<std::string> by_level;
  for (const auto& choices : s.layers) by_level.push_back(choices_text(choices));
  return fmt::to_string(fmt::join(by_level, "/"));
}

void read_form(const StrategyReading& r, Strategy& s) {
  const std::string form = r.text.text("form").value_or("derived");
  if (form != "derived" && form != "rooted")
    throw ConfigError("strategy '{}': form={} must be derived or rooted", r.text.whole(), form);
  s.rooted = form == "rooted";
}

std::vector<std::string> schedules(const Model& /*model*/, const StrategyKind& /*kind*/) {
  std::vector<std::string> names;
  for (const ScheduleKind& schedule : schedule_table()) names.emplace_back(schedule.name);
  return names;
}

}  // namespace

const Table<StrategyOption>& strategy_option_table() {
  using Reading = StrategyReading;
  using Kind = StrategyKind;
  using Values = std::vector<std::string>;
  static const auto options = std::to_array<StrategyOption>(
      {{.name = "dp",
        .values = "1 to 1048576",
        .meaning = "replicas, each with its part of the batch",
        .read = read_dp,
        .write = [](const Strategy& s, const Kind&) { return s.dp == 1 || s.shard > 0 ? "" : fmt::to_string(s.dp); },
        .tried = [](const Model&, const Kind&) { return Values{"2"}; },
        .ranks = [](const Strategy& s) { return s.dp; }},
       {.name = "replicas",
        .values = "2 to 1048576",
        .meaning = "groups of `shard` ranks, each of which has everything once (HSDP); instead of dp",
        .read = read_replicas,
        .write = [](const Strategy& s, const Kind&) { return s.shard == 0 ? "" : fmt::to_string(s.dp / s.shard); },
        .tried = [](const Model&, const Kind& kind) { return if_zero(kind, {"2"}); }},
       {.name = "shard",
        .values = "2 to 1048576",
        .meaning = "ranks among whom everything is cut",
        .read = [](const Reading&, Strategy&) {},  // with replicas
        .write = [](const Strategy& s, const Kind&) { return s.shard == 0 ? "" : fmt::to_string(s.shard); },
        .tried = [](const Model&, const Kind& kind) { return if_zero(kind, {"2"}); }},
       {.name = "pp",
        .values = "1 to 1048576",
        .meaning = "stages",
        .read = [](const Reading& r, Strategy& s) { s.pp = read_degree(r, "pp"); },
        .write = [](const Strategy& s, const Kind&) { return s.pp == 1 ? "" : fmt::to_string(s.pp); },
        .tried = [](const Model& model,
                    const Kind&) { return Values{fmt::to_string(std::min<std::size_t>(3, model.nodes.size()))}; },
        .ranks = [](const Strategy& s) { return s.pp; }},
       {.name = "tp",
        .values = "1 to 1048576",
        .meaning = "ranks that share each layer",
        .read = read_tp,
        .write = [](const Strategy& s, const Kind&) { return s.tp == 1 ? "" : fmt::to_string(s.tp); },
        .tried = tried_tp,
        .ranks = [](const Strategy& s) { return s.tp; }},
       {.name = "order",
        .values = "dp, pp, tp joined by -",
        .meaning = "which ranks are neighbours: axes, outermost first; Megatron's pp-dp-tp without it",
        .read = read_order,
        .write = [](const Strategy& s, const Kind&) { return fmt::to_string(fmt::join(s.order, "-")); },
        .tried = [](const Model&, const Kind&) { return Values{"dp-pp-tp"}; }},
       {.name = "threads",
        .values = "1 to 1024",
        .meaning = "of each rank, each with a CPU core for itself",
        .read =
            [](const Reading& r, Strategy& s) {
              s.threads = static_cast<std::uint32_t>(r.text.integer("threads", 1, 1, kMostThreads));
            },
        .write = [](const Strategy& s, const Kind&) { return s.threads == 1 ? "" : fmt::to_string(s.threads); },
        .tried = [](const Model&, const Kind&) { return Values{}; }},
       {.name = "bodies",
        .values = "1 to 64",
        .meaning = "steps that are played from one barrier to the next; with several a step's time is the period",
        .read = read_bodies,
        .write = [](const Strategy& s, const Kind& kind) { return unless_usual(s.bodies, kind, "bodies", 1); },
        .tried = [](const Model&, const Kind&) { return Values{}; }},
       {.name = "schedule",
        .values = "a schedule's name",
        .meaning = "in which order a stage plays the microbatches' forwards and backwards",
        .read = read_schedule,
        .write = [](const Strategy& s, const Kind& kind) { return has_microbatches(s, kind) ? s.schedule : ""; },
        .tried = schedules},
       {.name = "microbatches",
        .values = "1 to 10000000",
        .meaning = "per replica and step",
        .read = read_microbatches,
        .write = [](const Strategy& s,
                    const Kind& kind) { return has_microbatches(s, kind) ? fmt::to_string(s.microbatches) : ""; },
        .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
       {.name = "split_size",
        .values = "1 to 10000000",
        .meaning = "samples of a microbatch, instead of microbatches",
        .read = [](const Reading&, Strategy&) {},  // with microbatches
        .write = [](const Strategy&, const Kind&) { return std::string(); },
        .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
       {.name = "cut",
        .values = "balanced, a cut of the model, or nodes joined by +",
        .meaning = "the last node of every stage but the last",
        .read = read_cut,
        .write = [](const Strategy& s, const Kind&) { return fmt::to_string(fmt::join(s.cut, "+")); },
        .tried = [](const Model&, const Kind&) { return Values{}; }},
       {.name = "zero",
        .values = "0 to 3",
        .meaning = "cut among the replicas are 1: the optimizer's states, 2: and sums of gradients, 3: and weights",
        .read = read_zero,
        .write = [](const Strategy& s, const Kind& kind) { return unless_usual(s.zero, kind, "zero", 0); },
        .tried = [](const Model&,
                    const Kind& kind) { return if_zero(kind, {fmt::to_string(kind.otherwise("zero", 0))}); }},
       {.name = "units",
        .values = "layer, block, all, a size (25MiB, 2e8 elements), or prefixes joined by +",
        .meaning = "parameters that are cut, and travel, together",
        .read = [](const Reading& r, Strategy& s) { s.units = r.text.text("units").value_or(usual_units(s, r.kind)); },
        .write = [](const Strategy& s,
                    const Kind& kind) { return s.units == usual_units(s, kind) ? std::string() : s.units; },
        .tried =
            [](const Model&, const Kind& kind) {
              return if_zero(kind, {"layer", "all", "0.01MiB"});
            }},
       {.name = "prefetch",
        .values = "0 to 1048576",
        .meaning = "units that are gathered ahead of the one in use",
        .read =
            [](const Reading& r, Strategy& s) {
              const std::int64_t usual = r.kind.takes("prefetch_elements") ? kMostRanks : 1;
              s.prefetch = static_cast<std::uint32_t>(r.text.integer("prefetch", usual, 0, kMostRanks));
            },
        .write = [](const Strategy& s, const Kind&) { return s.prefetch == 1 ? "" : fmt::to_string(s.prefetch); },
        .tried =
            [](const Model&, const Kind& kind) {
              return if_zero(kind, {"0", "2"});
            }},
       {.name = "prefetch_elements",
        .values = "1 to 1e12",
        .meaning = "elements that are gathered ahead, of any number of units",
        .read =
            [](const Reading& r, Strategy& s) {
              if (r.kind.takes("prefetch_elements"))
                s.prefetch_elements = r.text.number("prefetch_elements", kPrefetchElements, 1, 1e12);
            },
        .write =
            [](const Strategy& s, const Kind&) {
              return s.prefetch_elements == kPrefetchElements ? "" : fmt::format("{}", s.prefetch_elements);
            },
        .tried = [](const Model&, const Kind&) { return Values{"1000"}; }},
       {.name = "persistence",
        .values = "0 to 1e12",
        .meaning = "parameters of at most so many elements aren't cut",
        .read =
            [](const Reading& r, Strategy& s) {
              if (r.kind.takes("persistence")) s.persistence = r.text.number("persistence", kPersistence, 0, 1e12);
            },
        .write = [](const Strategy& s,
                    const Kind&) { return s.persistence == kPersistence ? "" : fmt::format("{}", s.persistence); },
        .tried =
            [](const Model&, const Kind&) {
              return Values{"100", "0"};
            }},
       {.name = "reshard",
        .values = "0 or 1",
        .meaning = "what a forward has gathered is freed, and gathered again for the backward",
        .read = [](const Reading& r, Strategy& s) { s.reshard = read_switch(r, "reshard", usual_reshard(s, r.kind)); },
        .write =
            [](const Strategy& s, const Kind& kind) {
              return s.zero < 3 || s.reshard == usual_reshard(s, kind) ? "" : fmt::format("{:d}", s.reshard);
            },
        .tried =
            [](const Model&, const Kind& kind) {
              return if_zero(kind, {"0", "1"});
            }},
       {.name = "flat",
        .values = "0 or 1",
        .meaning = "what is cut is the unit as one flat tensor (FSDP1), or each parameter by its rows (FSDP2)",
        .read = [](const Reading& r, Strategy& s) { s.flat = read_switch(r, "flat", true); },
        .write = [](const Strategy& s, const Kind& kind) { return unless_usual(s.flat ? 1 : 0, kind, "flat", 1); },
        .tried =
            [](const Model&, const Kind& kind) {
              return if_zero(kind, {"0", "1"});
            }},
       {.name = "accumulate",
        .values = "every or last",
        .meaning = "gradients are summed over the replicas after every microbatch, or after the last one",
        .read = read_accumulate,
        .write =
            [](const Strategy& s, const Kind&) {
              const bool is_usual = s.sums_each_microbatch == usual_sums_each(s);
              return std::string(is_usual ? "" : s.sums_each_microbatch ? "every" : "last");
            },
        .tried =
            [](const Model&, const Kind&) {
              return Values{"every", "last"};
            }},
       {.name = "wire",
        .values = "scatter or all",
        .meaning = "everyone gets its part of the sums, or all of them (DeepSpeed)",
        .read = read_wire,
        .write =
            [](const Strategy& s, const Kind& kind) {
              return std::string(s.scatters == usual_scatters(kind) ? "" : s.scatters ? "scatter" : "all");
            },
        .tried = [](const Model&, const Kind&) { return Values{}; }},
       {.name = "first_bucket_MiB",
        .values = "0 to 1048576",
        .meaning = "DDP's first gradient bucket",
        .read = [](const Reading& r, Strategy& s) { s.first_bucket_MiB = read_MiB(r, "first_bucket_MiB", 1); },
        .write = [](const Strategy& s,
                    const Kind& kind) { return unless_usual(s.first_bucket_MiB, kind, "first_bucket_MiB", 1); },
        .tried = [](const Model&, const Kind&) { return Values{"0.01"}; }},
       {.name = "bucket_MiB",
        .values = "0 to 1048576",
        .meaning = "the other buckets",
        .read = [](const Reading& r, Strategy& s) { s.bucket_MiB = read_MiB(r, "bucket_MiB", 25); },
        .write = [](const Strategy& s, const Kind& kind) { return unless_usual(s.bucket_MiB, kind, "bucket_MiB", 25); },
        .tried = [](const Model&, const Kind&) { return Values{"0.1"}; }},
       {.name = "overlap",
        .values = "0 or 1",
        .meaning = "a bucket goes when its gradients are complete, not after the backward",
        .read = read_overlap,
        .write = write_overlap,
        .tried = [](const Model&, const Kind& kind) { return Values{kind.name == "ddp" ? "1" : "0"}; }},
       {.name = "broadcast_buffers",
        .values = "0 or 1",
        .meaning = "the first replica's batch-norm buffers go to all before each forward; DDP's, not ZeRO's",
        .read = [](const Reading& r,
                   Strategy& s) { s.broadcast_buffers = read_switch(r, "broadcast_buffers", s.zero == 0); },
        .write =
            [](const Strategy& s, const Kind&) {
              return s.broadcast_buffers == (s.zero == 0) ? "" : fmt::format("{:d}", s.broadcast_buffers);
            },
        .tried = [](const Model&, const Kind& kind) { return Values{kind.otherwise("zero", 0) > 0 ? "1" : "0"}; }},
       {.name = "levels",
        .values = "sizes joined by x",
        .meaning = "HyPar's hierarchy of devices, outermost first",
        .read = read_levels,
        .write = [](const Strategy& s, const Kind&) { return fmt::to_string(fmt::join(s.levels, "x")); },
        .tried = [](const Model&, const Kind&) { return Values{"2x2"}; },
        .ranks =
            [](const Strategy& s) {
              return std::accumulate(s.levels.begin(), s.levels.end(), std::uint32_t{1}, std::multiplies());
            }},
       {.name = "layers",
        .values = "dp, in, out joined by +, levels by /; 3*dp: dp+dp+dp",
        .meaning = "how each layer is cut, one choice for all or one for each",
        .read = read_layers,
        .write = write_layers,
        .tried =
            [](const Model& model, const Kind&) {
              return model.input[0] > 1 ? Values{"out", "in"} : Values{"out"};  // one channel can't be cut
            }},
       {.name = "form",
        .values = "derived or rooted",
        .meaning = "rooted: sums go to the first device, and from there to all",
        .read = read_form,
        .write = [](const Strategy& s, const Kind&) { return std::string(s.rooted ? "rooted" : ""); },
        .tried = [](const Model&, const Kind&) { return Values{"rooted"}; }}});
  static const Table<StrategyOption> table("strategy key", options);
  return table;
}

}  // namespace sim
