// For each layer and level the choice (dp, in, out) that is best by an estimate, such as the forecast step time.
//
//   LayerSearch search(model, [](const Strategy& s) { return PlanEstimate{.step_s = 1.0 / s.ranks()}; });
//   const auto found = search.descend(parse_strategy("hypar,levels=2x2,layers=dp", model));
//   if (found) fmt::print("{} of {}\n", found->strategy.text(), search.tried());
//
// A strategy that can't be played, or whose estimate is a ConfigError, is passed over. Each is estimated once.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/plan/method.hpp"

namespace sim {

struct EstimatedStrategy {
  Strategy strategy;
  PlanEstimate estimate;
};

class LayerSearch {
 public:
  LayerSearch(const Model& model, std::function<PlanEstimate(const Strategy&)> estimate);

  /// Changes one layer on one level at a time to what is better, until no such change is. Nothing if the start can't be
  /// played.
  std::optional<EstimatedStrategy> descend(const Strategy& start);
  /// The best of all 3^(layers · levels); of equals the first, in the order dp, in, out.
  std::optional<EstimatedStrategy> try_all(const std::vector<std::uint32_t>& levels);
  /// Nothing if it can't be played.
  std::optional<EstimatedStrategy> try_one(const Strategy& strategy);

  [[nodiscard]] std::size_t layers() const { return layers_; }
  [[nodiscard]] std::size_t tried() const { return known_.size(); }  // that could be played or not
  [[nodiscard]] const std::string& last_obstacle() const { return obstacle_; }

 private:
  const Model& model_;
  std::function<PlanEstimate(const Strategy&)> estimate_;
  std::size_t layers_ = 0;                                    // with weights
  std::map<std::string, std::optional<PlanEstimate>> known_;  // by text
  std::string obstacle_;                                      // why the last one that couldn't be played couldn't
};

}  // namespace sim
