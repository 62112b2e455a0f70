// Random steps: how much longer than its mean everything takes in each of them.
#pragma once

#include <vector>

#include "sim/cost/cost_model.hpp"
#include "sim/program/transfers.hpp"

namespace sim {

/// Of one step, over the mean.
struct Factors {
  std::vector<std::vector<float>> compute;  // [rank][instruction]
  std::vector<float> transfer;              // by transfer id
};

/// Up to 128 steps, fewer where their factors would take more than 128 MiB; none when nothing jitters, when fewer than
/// 8 would fit, or for one rank (it waits for nobody). Every compute and transfer has its own factor (a hiccup), and each
/// rank has one more, shared by all its compute in the step (a core that others use too is slow for seconds). Gamma
/// distributed with the costs' jitter as coefficient of variation (positive, one-sided where the jitter is large),
/// independent; the same ones in every call and on every machine. The mean of every draw over the steps is exactly 1: without rank jitter, a rank that waits for nobody
/// takes what `simulate` says.
std::vector<Factors> draw_factors(const Program& program, const Costs& costs, const TransferMatching& matching);

}  // namespace sim
