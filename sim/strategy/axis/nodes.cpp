// DASO's nodes, and the ranks of each: all play all nodes of the model with their part of the samples.
#include "sim/error.hpp"
#include "sim/strategy/axis/axis.hpp"

namespace sim {

namespace {

constexpr std::int64_t kMostPieces = 10'000;

void add_nodes(Layout& layout, const Model& model, const Strategy& strategy) {
  if (const std::int64_t pieces = (parameter_count(model) + strategy.chunk_elements - 1) / strategy.chunk_elements;
      pieces > kMostPieces)
    throw ConfigError("strategy '{}': chunk={} cuts the {} parameters of model '{}' into {} pieces; allowed: {}",
                      strategy.text(), strategy.chunk_elements, parameter_count(model), model.name, pieces,
                      kMostPieces);
  layout.parameters.averages = {.daso = *strategy.daso,
                                .nodes = static_cast<std::uint32_t>(layout.mesh.axes.size()),
                                .chunk_elements = strategy.chunk_elements,
                                .downcast = strategy.downcast};
  const auto by_samples = [](std::size_t) { return Layout::Play{.rule = "batch"}; };
  layout.add_axis({"nodes", strategy.dp / strategy.daso->local}, shard(0), by_samples);
  layout.add_axis({"local", strategy.daso->local}, shard(0), by_samples);
}

}  // namespace

const AxisKind kNodes{"nodes", add_nodes};

}  // namespace sim
