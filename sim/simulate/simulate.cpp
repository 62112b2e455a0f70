#include "sim/simulate/simulate.hpp"

#include "sim/simulate/step.hpp"

namespace sim {
namespace {

Timeline simulate_step(const PlacedProgram& placed, const Costs& costs, const Factors* factors = nullptr) {
  const StepCosts of_step(placed, costs, factors);
  std::optional<Timeline> timeline = closed_form(placed, of_step);
  if (!timeline) timeline = simulate_shared(placed, of_step);
  for (std::uint32_t rank = 0; rank < placed.ranks() && of_step.host_runs_ahead(); ++rank)
    timeline->ranks[rank].issued_s = of_step.issued_s(rank);
  break_down(placed.program, *timeline);
  check(placed.program, *timeline);
  return std::move(*timeline);
}

}  // namespace

Timeline simulate(const Program& program, const Costs& costs, const Cluster& cluster) {
  return simulate_step(PlacedProgram(program, cluster), costs);
}

StepTime expected_step(const Program& program, const Costs& costs, const Cluster& cluster) {
  const PlacedProgram placed(program, cluster);
  const std::vector<Factors> drawn = draw_factors(placed, costs);
  if (drawn.empty()) return step_time(simulate_step(placed, costs));
  std::vector<StepTime> times;
  for (const Factors& factors : drawn) times.push_back(step_time(simulate_step(placed, costs, &factors)));
  return mean(times);
}

}  // namespace sim
