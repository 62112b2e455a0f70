#include "sim/lower/job.hpp"

#include "sim/lower/lower.hpp"

namespace sim {

Job make_job(const Model& model, std::string_view strategy, const Cluster& cluster) {
  const Strategy parsed = parse_strategy(strategy, model);
  return {model, parsed, cluster.world, lower(model, parsed), cluster};
}

}  // namespace sim
