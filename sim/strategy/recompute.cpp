#include "sim/strategy/recompute.hpp"

#include "sim/error.hpp"
#include "sim/strategy/zero.hpp"

namespace sim {

std::vector<std::uint32_t> segments_of(const Model& model, const Strategy& strategy) {
  std::vector<std::uint32_t> segments(model.nodes.size(), kNoSegment);
  if (strategy.recompute == Recompute::none) return segments;
  const std::vector<OpInstance> ops = model.instances(model.global_batch);
  std::uint32_t segment = 0;
  for (std::size_t n = 0; n + 1 < segments.size(); ++n) {  // the loss keeps what it has made
    const bool has_buffers = !ops[n].signature().buffers.empty();
    if (strategy.recompute == Recompute::selective) {  // with the layer that reads it
      if (!has_buffers) segments[n] = segment;
      if (model.has_parameters(n)) ++segment;
      continue;
    }
    if (strategy.recompute == Recompute::block && n > 0 &&
        block_of(model, model.nodes[n].name) != block_of(model, model.nodes[n - 1].name))
      ++segment;
    segments[n] = segment;
    if (has_buffers)
      throw ConfigError(
          "strategy '{}': node '{}' is a {}: played twice it would count its statistics twice; "
          "recompute=selective leaves it alone",
          strategy.text(), model.nodes[n].name, model.nodes[n].kind->name);
  }
  return segments;
}

}  // namespace sim
