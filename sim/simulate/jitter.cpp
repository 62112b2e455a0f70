#include <array>
#include <cmath>
#include <numbers>

#include "sim/simulate/step.hpp"

namespace sim {

/// A number in (0, 1].
double DrawnSteps::uniform() { return (static_cast<double>(bits_() >> 11U) + 1) * 0x1p-53; }

/// G. E. P. Box and M. E. Muller, A note on the generation of random normal deviates, 1958.
double DrawnSteps::normal() {
  const double radius = std::sqrt(-2 * std::log(uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

/// A gamma variable of mean 1. G. Marsaglia and W. W. Tsang, A simple method for generating gamma variables, ACM
/// Transactions on Mathematical Software 26(3), 2000.
double DrawnSteps::gamma(double shape) {
  if (shape < 1) return gamma(shape + 1) * (shape + 1) / shape * std::pow(uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = normal(), root = 1 + c * x, v = root * root * root;
    if (v <= 0) continue;
    const double u = uniform();
    const bool surely = u < 1 - 0.0331 * x * x * x * x;  // their squeeze, which saves two logarithms
    if (surely || std::log(u) < x * x / 2 + d - d * v + d * std::log(v)) return d * v / shape;
  }
}

DrawnSteps::DrawnSteps(const PlacedProgram& placed, const Costs& costs) : placed_(placed), costs_(costs) {
  constexpr std::size_t kMostFactors = std::size_t{32} << 20;
  std::size_t factors = placed.matching.participants.size();
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) factors += placed.role(rank).size();
  const bool jitters = costs.rank_jitter > 0 ||
                       std::ranges::any_of(costs.jitter, [](double jitter) { return jitter > 0; }) ||
                       std::ranges::any_of(costs.transfers, [](const TransferCost& cost) { return cost.jitter > 0; });
  varies_ = !placed.program.classes && placed.ranks() > 1 && jitters && kBatch * factors <= kMostFactors;
  if (!varies_) return;
  batch_.resize(kBatch);
  for (Factors& step : batch_) {
    for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) step.compute.emplace_back(placed.role(rank).size());
    step.transfer.resize(placed.matching.participants.size());
  }
}

/// One factor per step. n gamma draws over their mean are n times a Dirichlet distribution, whose parts of shape a have
/// the variance (n - 1) / (n a + 1): the shape that makes it the jitter's square.
template <class FactorOf>
void DrawnSteps::draw(double jitter, FactorOf factor_of) {
  constexpr double kSteps = kBatch, kLeastShape = 1e-3;
  if (!(jitter > 0)) return;
  const double shape = std::max(((kSteps - 1) / (jitter * jitter) - 1) / kSteps, kLeastShape);
  double factors[kBatch], sum = 0;
  for (double& factor : factors) sum += factor = gamma(shape);
  for (std::size_t s = 0; s < kBatch; ++s)
    factor_of(s) *= sum > 0 ? static_cast<float>(factors[s] * kSteps / sum) : 1.0F;
}

const std::vector<Factors>& DrawnSteps::next() {
  for (Factors& step : batch_) {
    for (std::vector<float>& of_rank : step.compute) std::ranges::fill(of_rank, 1.0F);
    std::ranges::fill(step.transfer, 1.0F);
  }
  for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
    const Role& role = placed_.role(rank);
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.work[i] != kNone && !costs_.jitter.empty())
        draw(costs_.jitter[role.work[i]], [&](std::size_t s) -> float& { return batch_[s].compute[rank][i]; });
      const bool collective = role.kind[i] == InstructionKind::collective;
      // Once per transfer.
      if (collective ? placed_.members(rank, i).front() != rank : role.kind[i] != InstructionKind::send) continue;
      const std::uint32_t id = placed_.transfer(rank, i);
      draw(costs_.transfers[costs_.transfer_of[id]].jitter,
           [&](std::size_t s) -> float& { return batch_[s].transfer[id]; });
    }
  }
  for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
    std::array<float, kBatch> pace;
    pace.fill(1.0F);
    draw(costs_.rank_jitter, [&](std::size_t s) -> float& { return pace[s]; });
    for (std::size_t s = 0; s < kBatch; ++s)
      for (float& factor : batch_[s].compute[rank]) factor *= pace[s];
  }
  return batch_;
}

}  // namespace sim
