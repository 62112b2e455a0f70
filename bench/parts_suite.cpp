// The Google Benchmark suite of what steps consist of: every op and every transfer of the catalog's models, as
// `calibrate` measures them.
//
//   build/bin/paragauge_parts_suite --world gloo --benchmark_filter=link
//       --benchmark_out=parts.csv --benchmark_out_format=csv
//
// op/<model>/<work> and link/<world>/<kind>/<bytes>, manual time; counters flops_per_s and bytes_per_s (compulsory
// traffic; for links the size s of nccl-tests over the time). collective/<world>/<kind>/<ranks>/<bytes>, from 8 B to
// --largest: algbw = s over the time and busbw = algbw × factor, as nccl-tests define them (GB/s); the factor is
// 2(n−1)/n for all_reduce, 1 for broadcast, reduce and send, (n−1)/n for the others. All samples of one op come from
// the same runs of its model in order, so that the caches are in a step's state. Worlds of processes are spawned; rank
// 0 drives. --profile FILE keeps all of them as `calibrate` would, for `predict --cost-model fitted --profile FILE`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <optional>
#include <set>

#include "backend/calibrate.hpp"
#include "bench/commands.hpp"
#include "bench/google_benchmark.hpp"
#include "bench/machine.hpp"
#include "sim/calibrate/probe.hpp"
#include "sim/cost/profile.hpp"
#include "sim/error.hpp"

namespace bench {
namespace {

/// Every iteration takes the next sample. Returns iterations per second.
double take(benchmark::State& state, const std::vector<double>& seconds) {
  if (seconds.empty()) throw sim::RunError("no samples");
  double sum_s = 0;
  std::size_t i = 0;
  for ([[maybe_unused]] auto _ : state) {
    const double sample_s = seconds[i++ % seconds.size()];
    state.SetIterationTime(sample_s);
    sum_s += sample_s;
  }
  return static_cast<double>(i) / sum_s;
}

/// `flops` and `bytes`: of one sample.
void report(benchmark::State& state, const std::vector<double>& seconds, double flops, double bytes) {
  const double per_s = take(state, seconds);
  state.counters["flops_per_s"] = flops * per_s;
  state.counters["bytes_per_s"] = bytes * per_s;
}

/// What a transfer of s bytes among n ranks moves over the slowest link, in s (nccl-tests' PERFORMANCE.md).
double bus_factor(const sim::TransferQuestion& question) {
  if (question.kind != sim::InstructionKind::collective) return 1;
  const double others = (question.members - 1.0) / question.members;
  switch (question.collective) {
    case sim::CollectiveKind::all_reduce:
      return 2 * others;
    case sim::CollectiveKind::broadcast:
    case sim::CollectiveKind::reduce:
      return 1;
    case sim::CollectiveKind::all_gather:
    case sim::CollectiveKind::reduce_scatter:
    case sim::CollectiveKind::all_to_all:
    case sim::CollectiveKind::scatter:
    case sim::CollectiveKind::gather:
      return others;
  }
  throw sim::InternalError("collective kind {}", static_cast<int>(question.collective));
}

void transfer(benchmark::State& state, const sim::CalibrationTask& task, backend::Session& session,
              sim::Profile& profile) {
  constexpr std::uint32_t kWarmupSteps = 1, kSteps = 3;
  std::vector<sim::Timeline> steps;
  for (backend::StepResult& step :
       session.run({.program = task.program, .warmup_steps = kWarmupSteps, .steps = kSteps}).steps)
    steps.push_back(std::move(step.timeline));
  const sim::CalibrationSamples samples = sim::samples_of(task, steps);
  add(samples, task, profile);
  const double per_s = take(state, samples.link.transfers);
  const double algbw = static_cast<double>(task.question.bytes) * per_s / 1e9;
  state.counters["algbw_GBps"] = algbw;
  state.counters["busbw_GBps"] = algbw * bus_factor(task.question);
}

/// One task for each size of each kind of transfer in a world.
std::vector<sim::CalibrationTask> transfers_of(const Job& job, std::int64_t largest) {
  constexpr std::uint32_t kRepeats = 8;
  std::vector<sim::TransferQuestion> questions;
  for (std::int64_t bytes = 8; bytes <= largest; bytes *= 8) {
    for (const sim::CollectiveKind kind : sim::kCollectiveKinds)
      questions.push_back({sim::InstructionKind::collective, kind, bytes, job.program.ranks()});
    questions.push_back({sim::InstructionKind::send, {}, bytes, 2});
  }
  std::vector<sim::CalibrationTask> tasks;
  for (const sim::TransferQuestion& question : questions) {
    sim::CalibrationTask& task = tasks.emplace_back();
    task.kind = sim::CalibrationTask::Kind::transfers;
    task.world = job.world;
    task.cluster = job.cluster;
    task.question = question;
    task.program = sim::transfer_probe(question, kRepeats, /*between=*/{}, task.has_unexpected());
  }
  return tasks;
}

int run(int argc, char** argv) {
  Machine machine;
  std::int64_t largest = 64 << 20;
  std::string output;
  std::uint32_t ranks = 2;
  std::vector<std::string> models{"convnet,global_batch=64", "resnet18,image=64,global_batch=8"};
  CLI::App app("Google Benchmark suite of ops and links; --benchmark_… flags are Google Benchmark's.");
  add_machine(app, machine, argc, argv);
  app.add_option("-m,--model", models, "models whose ops are timed")->capture_default_str();
  app.add_option("--ranks", ranks, "of collective/…")->capture_default_str()->check(CLI::Range(2, 1024));
  app.add_option("--largest", largest, "bytes of collective/…")->capture_default_str()->check(CLI::PositiveNumber);
  app.add_option("--profile", output, "file for what is timed, as a profile; a new one");
  CLI11_PARSE(app, argc, argv);
  if (std::filesystem::exists(output))
    throw sim::ConfigError("'{}' is there already; --profile makes a new file", output);
  const std::vector<Job> jobs = make_jobs({models, {"single", "model_parallel", "ddp"}}, machine);
  const std::vector<Job> all_ranks =
      make_jobs({{fmt::format("toy_mlp,global_batch={}", ranks)}, {fmt::format("ddp,dp={}", ranks)}}, machine);
  std::vector<Job> of_worlds = jobs;
  of_worlds.insert(of_worlds.end(), all_ranks.begin(), all_ranks.end());
  const Worlds worlds = open_worlds(machine, of_worlds);
  if (worlds.done) return *worlds.done;
  backend::Calibrator calibrator(sim::calibration_tasks(jobs, {.other_sizes = true}), worlds.by_label());
  const std::vector<sim::CalibrationTask>& tasks = calibrator.tasks();
  std::vector<std::optional<sim::CalibrationSamples>> samples(tasks.size());
  sim::Profile profile(machine.device);
  profile.environment = context(machine, worlds);
  const auto samples_of = [&](std::size_t t) -> const sim::CalibrationSamples& {  // measured when first asked for
    if (!samples[t]) {
      samples[t] = calibrator.visit(t);
      add(*samples[t], tasks[t], profile);
    }
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
  for (const Job& job : all_ranks)
    for (const sim::CalibrationTask& task : transfers_of(job, largest)) {
      const std::string kind = sim::link_key(task.world, task.question).kind;
      add_samples(
          fmt::format("collective/{}/{}/{}/{}", task.world, kind, task.question.members, task.question.bytes),
          [=, &worlds, &profile](benchmark::State& state) { transfer(state, task, worlds.at(task.world), profile); });
    }
  const int status = run_benchmarks(argv[0], app.remaining());
  if (status == 0 && !output.empty()) profile.save(output);
  return status;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) { return bench::main_of_suite("paragauge_parts_suite", bench::run, argc, argv); }
