// Devices of several kinds, measured: two cores, of one of which somebody else has a part of the time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "backend/machine/scheduling.hpp"
#include "backend/session.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/cluster/world.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/by_kind.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/simulate/what_if.hpp"

namespace backend {
namespace {

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2));
  return values[values.size() / 2];
}

double median_step_s(Session& session, const sim::Program& program) {
  std::vector<double> steps;
  for (const StepResult& step : session.run({.program = program, .warmup_steps = 1, .steps = 3}).steps)
    steps.push_back(step.timeline.step_s);
  return median(steps);
}

/// Takes all but `share` of the second rank's core, in turns of 4 ms, before the rank; as long where a turn begins late.
class Other {
 public:
  explicit Other(double share)
      : thread_([share](const std::stop_token& stop) {
          constexpr double kTurn_s = 4e-3;
          pin_to_core(core_of_rank(1));
          const RealTime before_the_rank(kCommunicationPriority);
          for (double begin_s = now_s(); !stop.stop_requested(); begin_s += kTurn_s) {
            const double end_s = now_s() + (1 - share) * kTurn_s;
            while (now_s() < end_s) {
            }
            sleep_until(begin_s + kTurn_s, /*precisely=*/false);
          }
        }) {}

 private:
  std::jthread thread_;
};

// Data parallel on a whole core and on a part of one takes as much longer than on two whole ones as the forecast says: all
// wait for the slower. The ranks come before all else here, but for who has the other part.
TEST(UnequalCoresRanks, TheSlowerDecides) {
  if (sim::usable_cores() < 2) GTEST_SKIP() << "needs two cores";
  if (!RealTime(kCommunicationPriority).permitted()) GTEST_SKIP() << "needs real-time scheduling";
  constexpr int kTurns = 5;
  const sim::Model model = sim::load_model("convnet,global_batch=1024");
  const sim::Program program = sim::lower(model, sim::parse_strategy("ddp_blocking,dp=2", model));
  sim::Cluster cluster = sim::machine_cluster("local", "cpu", "", 2, sim::usable_cores());
  const auto forecast_s = [&] {
    const sim::Program cut = sim::by_kind(program, cluster);
    return sim::simulate(cut, sim::costs_of(cut, *sim::make_cost_model("analytic", cluster), cluster), cluster).step_s;
  };
  const double alike_forecast_s = forecast_s();
  cluster.other_kinds = {cluster.device};
  cluster.kinds.assign(cluster.devices(), 0);
  cluster.kinds.at(1) = 1;
  const std::unique_ptr<Session> session = open_session({.ranks = 2});
  for (const double share : {0.75, 0.5, 0.25}) {
    cluster.other_kinds[0].share = share;
    const double forecast = forecast_s() / alike_forecast_s;
    std::vector<double> ratios, alike;  // in turns: the machine may be faster now than in a minute
    for (int turn = 0; turn < kTurns; ++turn) {
      alike.push_back(median_step_s(*session, program));
      const Other other(share);
      ratios.push_back(median_step_s(*session, program) / alike.back());
    }
    const double measured = median(ratios);
    fmt::print("{:g} of a core: a step takes {:.2f} times as long, forecast {:.2f}\n", share, measured, forecast);
    EXPECT_NEAR(forecast, 1 / share, 0.05 / share);  // a step of convnet is little else than compute
    // The mean of both cores would say 1.14, 1.33 and 1.6.
    const bool is_right = std::abs(std::log(measured / forecast)) < std::log(1.3);
    const auto [fastest, slowest] = std::ranges::minmax(alike);
    if (!is_right && slowest > 1.1 * fastest)
      GTEST_SKIP() << "steps on whole cores vary by " << 100 * (slowest / fastest - 1)
                   << " %: neighbours have the rest";
    EXPECT_TRUE(is_right) << share;
  }
}

}  // namespace
}  // namespace backend
