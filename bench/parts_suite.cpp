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
#include <cstdio>
#include <memory>
#include <optional>

#include "backend/calibrate.hpp"
#include "bench/commands.hpp"
#include "bench/google_benchmark.hpp"
#include "bench/machine.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/measured_transfer.hpp"
#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

constexpr std::uint32_t kIterations = 5;

/// Measured when the first benchmark of the task asks for it.
class Samples {
 public:
  Samples(backend::Calibrator& calibrator, std::size_t task) : calibrator_(calibrator), number_(task) {}
  [[nodiscard]] const sim::CalibrationTask& task() const { return calibrator_.tasks()[number_]; }
  const sim::CalibrationSamples& get() {
    if (!samples_) samples_ = calibrator_.visit(number_);
    return *samples_;
  }

 private:
  backend::Calibrator& calibrator_;
  std::size_t number_;
  std::optional<sim::CalibrationSamples> samples_;
};

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

void add_ops(const std::shared_ptr<Samples>& samples, const std::string& model) {
  for (const sim::Work& work : samples->task().program.works) {
    const std::string key = sim::work_key(work);
    const sim::Demand demand = work.demand();
    benchmark::RegisterBenchmark(
        ("op/" + model + "/" + key).c_str(),
        [=](benchmark::State& state) {
          guarded(state, [&] { report(state, samples->get().works.at(key), demand.flops, demand.bytes); });
        })
        ->UseManualTime()
        ->Iterations(kIterations);
  }
}

void add_link(const std::shared_ptr<Samples>& samples) {
  const sim::TransferQuestion& question = samples->task().question;
  const std::string kind = sim::link_key(samples->task().world, question).kind;
  const auto bytes = static_cast<double>(question.bytes);
  benchmark::RegisterBenchmark(
      fmt::format("link/{}/{}/{}", samples->task().world, kind, question.bytes).c_str(),
      [=](benchmark::State& state) { guarded(state, [&] { report(state, samples->get().link.transfers, 0, bytes); }); })
      ->UseManualTime()
      ->Iterations(kIterations);
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
  backend::Calibrator calibrator(sim::calibration_tasks(jobs, {.other_sizes = true}), worlds.by_label());
  for (std::size_t t = 0; t < calibrator.tasks().size(); ++t) {
    const sim::CalibrationTask& task = calibrator.tasks()[t];
    const auto samples = std::make_shared<Samples>(calibrator, t);
    if (task.copies == 1)
      add_ops(samples, task.jobs.empty() ? "memory" : jobs.at(task.jobs[0]).model.text());
    else if (task.kind == sim::CalibrationTask::Kind::transfers)
      add_link(samples);
  }
  return run_benchmarks(argv[0], app.remaining());
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of_suite("paragauge_parts_suite", bench::run, argc, argv); }
