// The accuracy bounds can fail: from the committed profile of a compare run (bench/results/*.profile.json), its
// forecasts hold against its measurements, and every planted mistake breaks them. Ablations: each term of the cost
// earns its place.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/report/accuracy.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/cost/measured.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

const std::filesystem::path kResults = testing::tests_folder() / ".." / "bench" / "results";
/// Of the forecasts from the mean profile of all rounds; a cell has drifted against it.
constexpr double kBound = 0.09;

struct Forecast {
  Program program;
  Cluster cluster;
  Costs costs;
};

/// A cell of a result file with what its forecast is made of.
class Compared {
 public:
  explicit Compared(const std::string& name)
      : result_(load_result(kResults / (name + ".json"))),
        profile_(load_profile(kResults / (name + ".profile.json"))) {}

  [[nodiscard]] const Cell& cell(const std::string& strategy, const std::string& world) const {
    for (const Cell& cell : result_.cells)
      if (cell.executor == kOurs && cell.world == world && cell.strategy.starts_with(strategy)) return cell;
    throw std::runtime_error("no cell " + strategy + " on " + world);
  }
  [[nodiscard]] const Profile& profile() const { return profile_; }
  [[nodiscard]] const Result& result() const { return result_; }

  /// `as`: the strategy to be forecast in the cell's place.
  [[nodiscard]] Forecast forecast(const Cell& cell, const Profile& profile, const std::string& as = "") const {
    const Model model = load_model(cell.model);
    Program program = lower(model, parse_strategy(as.empty() ? cell.strategy : as, model));
    const Cluster cluster = testing::measured_cluster(cell.world, program.ranks(), profile);
    Costs costs = costs_of(program, *cost_model_table().at("profiled").make(cluster, &profile), cluster);
    return {std::move(program), cluster, std::move(costs)};
  }
  [[nodiscard]] static double error(const Cell& cell, const Forecast& forecast) {
    std::vector<StepTime> steps;
    for (const Round& round : cell.rounds) steps.push_back(round.measured.mean);
    return std::log(expected_step(forecast.program, forecast.costs, forecast.cluster).step_s / mean(steps).step_s);
  }

 private:
  Result result_;
  Profile profile_;
};

/// The profile with every op's time times `factor`.
Profile with_ops_times(const Profile& profile, double factor) {
  nlohmann::json file = nlohmann::json::parse(profile.to_json());
  for (nlohmann::json& op : file["ops"]) testing::scale_op(op, factor);
  return profile_from_json(file.dump(), "degraded profile");
}

/// Nobody waits for what is received.
Program without_receive_waits(const Program& program) {
  Program changed = program;
  for (Role& role : changed.roles) {
    const Role old = std::move(role);
    role = {};
    role.name = old.name, role.ranks = old.ranks, role.tensors = old.tensors, role.storages = old.storages;
    for (std::uint32_t i = 0; i < old.size(); ++i)
      if (old.kind[i] != InstructionKind::wait || old.kind[old.awaits[i]] != InstructionKind::recv) role.add(old.at(i));
  }
  return changed;
}

TEST(Falsification, TheForecastsHold) {
  for (const auto& [name, world] :
       {std::pair("convnet", "local"), {"convnet", "gloo"}, {"resnet18_64", "local"}, {"resnet18_64", "gloo"}}) {
    const Compared run(name);
    for (const char* strategy : {"single", "model_parallel", "pipeline,pp=2,schedule=gpipe", "ddp,dp=2"}) {
      const Cell& cell = run.cell(strategy, world);
      EXPECT_LE(std::abs(Compared::error(cell, run.forecast(cell, run.profile()))), kBound)
          << name << " " << cell.strategy << " on " << world;
    }
  }
}

TEST(Falsification, DegradedProfile) {
  const Compared run("resnet18_64");
  const Profile slow = with_ops_times(run.profile(), 1.3), fast = with_ops_times(run.profile(), 0.75);
  for (const char* strategy : {"single", "model_parallel"}) {
    const Cell& cell = run.cell(strategy, "gloo");
    EXPECT_GT(Compared::error(cell, run.forecast(cell, slow)), kBound) << strategy;
    EXPECT_LT(Compared::error(cell, run.forecast(cell, fast)), -kBound) << strategy;
  }
}

// The ConvNet's pipeline with small microbatches waits for small messages: 32 latencies of the step.
TEST(Falsification, WrongLatency) {
  const Compared run("convnet");
  const Cell& cell = run.cell("pipeline,pp=2,schedule=gpipe,microbatches=8", "gloo");
  Forecast forecast = run.forecast(cell, run.profile());
  const double before = Compared::error(cell, forecast);
  for (TransferCost& transfer : forecast.costs.transfers) transfer.latency_s *= 2, transfer.rendezvous.latency_s *= 2;
  const double doubled = Compared::error(cell, forecast);
  std::printf("alpha doubled: %+.1f %% of the step\n", 100 * (doubled - before));
  EXPECT_GT(doubled, before + 0.01);
  for (TransferCost& transfer : forecast.costs.transfers) transfer.latency_s *= 4, transfer.rendezvous.latency_s *= 4;
  EXPECT_GT(Compared::error(cell, forecast), before + kBound);
}

// Every pipeline forecast by another schedule than the one that ran: by memory 1f1b and the others never pass for each other.
// (By time they do: their makespans are the same.)
TEST(Falsification, SwappedSchedule) {
  constexpr std::int64_t kLosses = 1024;  // bytes: a step's kept losses, which the allocator counts
  for (const char* name : {"convnet", "resnet18_64"}) {
    const Compared run(name);
    int cells = 0;
    for (const Cell& cell : run.result().cells) {
      if (cell.executor != kOurs || !cell.strategy.starts_with("pipeline") || cell.microbatches < 4) continue;
      const std::string schedule = SpecText(cell.strategy, "strategy").text("schedule").value();
      for (const ScheduleKind& kind : schedule_table()) {
        if (kind.chunks > 1 || kind.splits) continue;  // other stages, and other ops
        const Forecast forecast = run.forecast(
            cell, run.profile(),
            testing::replaced(cell.strategy, "schedule=" + schedule, fmt::format("schedule={}", kind.name)));
        std::int64_t peak = 0;
        for (const Role& role : forecast.program.roles) {
          const auto staging = staging_of(forecast.program, role, forecast.cluster.link().transport);
          peak = std::max(peak, peak_memory(role, staging).peak_bytes);
        }
        const std::int64_t more = cell.memory.measured_peak_bytes.value() - peak;
        if (kind.name == schedule) {
          ++cells;
          EXPECT_LE(more, kLosses) << cell.strategy;
          EXPECT_GE(more, 0) << cell.strategy;
        } else if ((kind.name == "1f1b") != (schedule == "1f1b")) {
          EXPECT_GT(std::abs(more), kLosses) << cell.strategy << " as " << kind.name;
        }
      }
    }
    EXPECT_GT(cells, 0) << name;
  }
}

TEST(Falsification, DroppedDependency) {
  const Compared run("resnet18_64");
  const Cell& cell = run.cell("model_parallel", "gloo");
  Forecast forecast = run.forecast(cell, run.profile());
  forecast.program = without_receive_waits(forecast.program);
  forecast.costs = costs_of(forecast.program, *cost_model_table().at("profiled").make(forecast.cluster, &run.profile()),
                            forecast.cluster);
  EXPECT_LT(Compared::error(cell, forecast), -kBound);
}

struct Term {
  const char* name;
  double measured_percent;  // what it is worth: by how much the mean |error| grows without it, where it grows most
  std::function<void(Forecast&)> remove;
};

/// Over all cells: most terms matter to a few strategies only, which a median wouldn't show.
double mean_error(const Compared& run, const std::function<void(Forecast&)>& change) {
  double sum = 0, cells = 0;
  for (const Cell& cell : run.result().cells) {
    if (cell.executor != kOurs || !cell.skipped.empty()) continue;
    Forecast forecast = run.forecast(cell, run.profile());
    change(forecast);
    sum += std::abs(Compared::error(cell, forecast)), ++cells;
  }
  return sum / cells;
}

// Each term of the cost switched off, on five models: on one of them it has to be worth at least half of what it was when
// it was measured (Term::measured_percent).
TEST(Ablation, EveryTermEarnsItsPlace) {
  std::filesystem::current_path(kResults / ".." / "..");  // models that aren't of the catalog are named from there
  const std::vector<Term> terms{
      {"launch", 0.36, [](Forecast& f) { f.costs.launch_s = 0; }},
      {"latency", 1.2,
       [](Forecast& f) {
         for (TransferCost& t : f.costs.transfers) t.latency_s = t.rendezvous.latency_s = 0;
       }},
      {"wire", 5.6,
       [](Forecast& f) {
         for (TransferCost& t : f.costs.transfers) t.wire_s = t.rendezvous.wire_s = 0;
       }},
      {"posts", 0.04,
       [](Forecast& f) {
         for (TransferCost& t : f.costs.transfers)
           t.send_overhead_s = t.recv_overhead_s = t.rendezvous.send_overhead_s = 0;
       }},
      {"rendezvous", 1.0,
       [](Forecast& f) {
         for (TransferCost& t : f.costs.transfers) {
           if (t.rendezvous.known()) t.send_overhead_s = t.rendezvous.send_overhead_s;
           t.rendezvous = {};
         }
       }},
      {"jitter", 0.07,
       [](Forecast& f) {
         f.costs.jitter.clear();
         for (TransferCost& t : f.costs.transfers) t.jitter = 0;
       }},
      // Without rank_jitter, which no committed file's ranks differ enough for: ExpectedStep.ARankIsSlowForAWholeStep.
      {"contention", 0.65, [](Forecast& f) {
         for (std::size_t w = 0; w < f.program.works.size(); ++w)
           for (std::uint32_t level = 1; level < f.costs.busy_levels; ++level)
             f.costs.work_s[w * f.costs.busy_levels + level] = f.costs.work_s[w * f.costs.busy_levels];
       }}};
  const std::vector<Compared> runs{Compared("convnet"), Compared("resnet18_64"), Compared("vgg11"), Compared("uneven"),
                                   Compared("hypar_pair")};
  for (const Term& term : terms) {
    double worst = -1;
    for (const Compared& run : runs) {
      const double with = mean_error(run, [](Forecast&) {}), without = mean_error(run, term.remove);
      worst = std::max(worst, without - with);
      std::printf("%-11s %s: mean |error| %.2f %% with, %.2f %% without\n", term.name,
                  run.result().cells[0].model.c_str(), 100 * with, 100 * without);
    }
    EXPECT_GT(100 * worst, term.measured_percent / 2) << term.name;
  }
}

}  // namespace
}  // namespace sim
