#include "sim/simulate/forecast.hpp"

#include "sim/simulate/simulate.hpp"

namespace sim {

Forecast forecast(const Program& program, const Cluster& cluster, std::string_view cost_model, const Profile* profile,
                  const Scale& scale) {
  const std::unique_ptr<CostModel> model = cost_model_table().at(cost_model).make(cluster, profile);
  Forecast result{.costs = price(program, *model, cluster), .step = {}};
  if (!scale.is_one()) result.costs = scaled(result.costs, program, cluster, scale);
  result.step = expected_step(program, result.costs, cluster);
  double compute_s = 0, novel_s = 0;
  for (std::size_t work = 0; work < program.works.size(); ++work) {
    const double seconds = result.costs.work_s[work * result.costs.busy_levels];
    compute_s += seconds;
    novel_s += result.costs.novelty[work] * seconds;
  }
  if (novel_s > 0) result.novelty = novel_s / compute_s;
  return result;
}

}  // namespace sim
