// Random steps: how much longer than its price everything takes in each of them.
#pragma once

#include <vector>

#include "sim/cost/cost_model.hpp"
#include "sim/program/transfers.hpp"

namespace sim {

/// Of one step, over the price.
struct Factors {
  std::vector<std::vector<float>> compute;  // [rank][instruction]
  std::vector<float> transfer;              // by transfer id
};

/// Up to 128 steps, fewer where their factors would take more than 128 MiB; none when nothing jitters, when fewer than
/// 8 would fit, or for one rank (it waits for nobody). Every compute and transfer has its own factor (a hiccup), and
/// all compute of a rank another in common (a core that others use too is slow for seconds). Gamma distributed with the
/// prices' jitter as coefficient of variation (positive, one-sided where the jitter is large), independent, always the
/// same ones. The mean of every draw over the steps is exactly 1: without rank jitter, a rank that waits for nobody
/// takes what `simulate` says.
std::vector<Factors> draw_factors(const Program& program, const Prices& prices, const TransferMatching& wiring);

}  // namespace sim
