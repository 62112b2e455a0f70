// How many ranks there are along each axis, and what each of them has.
#include <algorithm>
#include <utility>

#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/option/reading.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

std::uint32_t read_degree(const StrategyReading& r, std::string_view key) {
  const auto least = static_cast<std::int64_t>(r.kind.otherwise(key, 1));
  const std::int64_t degree = r.text.integer(key, least, 1, kMostRanks);
  if (degree < least) throw ConfigError("strategy '{}': {}={} must be at least {}", r.text.whole(), key, degree, least);
  return static_cast<std::uint32_t>(degree);
}

/// Into how many parts torch.chunk cuts so many samples when asked for `parts`.
std::uint32_t chunks(std::int64_t samples, std::uint32_t parts) {
  const std::int64_t size = (samples + parts - 1) / parts;
  return static_cast<std::uint32_t>((samples + size - 1) / size);
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

void read_dp(const StrategyReading& r, Strategy& s) {
  if (!r.kind.takes("dp")) return;
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
  const auto [replicas, shard] = read_two_degrees(r, "replicas", "shard");
  s.dp = replicas * shard;
  s.shard = shard;
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

/// Where steps reach into each other, one alone isn't the period.
void read_bodies(const StrategyReading& r, Strategy& s) {
  constexpr std::int64_t kMostBodies = 64;
  const auto usual = static_cast<std::int64_t>(r.kind.otherwise("bodies", 1));
  s.bodies = static_cast<std::uint32_t>(r.text.integer("bodies", usual, usual > 1 ? 2 : 1, kMostBodies));
}

}  // namespace

std::pair<std::uint32_t, std::uint32_t> read_two_degrees(const StrategyReading& r, std::string_view outer,
                                                         std::string_view inner) {
  const std::int64_t outside = r.text.integer(outer, 2, 2, kMostRanks),
                     inside = r.text.integer(inner, 2, 2, kMostRanks), batch = r.model.global_batch;
  if (outside * inside > kMostRanks)
    throw ConfigError("strategy '{}': {}={} times {}={} must be at most {} ranks", r.text.whole(), outer, outside,
                      inner, inside, kMostRanks);
  if (batch % (outside * inside) != 0)
    throw ConfigError("strategy '{}': {}={} times {}={} must divide global_batch={} of model '{}'; near: {}",
                      r.text.whole(), outer, outside, inner, inside, batch, r.model.name,
                      allowed_beside(outside * inside, batch));
  return {static_cast<std::uint32_t>(outside), static_cast<std::uint32_t>(inside)};
}

std::vector<StrategyOption> degree_options() {
  using Reading = StrategyReading;
  using Kind = StrategyKind;
  using Values = std::vector<std::string>;
  return {
      {.name = "dp",
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
       .tried = [](const Model&, const Kind& kind) { return kind.otherwise("zero", 0) > 0 ? Values{"2"} : Values{}; }},
      {.name = "shard",
       .values = "2 to 1048576",
       .meaning = "ranks among whom everything is cut",
       .read = [](const Reading&, Strategy&) {},  // with replicas
       .write = [](const Strategy& s, const Kind&) { return s.shard == 0 ? "" : fmt::to_string(s.shard); },
       .tried = [](const Model&, const Kind& kind) { return kind.otherwise("zero", 0) > 0 ? Values{"2"} : Values{}; }},
      {.name = "pp",
       .values = "1 to 1048576",
       .meaning = "stages",
       .read = [](const Reading& r, Strategy& s) { s.pp = read_degree(r, "pp"); },
       .write = [](const Strategy& s, const Kind&) { return s.pp == 1 ? "" : fmt::to_string(s.pp); },
       .tried =
           [](const Model& model, const Kind& kind) {
             const auto chunks =
                 static_cast<std::size_t>(kind.schedule.empty() ? 1 : schedule_table().at(kind.schedule).chunks);
             return Values{fmt::to_string(std::min<std::size_t>(3, model.nodes.size() / chunks))};
           },
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
       .tried = [](const Model&, const Kind&) { return Values{}; }}};
}

}  // namespace sim
