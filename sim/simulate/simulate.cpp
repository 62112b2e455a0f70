#include "sim/simulate/simulate.hpp"

#include "sim/program/transfers.hpp"
#include "sim/simulate/closed_form.hpp"
#include "sim/simulate/jitter.hpp"
#include "sim/simulate/shared.hpp"

namespace sim {
namespace {

Timeline simulate_step(const PlacedProgram& placed, const Costs& mean, const Factors* factors = nullptr) {
  const StepCosts costs(placed, mean, factors);
  std::optional<Timeline> timeline = closed_form(placed, costs);
  if (!timeline) timeline = simulate_shared(placed, costs);
  check(placed.program, *timeline);
  return std::move(*timeline);
}

}  // namespace

Timeline simulate(const Program& program, const Costs& mean, const Cluster& cluster) {
  const TransferMatching matching(program);
  return simulate_step(PlacedProgram(program, cluster, matching), mean);
}

StepTime expected_step(const Program& program, const Costs& mean, const Cluster& cluster) {
  const TransferMatching matching(program);
  const PlacedProgram placed(program, cluster, matching);
  const std::vector<Factors> drawn = draw_factors(program, mean, matching);
  if (drawn.empty()) return step_time(simulate_step(placed, mean));
  std::vector<StepTime> times;
  for (const Factors& factors : drawn) times.push_back(step_time(simulate_step(placed, mean, &factors)));
  return mean(times);
}

}  // namespace sim
