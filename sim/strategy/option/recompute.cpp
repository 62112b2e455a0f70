// What a forward doesn't keep for the backward, but the backward computes anew (activation checkpointing).
#include "sim/error.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {
namespace {

void read_recompute(const StrategyReading& r, Strategy& s) {
  const std::string given = r.text.text("recompute").value_or("none");
  const std::size_t colon = given.find(':');
  const std::optional<Recompute> recompute = kRecomputes.find(given.substr(0, colon));
  if (!recompute || (colon != std::string::npos && *recompute != Recompute::block))
    throw ConfigError("strategy '{}': recompute={} must be one of {}; block:2 is of two blocks each", r.text.whole(),
                      given, fmt::to_string(fmt::join(kRecomputes.names, ", ")));
  s.recompute = *recompute;
  if (colon != std::string::npos)
    s.recomputed_blocks =
        static_cast<std::uint32_t>(r.text.integer_in("recompute", given.substr(colon + 1), 1, 10'000));
}

std::string write_recompute(const Strategy& s, const StrategyKind& /*kind*/) {
  if (s.recompute == Recompute::none) return "";
  const std::string text(kRecomputes.of(s.recompute));
  return s.recomputed_blocks == 1 ? text : fmt::format("{}:{}", text, s.recomputed_blocks);
}

}  // namespace

std::vector<StrategyOption> recompute_options() {
  return {{.name = "recompute",
           .values = "none, selective, block, block:N or full",
           .meaning = "what the backward computes anew: activations and pools; all inside each block, or N blocks of a "
                      "stage together; all of a stage",
           .read = read_recompute,
           .write = write_recompute,
           .tried = [](const Model&, const StrategyKind&) { return std::vector<std::string>{"selective"}; }}};
}

}  // namespace sim
