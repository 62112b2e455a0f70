#include "sim/strategy/option.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

constexpr std::int64_t kMostRanks = 1 << 20;

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
  static const std::array<StrategyOption, 16> options{
      {{.name = "dp",
        .values = "1 to 1048576",
        .meaning = "replicas, each with its part of the batch",
        .read = read_dp,
        .write = [](const Strategy& s, const Kind&) { return s.dp == 1 ? "" : fmt::to_string(s.dp); },
        .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
       {.name = "pp",
        .values = "1 to 1048576",
        .meaning = "stages",
        .read = [](const Reading& r, Strategy& s) { s.pp = read_degree(r, "pp"); },
        .write = [](const Strategy& s, const Kind&) { return s.pp == 1 ? "" : fmt::to_string(s.pp); },
        .tried = [](const Model& model,
                    const Kind&) { return Values{fmt::to_string(std::min<std::size_t>(3, model.nodes.size()))}; }},
       {.name = "tp",
        .values = "1 to 1048576",
        .meaning = "ranks that share each layer",
        .read = read_tp,
        .write = [](const Strategy& s, const Kind&) { return s.tp == 1 ? "" : fmt::to_string(s.tp); },
        .tried = tried_tp},
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
        .meaning = "the first replica's batch-norm buffers go to all before each forward",
        .read = [](const Reading& r, Strategy& s) { s.broadcast_buffers = read_switch(r, "broadcast_buffers", true); },
        .write = [](const Strategy& s, const Kind&) { return std::string(s.broadcast_buffers ? "" : "0"); },
        .tried = [](const Model&, const Kind&) { return Values{"0"}; }},
       {.name = "levels",
        .values = "sizes joined by x",
        .meaning = "HyPar's hierarchy of devices, outermost first",
        .read = read_levels,
        .write = [](const Strategy& s, const Kind&) { return fmt::to_string(fmt::join(s.levels, "x")); },
        .tried = [](const Model&, const Kind&) { return Values{"2x2"}; }},
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
        .tried = [](const Model&, const Kind&) { return Values{"rooted"}; }}}};
  static const Table<StrategyOption> table("strategy key", options);
  return table;
}

}  // namespace sim
