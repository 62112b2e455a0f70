// A forecast: what a program's step takes on a cluster, by a cost model.
//
//   const Forecast f = forecast(program, cluster, *make_cost_model("profiled", cluster, &profile));
//   fmt::print("{} s\n", f.step.step_s);
//   Timeline timeline = simulate(program, f.costs, cluster);        // one step without jitter, to look at
//
// `step` is the mean over random steps (expected_step), which is what a measured mean is compared with; the step of
// such a timeline is shorter, since no rank waits for another one's hiccup there. Where steps reach into each other
// (sections: program.hpp) it is the steady state: what further bodies take longer, by training step.
//
// `low_s` and `high_s` are a 90 % interval of the step, from how well each cost is known (sim::Knowledge): what is
// wrong about one kind of op is wrong about all of that kind, and kinds are independent, but those that are new (or far
// from what was measured) are wrong together: they are guessed from the same few constants. So are transfers that
// weren't measured: the step is played with all of them at the ends of their intervals. What all costs are wrong by
// together (CostModel::common_sd) the whole step is. These three are independent. Where a cost model says nothing of
// that, both are the step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/timeline.hpp"
#include "sim/simulate/what_if.hpp"

namespace sim {

/// What the profile has never seen.
struct NewKind {
  std::string kind;  // as in sim::Knowledge
  double share = 0;  // of the step's compute, by the forecast
  friend bool operator==(const NewKind&, const NewKind&) = default;
};

/// How well one kind of cost is known, and what the step has of it.
struct KindSpread {
  std::string kind;       // as in sim::Knowledge
  double sd = 0;          // of ln(true step / forecast), by this kind alone
  bool is_guess = false;  // far from all that was measured: such kinds are wrong together
  std::size_t works = 0;  // a hash of its works: equal where two steps have the very same ones
  friend bool operator==(const KindSpread&, const KindSpread&) = default;
};

struct Forecast {
  Costs costs;  // of a program with sections: unrolled
  StepTime step;
  double low_s = 0, high_s = 0;
  double novelty = 0;  // of compute and exposed transfers, by time: 0 all is in the profile, 1 nothing is like it
  std::vector<NewKind> new_kinds;  // the largest share first
  /// What the profile lacks, and what answered: "broadcast among 2 (data sheet)". Empty: all comes from the profile.
  std::vector<std::string> guesses;
  std::vector<KindSpread> spreads;  // by kind; empty where the cost model says nothing of that
};

/// `cost_model`: made for this cluster. ConfigError when it can't know a cost. `scale`: on a machine that much faster.
/// `of_transfers`: with what uncertain transfers make of the interval, which takes four more steps.
Forecast forecast(const Program& program, const Cluster& cluster, const CostModel& cost_model, const Scale& scale = {},
                  bool of_transfers = true);

/// What a rank and its process hold, of the process where it is most: the world's one process, or one per rank.
struct MemoryForecast {
  std::int64_t allocator_peak_bytes = 0;            // a rank's tensors, with the ops' own workspace
  std::optional<std::int64_t> resident_peak_bytes;  // unavailable where the profile doesn't know the world's processes
};
MemoryForecast forecast_memory(const Program& program, const Costs& costs, const Cluster& cluster,
                               std::span<const double> process_bytes, bool process_per_rank);

}  // namespace sim
