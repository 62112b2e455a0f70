// The Google Benchmark suite of what steps consist of: every op and every transfer of the catalog's models, as
// `calibrate` measures them.
//
//   build/bin/paragauge_parts_suite --world gloo --benchmark_filter=link
//       --benchmark_out=parts.csv --benchmark_out_format=csv
//
// op/<model>/<work> and link/<world>/<kind>/<bytes>, manual time; counters flops_per_s and bytes_per_s (compulsory
// traffic; for links the size s of nccl-tests over the time). All samples of one op come from the same plays of its
// model in order, so that the caches are in a step's state. Worlds of processes are spawned; rank 0 drives.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <optional>

#include "bench/calibration.hpp"
#include "bench/commands.hpp"
#include "bench/google_benchmark.hpp"
#include "bench/machine.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

constexpr std::uint32_t kSteps = 5;

/// Measured when the first benchmark of the task asks for it.
class Samples {
 public:
  Samples(CalibrationTask task, const Worlds& worlds) : task_(std::move(task)), worlds_(worlds) {
    task_.steps = kSteps;
  }
  [[nodiscard]] const CalibrationTask& task() const { return task_; }
  const CalibrationSamples& get() {
    if (!samples_) samples_ = measure_task(task_, worlds_);
    return *samples_;
  }

 private:
  CalibrationTask task_;
  const Worlds& worlds_;
  std::optional<CalibrationSamples> samples_;
};

void play(benchmark::State& state, const std::vector<double>& seconds, double flops, double bytes) {
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

void add_ops(const std::shared_ptr<Samples>& samples, const std::string& model) {
  for (const sim::Work& work : samples->task().program.works) {
    const std::string key = sim::work_key(work);
    const sim::Demand demand = work.demand();
    benchmark::RegisterBenchmark(
        ("op/" + model + "/" + key).c_str(),
        [=](benchmark::State& state) {
          guarded(state, [&] { play(state, samples->get().works.at(key), demand.flops, demand.bytes); });
        })
        ->UseManualTime()
        ->Iterations(kSteps);
  }
}

void add_link(const std::shared_ptr<Samples>& samples) {
  const sim::TransferQuestion& question = samples->task().question;
  const std::string kind(question.kind == sim::InstructionKind::collective ? sim::to_string(question.collective)
                                                                           : sim::to_string(question.kind));
  const auto bytes = static_cast<double>(question.bytes);
  benchmark::RegisterBenchmark(
      fmt::format("link/{}/{}/{}", samples->task().world, kind, question.bytes).c_str(),
      [=](benchmark::State& state) { guarded(state, [&] { play(state, samples->get().link.transfers, 0, bytes); }); })
      ->UseManualTime()
      ->Iterations(kSteps);
}

int run(int argc, char** argv) {
  Machine machine;
  machine.argv.assign(argv, argv + argc);
  std::vector<std::string> models{"convnet,global_batch=64", "resnet18,image=64,global_batch=8"};
  CLI::App app("Google Benchmark suite of ops and links; --benchmark_… flags are Google Benchmark's.");
  app.allow_extras();
  app.add_option("-w,--world", machine.worlds, sim::machine_world_table().names())->capture_default_str();
  app.add_option("--device", machine.device, "cpu or cuda")->capture_default_str();
  app.add_option("-m,--model", models, "models whose ops are timed")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  }
  const std::vector<Job> jobs = make_jobs({models, {"single", "model_parallel", "ddp"}}, machine);
  const auto [opened, exit_status_if_done_by_ranks] = open_worlds(machine, jobs);
  if (!opened) return exit_status_if_done_by_ranks;
  const Worlds& worlds = *opened;
  for (const CalibrationTask& task : calibration_tasks(jobs, worlds.busy_ranks(), true)) {
    const auto samples = std::make_shared<Samples>(task, worlds);
    if (task.copies == 1)
      add_ops(samples, task.jobs.empty() ? "memory" : jobs.at(task.jobs[0]).model.text());
    else if (task.copies == 0 && !task.overlap)
      add_link(samples);
  }
  return run_benchmarks(argv[0], app.remaining());
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of_suite("paragauge_parts_suite", bench::run, argc, argv); }
