// What an epoch takes: its steps, and what the host does between them.
//
//   const Epoch epoch = epoch_of(50'000, model, strategy);
//   const EpochTime time = epoch_time(epoch, model, strategy, cluster, *cost_model, f.step.step_s);
//   time.seconds;                                      // of it time.loading_s gets samples ready
#pragma once

#include <string>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/simulate/what_if.hpp"
#include "sim/strategy/epoch.hpp"

namespace sim {

struct EpochTime {
  double seconds = 0;
  double loading_s = 0;  // of it: getting samples ready
  std::string remark;    // why the last step is taken to be as long as the others; empty: it is forecast
};

/// `step_s`: of the full steps. With timing=epoch the host reads each step's result before it gets the next batch ready
/// (TrainingLoop::sample): no device works meanwhile. With other timings a batch is there when its step begins.
EpochTime epoch_time(const Epoch& epoch, const Model& model, const Strategy& strategy, const Cluster& cluster,
                     const CostModel& cost_model, double step_s, const Scale& scale = {});

}  // namespace sim
