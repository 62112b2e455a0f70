#include <cmath>
#include <numbers>
#include <random>

#include "sim/simulate/step.hpp"

namespace sim {
namespace {

/// Random numbers from std::mt19937_64, which the standard defines, by formulas of our own: the distributions of <random>
/// differ between standard libraries.
class Random {
 public:
  /// Of mean 1. G. Marsaglia and W. W. Tsang, A simple method for generating gamma variables, ACM Transactions on
  /// Mathematical Software 26(3), 2000.
  double gamma(double shape) {
    if (shape < 1) return gamma(shape + 1) * (shape + 1) / shape * std::pow(uniform(), 1 / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    for (;;) {
      const double x = normal(), v = std::pow(1 + c * x, 3);
      if (v > 0 && std::log(uniform()) < x * x / 2 + d - d * v + d * std::log(v)) return d * v / shape;
    }
  }

 private:
  /// In (0, 1].
  double uniform() { return (static_cast<double>(bits_() >> 11U) + 1) * 0x1p-53; }
  /// G. E. P. Box and M. E. Muller, A note on the generation of random normal deviates, 1958.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }

  std::mt19937_64 bits_{1};
};

}  // namespace

std::vector<Factors> draw_factors(const PlacedProgram& placed, const Costs& costs) {
  constexpr std::size_t kMostSteps = 128, kFewestSteps = 8, kMostFactors = std::size_t{32} << 20;
  constexpr double kLeastShape = 1e-3;
  std::size_t factors = placed.matching.participants.size();
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) factors += placed.role(rank).size();
  const std::size_t steps = std::min(kMostSteps, kMostFactors / std::max<std::size_t>(factors, 1));
  const bool jitters = costs.rank_jitter > 0 ||
                       std::ranges::any_of(costs.jitter, [](double jitter) { return jitter > 0; }) ||
                       std::ranges::any_of(costs.transfers, [](const TransferCost& cost) { return cost.jitter > 0; });
  if (placed.ranks() == 1 || !jitters || steps < kFewestSteps) return {};

  std::vector<Factors> drawn(steps);
  for (Factors& step : drawn) {
    for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank)
      step.compute.emplace_back(placed.role(rank).size(), 1.0F);
    step.transfer.assign(placed.matching.participants.size(), 1.0F);
  }
  Random random;
  // One factor per step; their mean is 1.
  const auto draw = [&](double jitter, auto&& factor_of) {
    if (!(jitter > 0)) return;
    const double shape = std::max(1 / (jitter * jitter), kLeastShape);
    double sum = 0;
    for (std::size_t s = 0; s < steps; ++s) {
      const double factor = random.gamma(shape);
      factor_of(s) = static_cast<float>(factor);
      sum += factor;
    }
    for (std::size_t s = 0; s < steps; ++s)
      factor_of(s) = sum > 0 ? factor_of(s) * static_cast<float>(static_cast<double>(steps) / sum) : 1.0F;
  };
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) {
    const Role& role = placed.role(rank);
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.work[i] != kNone && !costs.jitter.empty())
        draw(costs.jitter[role.work[i]], [&](std::size_t s) -> float& { return drawn[s].compute[rank][i]; });
      const bool collective = role.kind[i] == InstructionKind::collective;
      // Once per transfer.
      if (collective ? placed.members(rank, i).front() != rank : role.kind[i] != InstructionKind::send) continue;
      const std::uint32_t id = placed.transfer(rank, i);
      draw(costs.transfers[costs.transfer_of[id]].jitter,
           [&](std::size_t s) -> float& { return drawn[s].transfer[id]; });
    }
  }
  std::vector<float> pace(steps);  // of one rank in all steps
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) {
    std::ranges::fill(pace, 1.0F);
    draw(costs.rank_jitter, [&](std::size_t s) -> float& { return pace[s]; });
    for (std::size_t s = 0; s < steps; ++s)
      for (float& factor : drawn[s].compute[rank]) factor *= pace[s];
  }
  return drawn;
}

}  // namespace sim
