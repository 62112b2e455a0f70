// A forecast: what a program's step takes on a cluster, by a cost model.
//
//   const Forecast f = forecast(program, cluster, "profiled", &profile);
//   fmt::print("{} s\n", f.step.step_s);
//   Timeline timeline = simulate(program, f.costs, cluster);        // one step without jitter, to look at
//
// `step` is the mean over random steps (expected_step), which is what a measured mean is compared with; the step of
// such a timeline is shorter, since no rank waits for another one's hiccup there.
#pragma once

#include <string_view>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"
#include "sim/simulate/what_if.hpp"

namespace sim {

struct Forecast {
  Prices costs;
  StepTime step;
  double novelty = 0;  // of the compute, by time: 0 all shapes are in the profile, 1 none is like one of them
};

/// `cost_model`: a row of cost_model_table(); ConfigError when it needs a profile and there is none, or when it can't
/// know a cost. `scale`: on a machine that much faster.
Forecast forecast(const Program& program, const Cluster& cluster, std::string_view cost_model,
                  const Profile* profile = nullptr, const Scale& scale = {});

}  // namespace sim
