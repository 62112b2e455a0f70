#include "sim/simulate/jitter.hpp"

#include <algorithm>
#include <random>

namespace sim {

std::vector<Factors> draw_factors(const Program& program, const Prices& prices, const TransferMatching& wiring) {
  constexpr std::size_t kMostSteps = 128, kFewestSteps = 8, kMostFactors = std::size_t{32} << 20;
  constexpr double kLeastShape = 1e-3;
  const std::vector<Program::Place> places = program.places();
  std::size_t factors = wiring.participants.size();
  for (const Program::Place& place : places) factors += program.roles[place.role].size();
  const std::size_t steps = std::min(kMostSteps, kMostFactors / std::max<std::size_t>(factors, 1));
  const bool jitters = prices.rank_jitter > 0 ||
                       std::ranges::any_of(prices.jitter, [](double jitter) { return jitter > 0; }) ||
                       std::ranges::any_of(prices.transfers, [](const TransferCost& cost) { return cost.jitter > 0; });
  if (places.size() == 1 || !jitters || steps < kFewestSteps) return {};

  std::vector<Factors> drawn(steps);
  for (Factors& step : drawn) {
    for (const Program::Place& place : places) step.compute.emplace_back(program.roles[place.role].size(), 1.0F);
    step.transfer.assign(wiring.participants.size(), 1.0F);
  }
  std::mt19937_64 random(1);
  // One factor per step; their mean is 1.
  const auto draw = [&](double jitter, auto&& factor_of) {
    if (!(jitter > 0)) return;
    const double shape = std::max(1 / (jitter * jitter), kLeastShape);
    std::gamma_distribution<double> gamma(shape, 1 / shape);
    double sum = 0;
    for (std::size_t s = 0; s < steps; ++s) {
      const double factor = gamma(random);
      factor_of(s) = static_cast<float>(factor);
      sum += factor;
    }
    for (std::size_t s = 0; s < steps; ++s)
      factor_of(s) = sum > 0 ? factor_of(s) * static_cast<float>(static_cast<double>(steps) / sum) : 1.0F;
  };
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    const Role& role = program.roles[places[rank].role];
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.work[i] != kNone && !prices.jitter.empty())
        draw(prices.jitter[role.work[i]], [&](std::size_t s) -> float& { return drawn[s].compute[rank][i]; });
      const bool collective = role.kind[i] == InstructionKind::collective;
      if (role.kind[i] != InstructionKind::send && !collective) continue;
      if (collective && program.groups[role.peer[i]].members[wiring.list_of[role.peer[i]][rank]].front() != rank)
        continue;  // once
      const std::uint32_t id = wiring.transfer(places[rank], rank, role, i);
      draw(prices.transfers[prices.transfer_of[places[rank].role][i]].jitter,
           [&](std::size_t s) -> float& { return drawn[s].transfer[id]; });
    }
  }
  std::vector<float> pace(steps);  // of one rank in all steps
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    std::ranges::fill(pace, 1.0F);
    draw(prices.rank_jitter, [&](std::size_t s) -> float& { return pace[s]; });
    for (std::size_t s = 0; s < steps; ++s)
      for (float& factor : drawn[s].compute[rank]) factor *= pace[s];
  }
  return drawn;
}

}  // namespace sim
