// Random steps: how much longer than its price everything takes in each of them.
#pragma once

#include <vector>

#include "sim/cost_model.hpp"
#include "sim/wiring.hpp"

namespace sim {

/// Of one step: over the price, 1 on average over the steps drawn together.
struct Factors {
  std::vector<std::vector<float>> compute;  // [rank][instruction]
  std::vector<float> transfer;              // by transfer id
};

/// Up to 128 steps, fewer where their factors would take more than 128 MiB; none when nothing jitters, when fewer than
/// 8 would fit, or for one rank (it waits for nobody). Gamma distributed with the prices' jitter as coefficient of
/// variation (positive, one-sided where the jitter is large), independent, always the same ones. The mean of every
/// factor over the steps is exactly 1, so that a rank that waits for nobody takes what `simulate` says.
std::vector<Factors> draw_factors(const Program& program, const Prices& prices, const Wiring& wiring);

}  // namespace sim
