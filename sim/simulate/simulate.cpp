#include "sim/simulate/simulate.hpp"

#include <cmath>

#include "sim/simulate/step.hpp"

namespace sim {
namespace {

Timeline simulate_step(const PlacedProgram& placed, const Costs& costs, const Factors* factors = nullptr) {
  const StepCosts of_step(placed, costs, factors);
  std::optional<Timeline> timeline = closed_form(placed, of_step);
  if (!timeline) timeline = simulate_shared(placed, of_step);
  break_down(placed.program, *timeline);
  check(placed.program, *timeline);
  return std::move(*timeline);
}

}  // namespace

Timeline simulate(const Program& program, const Costs& costs, const Cluster& cluster) {
  return simulate(PlacedProgram(program, cluster), costs);
}

Timeline simulate(const PlacedProgram& placed, const Costs& costs) { return simulate_step(placed, costs); }

StepTime expected_step(const Program& program, const Costs& costs, const Cluster& cluster) {
  constexpr std::size_t kMostSteps = 128;
  constexpr double kTolerance = 0.002;
  const PlacedProgram placed(program, cluster);
  DrawnSteps drawn(placed, costs);
  if (!drawn.vary()) return step_time(program, simulate_step(placed, costs));
  std::vector<StepTime> times;
  double sum_s = 0, squares = 0;
  const auto standard_error = [&] {
    const auto n = static_cast<double>(times.size());
    return std::sqrt(std::max(0.0, squares / n - sum_s * sum_s / (n * n)) / (n - 1)) / (sum_s / n);
  };
  do {
    for (const Factors& factors : drawn.next()) {
      times.push_back(step_time(program, simulate_step(placed, costs, &factors)));
      sum_s += times.back().step_s, squares += times.back().step_s * times.back().step_s;
    }
  } while (times.size() < kMostSteps && standard_error() > kTolerance);
  return mean(times);
}

}  // namespace sim
