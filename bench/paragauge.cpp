// paragauge: predicts, measures and compares training steps of parallel strategies.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/commands.hpp"
#include "sim/error.hpp"

namespace {

constexpr int kConfigErrorStatus = 2, kRunErrorStatus = 75, kInternalErrorStatus = 70;

void add_subject(CLI::App* command, bench::Subject& subject) {
  command
      ->add_option(
          "-m,--model", subject.models,
          "what: name or .json file[,image=S][,global_batch=B][,loss=…][,optimizer=…][,dtype=f64][,timing=tutorial]")
      ->required();
  command
      ->add_option("-s,--strategy", subject.strategies,
                   "how: single, model_parallel, pipeline, ddp or degrees (dp=2,pp=2) with ,key=value")
      ->required();
}

void add_machine(CLI::App* command, bench::Machine& machine, bool several_worlds) {
  auto* worlds = command->add_option("-w,--world", machine.worlds, "on what: local (threads) or gloo (processes)");
  if (!several_worlds) worlds->expected(1);
  command->add_option("--device", machine.device, "cpu or cuda")->capture_default_str();
  command->add_option("--ranks", machine.ranks, "ranks; must be what the strategy's degrees multiply to");
  command->add_option("--timeout", machine.timeout_s, "seconds after which a rank that doesn't get on ends the run")
      ->capture_default_str();
  command->add_option("--network", machine.network,
                      "gloo over links of this rate (100mbit, 1gbit, unlimited), made by bench/network.sh");
  command->add_flag("!--no-real-time", machine.real_time, "don't ask for real-time scheduling");
}

void add_output(CLI::App* command, bench::Output& output) {
  command->add_option("--json", output.json, "write the results to this file");
  command->add_option("--csv", output.csv, "write the table to this file");
}

void add_details(CLI::App* command, bench::Output& output) {
  command->add_flag("--details", output.details, "all tables: intervals, what the time and the memory consist of");
}

int run(int argc, char** argv) {
  CLI::App app("Predicts, measures and compares training steps of parallel strategies.");
  app.require_subcommand(1);
  const std::vector<std::string> arguments(argv, argv + argc);
  int status = 0;

  app.add_subcommand("list", "Models, strategies, schedules, clusters, devices, cost models, worlds")->callback([&] {
    status = bench::list();
  });

  std::vector<std::string> models;
  std::int64_t rows = 0;
  CLI::App* describe =
      app.add_subcommand("describe", "A model's table: shape, parameters, FLOPs, bytes, activations per node");
  describe->add_option("model", models, "name or .json file, with ,key=value")->required();
  describe->add_option("--rows", rows, "samples per pass; the model's global_batch unless given")
      ->check(CLI::PositiveNumber);
  describe->callback([&] { status = bench::describe(models, rows); });

  bench::PredictOptions predict_options;
  CLI::App* predict =
      app.add_subcommand("predict", "Step time and memory of each model and strategy, without running them");
  add_subject(predict, predict_options.subject);
  predict->add_option("-c,--cluster", predict_options.cluster,
                      "a cluster of the catalog or a .json file; this machine unless given");
  predict->add_option("--devices", predict_options.devices, "devices per node");
  predict->add_option(
      "--scale", predict_options.scale,
      "what if: flops=, memory_bandwidth=, bandwidth= (2: twice as fast), latency=, launch= (2: twice as long)");
  predict
      ->add_option("--epoch", predict_options.epoch,
                   "also the time of an epoch of so many samples; its last batch may be smaller")
      ->check(CLI::PositiveNumber);
  predict->add_option("--network", predict_options.machine.network,
                      "gloo over links of this rate (100mbit, 1gbit, unlimited)");
  predict->add_option("-w,--world", predict_options.machine.worlds, "this machine's worlds: local, gloo");
  predict->add_option("--device", predict_options.machine.device, "cpu or cuda")->capture_default_str();
  predict->add_option("--ranks", predict_options.machine.ranks,
                      "ranks; must be what the strategy's degrees multiply to");
  predict
      ->add_option("--cost-model", predict_options.cost_models,
                   "analytic (data sheets); with a --profile: profiled (its shapes), fitted (others)")
      ->capture_default_str();
  predict->add_option("--profile", predict_options.profile, "a profile that `calibrate` wrote");
  predict->add_flag("--program", predict_options.print_program, "print the Programs instead");
  add_output(predict, predict_options.output);
  add_details(predict, predict_options.output);
  predict->callback([&] { status = bench::predict(predict_options); });

  bench::MeasureOptions measure_options;
  measure_options.machine.argv = arguments;
  CLI::App* measure = app.add_subcommand("measure", "Runs steps on this machine");
  add_subject(measure, measure_options.subject);
  add_machine(measure, measure_options.machine, true);
  measure->add_option("--warmup", measure_options.warmup_steps, "steps not counted, first")->capture_default_str();
  measure->add_option("--steps", measure_options.steps, "steps counted")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  measure->add_flag("--verify", measure_options.verify,
                    "in float64, compare loss, gradients and parameters with one device playing the same partition");
  add_output(measure, measure_options.output);
  add_details(measure, measure_options.output);
  measure->callback([&] { status = bench::measure(measure_options); });

  bench::CalibrateOptions calibrate_options;
  calibrate_options.machine.argv = arguments;
  CLI::App* calibrate =
      app.add_subcommand("calibrate", "Measures ops and links into a profile; goes on where an earlier run stopped");
  add_subject(calibrate, calibrate_options.subject);
  add_machine(calibrate, calibrate_options.machine, true);
  calibrate->add_option("--rounds", calibrate_options.rounds, "passes over everything")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  calibrate->add_option("-o,--output", calibrate_options.output, "the profile")->required();
  calibrate->callback([&] { status = bench::calibrate(calibrate_options); });

  bench::CompareOptions compare_options;
  compare_options.machine.argv = arguments;
  CLI::App* compare =
      app.add_subcommand("compare", "Rounds of calibration, forecast and measurement; how far the forecasts are off");
  add_subject(compare, compare_options.subject);
  add_machine(compare, compare_options.machine, true);
  compare->add_option("--rounds", compare_options.rounds, "rounds")->capture_default_str()->check(CLI::PositiveNumber);
  compare->add_option("--visits", compare_options.visits, "how often a round comes to every cell: times that lie apart")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  compare->add_option("--steps", compare_options.steps, "measured steps per cell and visit, at least")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  compare
      ->add_option("--time-limit", compare_options.time_limit_s, "seconds after which no further round begins; 0: none")
      ->capture_default_str();
  compare->add_option(
      "--fit-on", compare_options.fit_on,
      "models whose ops are measured for the cost model 'fitted', which sees none of the compared models'");
  compare->add_option("--profile", compare_options.profile, "keep all rounds' calibration in this profile");
  compare->add_flag("--peers", compare_options.peers,
                    "the same steps in plain PyTorch (bench/peers), in the same rounds");
  compare->add_option("--seed", compare_options.seed, "of the order within a round")->capture_default_str();
  add_output(compare, compare_options.output);
  add_details(compare, compare_options.output);
  compare->callback([&] { status = bench::compare(compare_options); });

  bench::ReportOptions report_options;
  CLI::App* report = app.add_subcommand("report", "Result files together: errors, coverage of the forecast intervals");
  report->add_option("files", report_options.files, "result files (.json) of compare or measure")->required();
  report->add_option("--record", report_options.record, "write how far the forecasts were off, for `predict`");
  add_output(report, report_options.output);
  report->callback([&] { status = bench::report(report_options); });

  bench::TraceOptions trace_options;
  trace_options.machine.argv = arguments;
  CLI::App* trace =
      app.add_subcommand("trace", "Predicted and measured timeline of one step as a Chrome trace (Perfetto)");
  add_subject(trace, trace_options.subject);
  add_machine(trace, trace_options.machine, false);
  trace->add_option("--profile", trace_options.profile, "a profile; calibrated on the spot unless given");
  trace->add_option("-o,--output", trace_options.output, "the trace file")->required();
  trace->callback([&] { status = bench::trace(trace_options); });

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kConfigErrorStatus;
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const sim::ConfigError& error) {
    fmt::print(stderr, "paragauge: {}\n", error.what());
    return kConfigErrorStatus;
  } catch (const sim::RunError& error) {
    fmt::print(stderr, "paragauge: {}\n", error.what());
    return kRunErrorStatus;
  } catch (const std::exception& error) {
    fmt::print(stderr, "paragauge: {}\n", error.what());
    return kInternalErrorStatus;
  }
}
