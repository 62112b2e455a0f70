// The Google Benchmark suite: predicted and measured steps of every strategy × model of the tables, and the simulator's
// own speed.
//
//   build/bin/paragauge_suite --world local --world gloo --benchmark_filter=resnet18
//       --benchmark_out=suite.csv --benchmark_out_format=csv
//   build/bin/paragauge_suite --profile cpu.json --benchmark_filter=predicted
//
// predicted/… and measured/… report a step's time as manual time, measured the maximum over ranks; every row has the
// same counters, in plain units (s, B, 1). A case that can't run stays, with its reason. Worlds of processes are
// spawned; rank 0 drives, the others serve.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <optional>

#include "bench/commands.hpp"
#include "bench/google_benchmark.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/profile.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/report/result.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/simulate/step_parts.hpp"
#include "sim/text/spec.hpp"
#ifdef PARAGAUGE_BACKEND
#include "bench/machine.hpp"
#include "bench/peers.hpp"
#endif

namespace bench {
namespace {

struct SuiteOptions {
  Machine machine;
  std::string profile;
  std::int64_t global_batch = 8, image = 64;
  bool peers = false;
};

/// Models with images are made small enough for a CPU core.
std::string model_text(const std::string& name, const SuiteOptions& options) {
  const bool has_image = sim::load_model(name).input.size() == 3 && sim::load_model(name).input[1] >= 64;
  return fmt::format("{},global_batch={}{}", name, options.global_batch,
                     has_image ? fmt::format(",image={}", options.image) : "");
}

std::int64_t peak_bytes(const sim::Program& program) {
  std::int64_t peak = 0;
  for (const sim::Role& role : program.roles) peak = std::max(peak, sim::peak_memory(role).peak_bytes);
  return peak;
}

/// The same counters in every row.
void count(benchmark::State& state, const sim::Program& program, const sim::StepTime& mean) {
  for (const sim::StepPart& part : sim::kStepParts) state.counters[std::string(part.name)] = mean.*part.value;
  state.counters["samples_per_s"] = static_cast<double>(program.global_batch) / mean.step_s;
  state.counters["peak_memory_B"] = static_cast<double>(peak_bytes(program));
  state.counters["ranks"] = program.ranks();
  double instructions = 0;
  for (const sim::Role& role : program.roles) instructions += static_cast<double>(role.size() * role.ranks.size());
  state.counters["instructions"] = instructions;
  state.counters["instructions_per_s"] = instructions / mean.step_s;  // of the step; for simulator/… of the simulator
}

void predicted(benchmark::State& state, const SuiteOptions& options, const std::string& model_name,
               const std::string& strategy_text, const std::string& world, const sim::Profile* profile) {
  guarded(state, [&] {
    const sim::Model model = sim::load_model(model_name);
    const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
    const sim::Program program = sim::lower(model, strategy);
    const bool cuda = options.machine.device == "cuda";
    const sim::Cluster cluster =
        sim::machine_cluster(world, options.machine.device, "", strategy.ranks(), cuda ? 1 : strategy.ranks());
    const std::string_view cost_model = profile != nullptr ? "profiled" : "analytic";
    const sim::StepTime step = sim::forecast(program, cluster, cost_model, profile).step;
    for ([[maybe_unused]] auto _ : state) state.SetIterationTime(step.step_s);
    count(state, program, step);
  });
}

/// How fast the simulator is: instructions per second on one core, nothing shared.
void simulator(benchmark::State& state, const std::string& model_name, const std::string& strategy_text) {
  guarded(state, [&] {
    const sim::Model model = sim::load_model(model_name);
    const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
    const sim::Program program = sim::lower(model, strategy);
    const sim::Cluster cluster = sim::load_cluster("cpu_local", strategy.ranks(), strategy.ranks());
    const sim::Costs costs = sim::forecast(program, cluster, "analytic").costs;
    sim::StepTime step;
    for ([[maybe_unused]] auto _ : state) step = sim::step_time(sim::simulate(program, costs, cluster));
    count(state, program, step);
    state.counters["instructions_per_s"] =
        benchmark::Counter(state.counters["instructions"].value, benchmark::Counter::kIsIterationInvariantRate);
  });
}

#ifdef PARAGAUGE_BACKEND
void measured(benchmark::State& state, const std::string& model_name, const std::string& strategy_text,
              const std::string& world, const Worlds& worlds) {
  guarded(state, [&] {
    const sim::Model model = sim::load_model(model_name);
    const sim::Program program = sim::lower(model, sim::parse_strategy(strategy_text, model));
    const auto steps = static_cast<std::uint32_t>(state.max_iterations);
    const backend::RunResult run = worlds.at(world).run({.program = program, .warmup_steps = 1, .steps = steps});
    std::vector<sim::StepTime> times;
    for ([[maybe_unused]] auto _ : state) {
      times.push_back(sim::step_time(run.steps[times.size()].timeline));
      state.SetIterationTime(times.back().step_s);
    }
    count(state, program, sim::mean(times));
  });
}

/// The same step in plain PyTorch; what it consists of isn't known.
void peer(benchmark::State& state, const std::string& model_name, const std::string& strategy_text, bool best,
          Peers& peers) {
  guarded(state, [&] {
    const sim::Model model = sim::load_model(model_name);
    const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
    const auto steps = static_cast<std::uint32_t>(state.max_iterations);
    const Peers::Answer answer = peers.run(model, strategy, best, 1, steps);
    if (!answer.skipped.empty()) throw sim::RunError("{}", answer.skipped);
    constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    sim::StepTime mean{0, kUnknown, kUnknown, kUnknown, kUnknown};
    std::size_t i = 0;
    for ([[maybe_unused]] auto _ : state) {
      mean.step_s += answer.step_s.at(i) / static_cast<double>(steps);
      state.SetIterationTime(answer.step_s[i++]);
    }
    count(state, sim::lower(model, strategy), mean);
  });
}
#endif

int run(int argc, char** argv) {
  SuiteOptions options;
  options.machine.argv.assign(argv, argv + argc);
  CLI::App app("Google Benchmark suite of paragauge; --benchmark_… flags are Google Benchmark's.");
  app.allow_extras();
  app.add_option("-w,--world", options.machine.worlds, sim::machine_world_table().names())->capture_default_str();
  app.add_option("--device", options.machine.device, "cpu or cuda")->capture_default_str();
  app.add_option("--profile", options.profile, "predict with the cost model 'profiled' from this file");
  app.add_option("--global-batch", options.global_batch, "samples per step")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--image", options.image, "image size of the ResNets and VGGs")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--peers", options.peers, "the same steps in plain PyTorch too: peer/… and, at its best, peer_best/…");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  std::optional<sim::Profile> profile;
  if (!options.profile.empty()) profile = sim::load_profile(options.profile);

  Subject subject;
  for (const std::string& name : sim::catalog_names("models")) subject.models.push_back(model_text(name, options));
  for (const sim::StrategyKind& kind : sim::strategy_table()) subject.strategies.emplace_back(kind.example);
#ifdef PARAGAUGE_BACKEND
  const auto [opened, exit_status_if_done_by_ranks] = open_worlds(options.machine, make_jobs(subject, options.machine));
  if (!opened) return exit_status_if_done_by_ranks;
  const Worlds& worlds = *opened;
  std::optional<Peers> peers;
  constexpr std::uint32_t kPeerRanks = 2;
  if (options.peers) peers.emplace(options.machine, kPeerRanks);
#endif
  for (const std::string& model : subject.models)
    for (const std::string& strategy : subject.strategies) {
      const std::string cell = model + "/" + strategy;
      for (const std::string& world : options.machine.worlds) {
        benchmark::RegisterBenchmark(("predicted/" + cell + "/" + world).c_str(),
                                     [=, &options, &profile](benchmark::State& state) {
                                       predicted(state, options, model, strategy, world, profile ? &*profile : nullptr);
                                     })
            ->UseManualTime()
            ->Iterations(1);
#ifdef PARAGAUGE_BACKEND
        benchmark::RegisterBenchmark(
            ("measured/" + cell + "/" + world).c_str(),
            [=, &worlds](benchmark::State& state) { measured(state, model, strategy, world, worlds); })
            ->UseManualTime()
            ->Iterations(3);
#endif
      }
#ifdef PARAGAUGE_BACKEND
      for (const bool best : {false, true})
        if (peers)
          benchmark::RegisterBenchmark(
              ((best ? "peer_best/" : "peer/") + cell).c_str(),
              [=, &peers](benchmark::State& state) { peer(state, model, strategy, best, *peers); })
              ->UseManualTime()
              ->Iterations(3);
#endif
      benchmark::RegisterBenchmark(("simulator/" + cell).c_str(),
                                   [=](benchmark::State& state) { simulator(state, model, strategy); });
    }
  return run_benchmarks(argv[0], app.remaining());
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of_suite("paragauge_suite", bench::run, argc, argv); }
