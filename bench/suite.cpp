// The Google Benchmark suite: predicted and measured steps of every strategy × model of the tables, the simulator's own
// speed, and how fast programs are made.
//
//   build/bin/paragauge_suite --world local --world gloo --benchmark_filter=resnet18
//       --benchmark_out=suite.csv --benchmark_out_format=csv
//   build/bin/paragauge_suite --profile cpu.json --benchmark_filter=predicted
//
// predicted/… and measured/… report a step's time as manual time, measured the maximum over ranks; every row has the
// same counters, in plain units (s, B, 1). simulator/… simulates a step, simulator/lower/… lowers and validates,
// simulator/forecast/… folds, asks for the costs and simulates: their instructions_per_s are of all ranks, per second
// of that. A case that can't run stays, with its reason. Worlds of processes are spawned; rank 0 drives, the others
// serve.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <optional>

#include "bench/commands.hpp"
#include "bench/google_benchmark.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/profile.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/plan/candidates.hpp"
#include "sim/program/fold.hpp"
#include "sim/program/memory.hpp"
#include "sim/report/result.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/simulate/timeline.hpp"
#include "sim/text/spec.hpp"
#ifdef PARAGAUGE_BACKEND
#include "bench/machine.hpp"
#include "bench/peers.hpp"
#endif

namespace bench {
namespace {

/// ConfigError where the strategy doesn't fit the model.
struct Case {
  Case(const sim::Model& of, const std::string& strategy_text)
      : model(sim::with_global_batch(of, strategy_text)),
        strategy(sim::parse_strategy(strategy_text, model)),
        program(sim::lower(model, strategy)) {}
  Case(const std::string& model_text, const std::string& strategy_text)
      : Case(sim::load_model(model_text), strategy_text) {}
  sim::Model model;
  sim::Strategy strategy;
  sim::Program program;
};

/// The same counters in every row; `transport`: of the row's world, where it has one.
void count(benchmark::State& state, const sim::Program& program, const sim::StepTime& mean,
           sim::Transport transport = sim::Transport::none) {
  for (const sim::StepPart& part : sim::kStepParts) state.counters[std::string(part.name)] = mean.*part.value;
  state.counters["samples_per_s"] = static_cast<double>(program.global_batch) / mean.step_s;
  std::int64_t peak_bytes = 0;
  double instructions = 0;
  for (const sim::Role& role : program.roles) {
    peak_bytes = std::max(peak_bytes, sim::peak_memory(role, staging_of(program, role, transport)).peak_bytes);
    instructions += static_cast<double>(role.size() * role.ranks.size());
  }
  state.counters["peak_memory_B"] = static_cast<double>(peak_bytes);
  state.counters["ranks"] = program.ranks();
  state.counters["instructions"] = instructions;
  state.counters["instructions_per_s"] = instructions / mean.step_s;  // of the step; for simulator/… of the simulator
}

void predicted(benchmark::State& state, const Case& what, const std::string& device, const std::string& world,
               const std::optional<sim::Profile>& profile) {
  const std::uint32_t ranks = what.strategy.ranks(), threads = what.strategy.threads;
  const sim::Cluster cluster =
      sim::with_threads(sim::machine_cluster(world, device, "", ranks, ranks * threads), threads, what.strategy.text());
  const std::unique_ptr<sim::CostModel> model =
      profile ? sim::make_cost_model("profiled", cluster, &*profile) : sim::make_cost_model("analytic", cluster);
  const sim::StepTime step = sim::forecast(what.program, cluster, *model).step;
  for ([[maybe_unused]] auto _ : state) state.SetIterationTime(step.step_s);
  count(state, what.program, step, cluster.link().transport);
}

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

/// Counts the program's instructions per second of the benchmark's own time.
void count_rate(benchmark::State& state) {
  state.counters["instructions_per_s"] =
      benchmark::Counter(state.counters["instructions"].value, benchmark::Counter::kIsIterationInvariantRate);
}

/// How fast the simulator is: instructions per second on one core, nothing shared.
void simulator(benchmark::State& state, const Case& what) {
  const std::uint32_t ranks = what.strategy.ranks(), threads = what.strategy.threads;
  const sim::Cluster cluster =
      sim::with_threads(sim::load_cluster("cpu_local", ranks, ranks * threads), threads, what.strategy.text());
  const sim::Costs costs = sim::costs_of(what.program, *sim::make_cost_model("analytic", cluster), cluster);
  sim::StepTime step;
  for ([[maybe_unused]] auto _ : state)
    step = sim::step_time(what.program, sim::simulate(what.program, costs, cluster));
  count(state, what.program, step);
  count_rate(state);
}

/// How fast a program is made and validated.
void lowering(benchmark::State& state, const Case& what) {
  for ([[maybe_unused]] auto _ : state) benchmark::DoNotOptimize(sim::lower(what.model, what.strategy));
  count(state, what.program, {kUnknown, kUnknown, kUnknown, kUnknown, kUnknown});
  count_rate(state);
}

/// What follows on lowering until the step is known, on DGX H100 of 8 each.
void forecasting(benchmark::State& state, const Case& what) {
  sim::Cluster cluster = sim::load_cluster("dgx_h100_pod", what.program.ranks());
  cluster.levels.back().size = (what.program.ranks() + cluster.devices_per_node() - 1) / cluster.devices_per_node();
  for (std::uint32_t rank = 0; rank < cluster.place.size(); ++rank) cluster.place[rank] = {rank};
  const std::unique_ptr<sim::CostModel> model = sim::make_cost_model("analytic", cluster);
  sim::StepTime step;
  for ([[maybe_unused]] auto _ : state) {
    const sim::Program folded = sim::fold(what.program, cluster);
    step = sim::step_time(folded, sim::simulate(folded, sim::costs_of(folded, *model, cluster), cluster));
  }
  count(state, what.program, step);
  count_rate(state);
}

/// SFC with so many of its hidden layers, 8192 x 8192 each, and as many classes.
sim::Model deep_mlp(std::size_t layers, std::int64_t global_batch) {
  sim::Model model = sim::load_model(fmt::format("sfc,global_batch={}", global_batch));
  const std::vector<sim::Node> sfc = model.nodes;
  const auto layer = static_cast<std::size_t>(model.node_index("fc2"));  // and its activation behind it
  model.nodes.assign(sfc.begin(), sfc.begin() + static_cast<std::ptrdiff_t>(layer));
  const auto add = [&](sim::Node node, const std::string& name) {
    node.name = name;
    if (node.kind->role != sim::OpRole::loss) node.inputs = {static_cast<int>(model.nodes.size()) - 1};
    model.nodes.push_back(node);
  };
  for (std::size_t l = 2; l < layers; ++l) {
    add(sfc[layer], fmt::format("fc{}", l));
    add(sfc[layer + 1], fmt::format("relu{}", l));
  }
  add(sfc[layer], "head");
  add(sfc.back(), sfc.back().name);
  model.classes = static_cast<std::int64_t>(sfc[layer].attributes.at("out_features"));
  model.nodes.back().inputs[0] = static_cast<int>(model.nodes.size()) - 2;
  return model;
}

#ifdef PARAGAUGE_BACKEND
void measured(benchmark::State& state, const Case& what, backend::Session& session, sim::Transport transport) {
  const auto steps = static_cast<std::uint32_t>(state.max_iterations);
  const backend::RunResult run = session.run({.program = what.program, .warmup_steps = 1, .steps = steps});
  std::vector<sim::StepTime> times;
  for ([[maybe_unused]] auto _ : state) {
    times.push_back(sim::step_time(what.program, run.steps[times.size()].timeline));
    state.SetIterationTime(times.back().step_s);
  }
  count(state, what.program, sim::mean(times), transport);
}

/// The same step in plain PyTorch; what it consists of isn't known.
void peer(benchmark::State& state, const Case& what, std::string_view world, bool best, Peers& peers) {
  if (!has_peer(what.model, what.strategy, world)) throw sim::RunError("plain PyTorch has no such step in this world");
  const auto steps = static_cast<std::uint32_t>(state.max_iterations);
  const Peers::Answer answer = peers.run(what.model, what.strategy, world, best, 1, steps);
  if (!answer.skipped.empty()) throw sim::RunError("{}", answer.skipped);
  sim::StepTime mean{0, kUnknown, kUnknown, kUnknown, kUnknown};
  std::size_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    mean.step_s += answer.step_s.at(i) / static_cast<double>(steps);
    state.SetIterationTime(answer.step_s[i++]);
  }
  count(state, what.program, mean);
}
#endif

/// Whether the model can be played so: tensor parallel layers need a chain, for one.
bool fits(const std::string& model_text, const std::string& strategy_text) {
  try {
    const sim::Model model = sim::load_model(model_text);
    return sim::obstacle(model, sim::parse_strategy(strategy_text, model)).empty();
  } catch (const sim::ConfigError&) {
    return false;
  }
}

int run(int argc, char** argv) {
  Machine machine;
  std::string profile_file;
  std::int64_t global_batch = 8, image = 64;
  bool with_peers = false;
  CLI::App app("Google Benchmark suite of paragauge; --benchmark_… flags are Google Benchmark's.");
  add_machine(app, machine, argc, argv);
  app.add_option("--profile", profile_file, "predict with the cost model 'profiled' from this file");
  app.add_option("--global-batch", global_batch, "samples per step")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--image", image, "image size of the ResNets and VGGs")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_flag("--peers", with_peers, "the same steps in plain PyTorch too: peer/… and, at its best, peer_best/…");
  CLI11_PARSE(app, argc, argv);
  std::optional<sim::Profile> profile;
  if (!profile_file.empty()) profile = sim::load_profile(profile_file);

  Subject subject;
  for (const std::string& name : sim::catalog_names("models")) {
    const sim::Model model = sim::load_model(name);
    if (model.is_imported()) continue;  // of the size that it was imported with, up to 8 billion parameters
    const bool has_image = model.input.size() == 3 && model.input[1] >= 64;  // made small enough for a CPU core
    subject.models.push_back(
        fmt::format("{},global_batch={}{}", name, global_batch, has_image ? fmt::format(",image={}", image) : ""));
  }
  for (const sim::StrategyKind& kind : sim::strategy_table()) subject.strategies.emplace_back(kind.example);
#ifdef PARAGAUGE_BACKEND
  sim::Result skipped;
  const std::vector<Job> jobs = make_jobs(subject, machine, &skipped);
  const Worlds worlds = open_worlds(machine, jobs);
  if (worlds.done) return *worlds.done;
  std::optional<Peers> peers;
  constexpr std::uint32_t kPeerRanks = 2;
  if (with_peers) peers.emplace(machine, kPeerRanks);
#endif
  for (const std::string& model : subject.models)
    for (const std::string& strategy : subject.strategies) {
      if (!fits(model, strategy)) continue;
      const auto add = [&](const std::string& kind, const std::string& world, const auto& body) {
        return add_case(kind + "/" + model + "/" + strategy + (world.empty() ? "" : "/" + world),
                        [=](benchmark::State& state) { body(state, Case(model, strategy)); });
      };
      for (const std::string& world : machine.worlds) {
        add("predicted", world,
            [&, world](benchmark::State& state, const Case& what) {
              predicted(state, what, machine.device, world, profile);
            })
            ->UseManualTime()
            ->Iterations(1);
#ifdef PARAGAUGE_BACKEND
        add("measured", world,
            [&worlds, world, transport = sim::machine_cluster(world, machine.device, "", 1, 1).link().transport](
                benchmark::State& state, const Case& what) { measured(state, what, worlds.at(world), transport); })
            ->UseManualTime()
            ->Iterations(3);
        for (const bool best : {false, true})
          if (peers)
            add(best ? "peer_best" : "peer", world,
                [&peers, world, best](benchmark::State& state, const Case& what) {
                  peer(state, what, world, best, *peers);
                })
                ->UseManualTime()
                ->Iterations(3);
#endif
      }
      add("simulator", "", simulator);
    }
  // Many ranks, many microbatches, many roles.
  for (const auto& [model, strategy] :
       {std::pair("resnet50,global_batch=1024", "ddp,dp=1024"),
        std::pair("resnet50,global_batch=256", "pipeline,pp=8,microbatches=16"),
        std::pair("resnet50,global_batch=256", "hypar,levels=2x2x2x2"),
        std::pair("vgg16,global_batch=256", "hypar,levels=2x2x2x2,layers=dp/out/in/dp")})
    add_case(fmt::format("simulator/lower/{}/{}", model, strategy),
             [=](benchmark::State& state) { lowering(state, Case(model, strategy)); });
  const auto add_of_many_ranks = [](const std::string& name, const auto& what) {
    add_case("simulator/lower/" + name, [=](benchmark::State& state) { lowering(state, what()); });
    add_case("simulator/forecast/" + name, [=](benchmark::State& state) { forecasting(state, what()); });
  };
  constexpr const char* kThreeAxes = "mesh,pp=16,dp=128,tp=8,schedule=1f1b,microbatches=128";
  add_of_many_ranks(fmt::format("mlp_of_256_layers/{}", kThreeAxes),
                    [] { return Case(deep_mlp(256, 32768), kThreeAxes); });
  add_of_many_ranks("resnet50/ddp,dp=16384", [] { return Case("resnet50,global_batch=524288", "ddp,dp=16384"); });
  return run_benchmarks(argv[0], app.remaining());
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of_suite("paragauge_suite", bench::run, argc, argv); }
