// DASO's nodes, and when they synchronize (strategy/daso.hpp).
#include "sim/error.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {
namespace {

constexpr std::int64_t kMostSkips = 1000;
constexpr double kChunk = 1e7;  // heat/optim/dp_optimizer.py, sending_chunk_size

void read_nodes(const StrategyReading& r, Strategy& s) {
  if (!r.kind.takes("nodes")) return;
  const auto [nodes, local] = read_two_degrees(r, "nodes", "local");
  s.dp = nodes * local;
  s.daso.emplace().local = local;
}

/// Warm-up and cool-down have none of the others (epoch_loss_logic).
void read_skips(const StrategyReading& r, Strategy& s) {
  if (!s.daso) return;
  const std::int64_t skips = r.text.integer("skips", 4, 0, kMostSkips);
  const bool at_once = skips == 0;
  const std::int64_t least = at_once ? 0 : 1, wait = r.text.integer("wait", least, least, kMostSkips),
                     local_skips = r.text.integer("local_skips", least, least, kMostSkips);
  if (at_once && (wait > 0 || local_skips > 0))
    throw ConfigError("strategy '{}': {} needs skips of at least 1, found skips=0", r.text.whole(),
                      wait > 0 ? "wait" : "local_skips");
  if (!at_once && wait >= std::max<std::int64_t>(2, skips))
    throw ConfigError("strategy '{}': wait={} must be less than skips={}, or 1 with skips=1", r.text.whole(), wait,
                      skips);
  if (!at_once && skips % local_skips != 0)
    throw ConfigError("strategy '{}': local_skips={} must divide skips={}", r.text.whole(), local_skips, skips);
  s.daso->skips = skips;
  s.daso->wait = wait;
  s.daso->local_skips = local_skips;
}

void read_downcast(const StrategyReading& r, Strategy& s) {
  const std::string given = r.text.text("downcast").value_or("bf16");
  if (given != "bf16" && given != "f16" && given != "f32")
    throw ConfigError("strategy '{}': downcast={} must be bf16, f16 or f32", r.text.whole(), given);
  s.downcast = dtype_from(given);
}

/// A number of the rule, of which 1 is usual.
template <std::int64_t Daso::*number>
std::string write_rule(const Strategy& s, const StrategyKind& /*kind*/) {
  return s.daso->skips == 0 || (*s.daso).*number == 1 ? "" : fmt::to_string((*s.daso).*number);
}

}  // namespace

std::vector<StrategyOption> daso_options() {
  using Reading = StrategyReading;
  using Kind = StrategyKind;
  using Values = std::vector<std::string>;
  return {
      {.name = "nodes",
       .values = "2 to 1048576",
       .meaning = "DASO's nodes, each of `local` ranks",
       .read = read_nodes,
       .write = [](const Strategy& s, const Kind&) { return fmt::to_string(s.dp / s.daso->local); },
       .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
      {.name = "local",
       .values = "2 to 1048576",
       .meaning = "ranks of a node",
       .read = [](const Reading&, Strategy&) {},  // with nodes
       .write = [](const Strategy& s, const Kind&) { return fmt::to_string(s.daso->local); },
       .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
      {.name = "skips",
       .values = "0 to 1000",
       .meaning = "steps from one sending of parameters between nodes to the next; 0: after each step, waited for at "
                  "once (warm-up and cool-down)",
       .read = read_skips,
       .write = [](const Strategy& s, const Kind&) { return s.daso->skips == 4 ? "" : fmt::to_string(s.daso->skips); },
       .tried =
           [](const Model&, const Kind&) {
             return Values{"4", "0", "1"};
           }},
      {.name = "wait",
       .values = "1 to 999",
       .meaning = "steps from sending to receiving and blending, fewer than skips",
       .read = [](const Reading&, Strategy&) {},  // with skips
       .write = write_rule<&Daso::wait>,
       .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
      {.name = "local_skips",
       .values = "1 to 1000",
       .meaning = "steps from one sum of gradients in the node to the next, once what was sent is received",
       .read = [](const Reading&, Strategy&) {},  // with skips
       .write = write_rule<&Daso::local_skips>,
       .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
      {.name = "chunk",
       .values = "1 to 1e12",
       .meaning = "parameters that are sent in one piece",
       .read =
           [](const Reading& r, Strategy& s) {
             if (!r.kind.takes("chunk")) return;
             const double chunk = r.text.number("chunk", kChunk, 1, 1e12);  // "1e7", too
             s.chunk_elements = static_cast<std::int64_t>(chunk);
             if (static_cast<double>(s.chunk_elements) != chunk)
               throw ConfigError("strategy '{}': chunk={} must be a whole number", r.text.whole(), chunk);
           },
       .write =
           [](const Strategy& s, const Kind&) {
             return static_cast<double>(s.chunk_elements) == kChunk ? "" : fmt::to_string(s.chunk_elements);
           },
       .tried = [](const Model&, const Kind&) { return Values{"1000000"}; }},
      {.name = "downcast",
       .values = "bf16, f16 or f32",
       .meaning = "what f32 parameters are sent as where skips=0",
       .read = read_downcast,
       .write = [](const Strategy& s,
                   const Kind&) { return s.downcast == Dtype::bf16 ? "" : std::string(to_string(s.downcast)); },
       .tried = [](const Model&, const Kind&) { return Values{"f32"}; }}};
}

}  // namespace sim
