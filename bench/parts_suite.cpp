// The Google Benchmark suite of what steps consist of: every op and every transfer of the catalog's models, as
// `calibrate` measures them.
//
//   build/bin/paragauge_parts_suite --world gloo --benchmark_filter=link
//       --benchmark_out=parts.csv --benchmark_out_format=csv
//
// op/<model>/<work> and link/<world>/<kind>/<bytes>, manual time; counters flops_per_s and bytes_per_s (compulsory
// traffic; for links the size s of nccl-tests over the time). All samples of one op come from the same runs of its
// model in order, so that the caches are in a step's state. Worlds of processes are spawned; rank 0 drives.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <set>

#include "backend/calibrate.hpp"
#include "bench/commands.hpp"
#include "bench/google_benchmark.hpp"
#include "bench/machine.hpp"
#include "sim/cost/profile.hpp"

namespace bench {
namespace {

/// `flops` and `bytes`: of one sample.
void report(benchmark::State& state, const std::vector<double>& seconds, double flops, double bytes) {
  double sum_s = 0;
  std::size_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    const double sample_s = seconds[i++ % seconds.size()];
    state.SetIterationTime(sample_s);
    sum_s += sample_s;
  }
  state.counters["flops_per_s"] = flops * static_cast<double>(i) / sum_s;
  state.counters["bytes_per_s"] = bytes * static_cast<double>(i) / sum_s;
}

int run(int argc, char** argv) {
  Machine machine;
  std::vector<std::string> models{"convnet,global_batch=64", "resnet18,image=64,global_batch=8"};
  CLI::App app("Google Benchmark suite of ops and links; --benchmark_… flags are Google Benchmark's.");
  add_machine(app, machine, argc, argv);
  app.add_option("-m,--model", models, "models whose ops are timed")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const std::vector<Job> jobs = make_jobs({models, {"single", "model_parallel", "ddp"}}, machine);
  const Worlds worlds = open_worlds(machine, jobs);
  if (worlds.done) return *worlds.done;
  backend::Calibrator calibrator(sim::calibration_tasks(jobs, {.other_sizes = true}), worlds.by_label());
  const std::vector<sim::CalibrationTask>& tasks = calibrator.tasks();
  std::vector<std::optional<sim::CalibrationSamples>> samples(tasks.size());
  const auto samples_of = [&](std::size_t t) -> const sim::CalibrationSamples& {  // measured when first asked for
    if (!samples[t]) samples[t] = calibrator.visit(t);
    return *samples[t];
  };
  std::set<std::string> names;  // what several strategies run is timed in the first one's list
  const auto add_samples = [&names](const std::string& name, const auto& body) {
    if (names.insert(name).second) add_case(name, body)->UseManualTime()->Iterations(5);
  };
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    const sim::CalibrationTask& task = tasks[t];
    if (task.only_computes() && task.busy_devices() == 1) {
      const std::string model = task.jobs.empty() ? "memory" : jobs.at(task.jobs[0]).model.text();
      for (const sim::Work& work : task.program.works)
        add_samples(fmt::format("op/{}/{}", model, sim::work_key(work)), [=, &samples_of](benchmark::State& state) {
          const sim::Demand demand = work.demand();
          report(state, samples_of(t).works.at(sim::work_key(work)), demand.flops, demand.bytes);
        });
    } else if (task.kind == sim::CalibrationTask::Kind::transfers) {
      const std::string kind = sim::link_key(task.world, task.question).kind;
      const auto bytes = static_cast<double>(task.question.bytes);
      add_samples(fmt::format("link/{}/{}/{}", task.world, kind, task.question.bytes),
                  [=, &samples_of](benchmark::State& state) { report(state, samples_of(t).link.transfers, 0, bytes); });
    }
  }
  return run_benchmarks(argv[0], app.remaining());
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of_suite("paragauge_parts_suite", bench::run, argc, argv); }
