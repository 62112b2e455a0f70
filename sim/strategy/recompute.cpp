#include "sim/strategy/recompute.hpp"

#include <algorithm>
#include <optional>

#include "sim/error.hpp"
#include "sim/strategy/zero.hpp"

namespace sim {

namespace {

/// Numbers the segments of whole blocks, `together` of them in each.
class Blocks {
 public:
  Blocks(const Model& model, const Strategy& strategy) : model_(model), together_(strategy.recomputed_blocks) {}

  std::uint32_t segment_of(const std::string& node, std::uint32_t part) {
    const std::string block = block_of(model_, node);
    const bool is_unit = model_.units.empty() || std::ranges::find(model_.units, block) != model_.units.end();
    if (last_ && (last_->block != block || last_->part != part)) {
      const bool goes_on = is_unit && last_->is_unit && last_->part == part && count_ < together_;
      count_ = goes_on ? count_ + 1 : 1;
      if (!goes_on) ++segment_;
    }
    last_ = {block, part, is_unit};
    return segment_;
  }

 private:
  struct Last {
    std::string block;
    std::uint32_t part = 0;
    bool is_unit = false;
  };
  const Model& model_;
  const std::uint32_t together_;
  std::optional<Last> last_;
  std::uint32_t segment_ = 0, count_ = 1;
};

}  // namespace

std::vector<std::uint32_t> segments_of(const Model& model, const Strategy& strategy,
                                       const std::vector<std::uint32_t>& part_of) {
  std::vector<std::uint32_t> segments(model.nodes.size(), kNoSegment);
  if (strategy.recompute == Recompute::none) return segments;
  const std::vector<OpInstance> ops = model.instances(model.global_batch);
  Blocks blocks(model, strategy);
  std::uint32_t segment = 0;
  for (std::size_t n = 0; n + 1 < segments.size(); ++n) {  // the loss keeps what it has made
    const bool has_buffers = !ops[n].signature().buffers.empty();
    if (strategy.recompute == Recompute::selective) {  // with the layer that reads it
      if (!has_buffers) segments[n] = segment;
      if (model.has_parameters(n)) ++segment;
      continue;
    }
    const std::uint32_t part = part_of.empty() ? 0 : part_of[n];
    segments[n] = strategy.recompute == Recompute::block ? blocks.segment_of(model.nodes[n].name, part) : 0;
    if (has_buffers)
      throw ConfigError(
          "strategy '{}': node '{}' is a {}: played twice it would count its statistics twice; "
          "recompute=selective leaves it alone",
          strategy.text(), model.nodes[n].name, model.nodes[n].kind->name);
  }
  return segments;
}

}  // namespace sim
