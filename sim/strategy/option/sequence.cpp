// Whether what lies between the layers that tp cuts is in parts, too.
#include "sim/error.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {
namespace {

void read_sp(const StrategyReading& r, Strategy& s) {
  s.sp = read_switch(r, "sp", /*usual=*/false);
  if (s.sp && s.tp < 2)
    throw ConfigError("strategy '{}': sp=1 needs tp of at least 2, found tp={}", r.text.whole(), s.tp);
}

/// Only where there are cut layers without being asked for.
std::vector<std::string> tried_sp(const Model& model, const StrategyKind& kind) {
  if (kind.otherwise("tp", 1) < 2) return {};
  try {
    static_cast<void>(layout_of(model, parse_strategy("tp,sp=1", model)));
  } catch (const ConfigError&) {
    return {};
  }
  return {"1"};
}

}  // namespace

std::vector<StrategyOption> sequence_options() {
  return {{.name = "sp",
           .values = "0 or 1",
           .meaning = "between layers that tp cuts each of its ranks has a part of the samples, or of the positions "
                      "(Megatron's sequence parallel)",
           .read = read_sp,
           .write = [](const Strategy& s, const StrategyKind&) { return std::string(s.sp ? "1" : ""); },
           .tried = tried_sp}};
}

}  // namespace sim
