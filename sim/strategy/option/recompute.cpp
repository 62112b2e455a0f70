// What a forward doesn't keep for the backward, but the backward computes anew (activation checkpointing).
#include "sim/error.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {
namespace {

void read_recompute(const StrategyReading& r, Strategy& s) {
  const std::string given = r.text.text("recompute").value_or("none");
  const std::optional<Recompute> recompute = kRecomputes.find(given);
  if (!recompute)
    throw ConfigError("strategy '{}': recompute={} must be one of {}", r.text.whole(), given,
                      fmt::to_string(fmt::join(kRecomputes.names, ", ")));
  s.recompute = *recompute;
}

}  // namespace

std::vector<StrategyOption> recompute_options() {
  return {{.name = "recompute",
           .values = "none, selective, block or full",
           .meaning = "what the backward computes anew: activations and pools; all inside each block; all of a stage",
           .read = read_recompute,
           .write =
               [](const Strategy& s, const StrategyKind&) {
                 return std::string(s.recompute == Recompute::none ? "" : kRecomputes.of(s.recompute));
               },
           .tried = [](const Model&, const StrategyKind&) { return std::vector<std::string>{"selective"}; }}};
}

}  // namespace sim
