#include "sim/simulate/epoch_time.hpp"

#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/fold.hpp"
#include "sim/simulate/forecast.hpp"

namespace sim {
namespace {

/// Of the samples of a batch, how many one thread gets ready: a replica's, or where one process has a node's devices,
/// those of all replicas there.
double by_one_thread(std::int64_t samples, const Strategy& strategy, const Cluster& cluster) {
  const std::int64_t loaders = cluster.one_host_thread             ? cluster.nodes()
                               : strategy.kind().needs_equal_parts ? strategy.dp
                                                                   : 1;
  return static_cast<double>(samples) / static_cast<double>(loaders);
}

}  // namespace

EpochTime epoch_time(const Epoch& epoch, const Model& model, const Strategy& strategy, const Cluster& cluster,
                     const CostModel& cost_model, double step_s, const Scale& scale) {
  EpochTime time{.seconds = static_cast<double>(epoch.full_steps) * step_s};
  double samples = static_cast<double>(epoch.full_steps) * by_one_thread(model.global_batch, strategy, cluster);
  if (epoch.last) {
    samples += by_one_thread(epoch.last->samples, strategy, cluster);
    try {
      const Program last = fold_many(lower(epoch.last->model, epoch.last->strategy), cluster);
      time.seconds += forecast(last, cluster, cost_model, scale).step.step_s;
    } catch (const ConfigError& error) {  // a batch that nobody asked for, which a profile may lack
      time.seconds += step_s;
      time.remark = error.what();
    }
  }
  if (model.timing == Timing::epoch) time.loading_s = samples * cluster.loop.sample.in_seconds();
  time.seconds += time.loading_s;
  return time;
}

}  // namespace sim
