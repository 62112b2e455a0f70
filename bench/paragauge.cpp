// paragauge: predicts, measures and compares training steps of parallel strategies.
#include <fmt/format.h>

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <new>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "bench/commands.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/error.hpp"
#include "sim/plan/method.hpp"
#include "sim/strategy/strategy.hpp"
#include "sim/text/file.hpp"
#include "sim/text/spec.hpp"
#ifdef PARAGAUGE_BACKEND
#include "backend/session.hpp"
#include "backend/supervise.hpp"
#endif
#if defined(PARAGAUGE_BACKEND) || defined(PARAGAUGE_TORCH_PROGRAM)
#include "backend/machine/launch.hpp"
#include "backend/machine/quiet.hpp"
#endif

namespace {

using bench::Options;
using Texts = std::vector<std::string>;

/// Whether another process of the same command line, the one that has started this one or
/// rank 0, answers for the files.
bool is_only_a_rank() {
#ifdef PARAGAUGE_BACKEND
  return backend::is_rank_process() && !backend::is_first_of_its_own();
#else
  return false;
#endif
}

// ---- Options, each with what its text must be; CLI11 puts the option's name before what the check says.

template <class Target>
CLI::Option* text(CLI::App* command, const char* name, Target& target, const std::string& help) {
  return command->add_option(name, target, help)
      ->check(CLI::Validator([](const std::string& given) { return given.empty() ? "must not be empty" : ""; }, ""));
}

template <class Number>
void number(CLI::App* command, const char* name, Number& target, std::type_identity_t<Number> least,
            std::type_identity_t<Number> most, const char* help) {
  CLI::Option* option = command->add_option(name, target, help);
  if (target != 0) option->capture_default_str();  // 0 stands for "not given"
  const auto refusal = [=](const std::string& given) -> std::string {
    Number value = 0;
    const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), value);
    if (error == std::errc() && end == given.data() + given.size() && value >= least && value <= most) return "";
    return fmt::format("must be a {} from {} to {}, found '{}'", std::is_integral_v<Number> ? "whole number" : "number",
                       least, most, given);
  };
  option->check(CLI::Validator(refusal, ""));
}

void add_subject(CLI::App* command, Options& options) {
  text(command, "-m,--model", options.subject.models,
       "what: a model of the catalog or a .json file, with ,image= ,global_batch= or ,device_batch= (of each replica), "
       ",loss= ,optimizer=sgd:lr=0.1:momentum=0.9 ,dtype=f64 ,precision=bf16 (autocast; fp16 also scales the loss; "
       "tf32, ieee) ,max_grad_norm=1 ,memory_format=channels_last ,timing=")
      ->required();
  text(command, "-s,--strategy", options.subject.strategies,
       fmt::format("how: {} or degrees (dp=2,pp=2), with ,key=value and ,threads=k (ranks of k threads on k CPU "
                   "cores); `paragauge list` shows the keys",
                   sim::strategy_table().names()))
      ->required();
}

void add_world(CLI::App* command, bench::Machine& machine) {
  text(command, "-w,--world", machine.worlds,
       fmt::format("on what: ranks of this machine ({})", sim::world_table().names()));
  text(command, "--device", machine.device, "cpu or cuda")->capture_default_str();
  text(command, "--network", machine.network,
       "gloo over links of this rate (100mbit, 1gbit, unlimited): made by bench/network.sh, or those between hosts");
}

void add_ranks(CLI::App* command, bench::Machine& machine) {
  number(command, "--ranks", machine.ranks, 1, 1'048'576, "ranks; must be what the strategy's degrees multiply to");
}

void add_graph(CLI::App* command, bench::Machine& machine) {
  command->add_flag(
      "--graph", machine.graph,
      "accelerators: each rank captures its second step (CUDA graph) and replays it, one launch a step; only "
      "the whole step has a time then. Forecast with one launch, as long as a kernel's");
}

/// What commands that run on this machine take.
void add_run(CLI::App* command, Options& options) {
  add_subject(command, options);
  add_world(command, options.machine);
  add_ranks(command, options.machine);
  number(command, "--timeout", options.machine.timeout_s, 0.1, 86'400,
         "seconds after which a rank that doesn't get on ends the run");
  command->add_flag("!--no-real-time", options.machine.real_time, "don't ask for real-time scheduling");
  command->add_flag("--anyway", options.machine.anyway, "also run what needs more memory by its forecast than is free");
}

void add_files(CLI::App* command, Options& options) {
  text(command, "--json", options.json, "write the results to this file");
  text(command, "--csv", options.csv, "write the table to this file");
}

void add_results(CLI::App* command, Options& options) {
  add_files(command, options);
  command->add_flag("--details", options.details, "all tables: intervals, what the time and the memory consist of");
}

void add_measured_results(CLI::App* command, Options& options) {
  add_results(command, options);
  command->add_flag("--raw", options.raw, "keep every measured step in the --json file, not only each round's numbers");
}

#ifdef PARAGAUGE_BACKEND
using bench::calibrate, bench::compare, bench::measure, bench::trace, bench::train, bench::write_machine;
#elif defined(PARAGAUGE_TORCH_PROGRAM)
/// Goes on as the program that has LibTorch, with the same command line.
int hand_over(const Options& options) {
  Texts texts = options.machine.argv;
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program = (own.parent_path() / PARAGAUGE_TORCH_PROGRAM).lexically_normal();
  execv(program.c_str(), arguments.data());
  throw sim::RunError("{}, which runs on devices, can't be executed: {}", program, std::strerror(errno));
}
constexpr auto calibrate = hand_over, compare = hand_over, measure = hand_over, trace = hand_over, train = hand_over,
               write_machine = hand_over;
#else
int refuse_to_run(const Options& options) {
  throw sim::ConfigError(
      "{}: built without LibTorch, so only list, describe, predict, plan and report work; bench/setup.sh installs it",
      options.machine.argv.at(1));
}
constexpr auto calibrate = refuse_to_run, compare = refuse_to_run, measure = refuse_to_run, trace = refuse_to_run,
               train = refuse_to_run, write_machine = refuse_to_run;
#endif

// ---- The commands

struct Command {
  std::string_view name;
  const char* description;
  int (*run)(const Options&);
  void (*add_options)(CLI::App*, Options&);
  const char* examples;
  void (*check)(const CLI::App&, const Options&) = nullptr;  // what goes together; ConfigError
  bool has_ranks = false;                                    // that meet; plan has them with --measure
};

void add_nothing(CLI::App* /*command*/, Options& /*options*/) {}

/// All of it is for bench/import, --help too.
void add_import(CLI::App* command, Options& /*options*/) {
  command->set_help_flag();
  command->prefix_command();
}

void add_describe(CLI::App* command, Options& options) {
  text(command, "model", options.subject.models, "what: a model of the catalog or a .json file, with ,key=value")
      ->required();
  number(command, "--rows", options.rows, 1, 10'000'000, "samples per pass; the model's global_batch unless given");
}

/// A machine other than the one that there is.
void add_what_if(CLI::App* command, Options& options) {
  text(command, "--scale", options.scale,
       "what if: flops=, memory_bandwidth=, bandwidth= (2: twice as fast), latency=, launch= (2: twice as long)");
  number(command, "--memory", options.memory_GiB, 0.001, 1e6, "GiB of each device; what it has unless given");
}

void add_predict(CLI::App* command, Options& options) {
  add_subject(command, options);
  text(command, "-c,--cluster", options.cluster,
       "on what: a cluster of the catalog or a .json file; this machine unless given");
  add_world(command, options.machine);
  add_ranks(command, options.machine);
  number(command, "--devices", options.devices, 1, 1'048'576, "devices per node");
  number(command, "--hosts", options.hosts, 1, 10'000,
         "so many hosts like this one, with ranks on all of their devices; links as a --profile of several hosts has "
         "them");
  add_what_if(command, options);
  number(command, "--epoch", options.epoch, 1, 1'000'000'000'000,
         "also the time of an epoch of so many samples; its last batch may be smaller (as of PyTorch's "
         "DistributedSampler and DataLoader)");
  command->add_flag("--drop-last", options.drop_last, "of an epoch: without its last batch where that is smaller");
  add_graph(command, options.machine);
  text(command, "--cost-model", options.cost_models,
       fmt::format("{}: analytic needs data sheets, the others a --profile", sim::cost_model_table().names()))
      ->capture_default_str();
  text(command, "--profile", options.profile, "a profile that `calibrate` wrote");
  command->add_flag("--program", options.print_program, "print the Programs instead");
  add_results(command, options);
}

void add_plan(CLI::App* command, Options& options) {
  text(command, "-m,--model", options.subject.models, "what: one model of the catalog or a .json file, with ,key=value")
      ->required()
      ->expected(1);
  text(command, "-c,--cluster", options.cluster,
       "on what: a cluster of the catalog or a .json file; this machine unless given");
  add_world(command, options.machine);
  text(command, "--method", options.method, fmt::format("how to look for strategies: {}", sim::method_table().names()))
      ->capture_default_str();
  number(command, "--devices", options.plan_devices, 1, 1'048'576, "how many of its devices; all unless given");
  add_what_if(command, options);
  number(command, "--top", options.top, 1, 10'000, "strategies to show");
  number(command, "--measure", options.measure, 1, 100,
         "also run so many of the best, beside their forecasts; what is measured goes beside --json and --csv, into "
         "NAME.measured.json and .csv");
  text(command, "--cost-model", options.cost_models, fmt::format("one of {}", sim::cost_model_table().names()))
      ->expected(1)
      ->capture_default_str();
  text(command, "--profile", options.profile, "a profile that `calibrate` wrote");
  add_files(command, options);
  command->add_flag("--details", options.details,
                    "why what is left out is; with --measure also all tables of what is measured");
  options.compare = compare;
}

void refuse_together(const CLI::App& command, const char* option, const std::vector<const char*>& others,
                     std::string_view why) {
  for (const char* other : others)
    if (command.count(option) > 0 && command.count(other) > 0)
      throw sim::ConfigError("{}: {} can't be combined with {}: {}", command.get_name(), option, other, why);
}

void check_profile(const CLI::App& command, const Options& options) {
  Texts readers;
  for (const sim::CostModelKind& kind : sim::cost_model_table())
    if (kind.needs_profile) readers.emplace_back(kind.name);
  if (!options.profile.empty() && std::ranges::find_first_of(options.cost_models, readers) == options.cost_models.end())
    throw sim::ConfigError("{}: --profile is read by --cost-model {} only, found {}", command.get_name(),
                           fmt::to_string(fmt::join(readers, " and ")),
                           fmt::to_string(fmt::join(options.cost_models, ", ")));
}

void check_predict(const CLI::App& command, const Options& options) {
  refuse_together(command, "--cluster", {"--world", "--device", "--network", "--hosts"},
                  "a cluster is a machine of its own, and the other is about this one");
  refuse_together(command, "--program",
                  {"--json", "--csv", "--details", "--epoch", "--drop-last", "--scale", "--memory", "--profile",
                   "--cost-model", "--graph"},
                  "it prints the Programs and forecasts nothing");
  if (options.drop_last && options.epoch == 0)
    throw sim::ConfigError("predict: --drop-last is about the last step of an --epoch, which isn't given");
  check_profile(command, options);
}

void check_plan(const CLI::App& command, const Options& options) {
  refuse_together(command, "--cluster", {"--world", "--device", "--network", "--measure"},
                  "a cluster is a machine of its own, and the other is about this one");
  refuse_together(command, "--memory", {"--measure"}, "what runs has the memory that there is");
  refuse_together(command, "--scale", {"--measure"}, "what runs is as fast as it is");
  check_profile(command, options);
}

void add_measure(CLI::App* command, Options& options) {
  add_run(command, options);
  add_graph(command, options.machine);
  number(command, "--warmup", options.warmup_steps, 0, 1'000'000, "steps not counted, first; with --graph at least 2");
  options.steps = 5;
  number(command, "--steps", options.steps, 1, 1'000'000, "steps counted");
  command->add_flag("--verify", options.verify,
                    "in float64, compare loss, gradients and parameters with one device executing the same partition");
  add_measured_results(command, options);
}

void add_calibrate(CLI::App* command, Options& options) {
  add_run(command, options);
  options.rounds = 3;
  number(command, "--rounds", options.rounds, 1, 100'000, "passes over everything");
  text(command, "-o,--output", options.output, "the profile")->required();
}

void add_machine(CLI::App* command, Options& options) {
  options.machine.worlds = {""};
  text(command, "-w,--world", options.machine.worlds,
       "nccl: of the GPUs, gloo: of the CPU's cores; nccl unless given, where there are GPUs")
      ->expected(1);
  number(command, "--timeout", options.machine.timeout_s, 0.1, 86'400,
         "seconds until all hosts of the launch must be there");
  text(command, "-o,--output", options.output, "the cluster file")->required();
}

void add_compare(CLI::App* command, Options& options) {
  add_run(command, options);
  add_graph(command, options.machine);
  number(command, "--rounds", options.rounds, 1, 100'000, "rounds");
  number(command, "--visits", options.visits, 1, 1'000, "how often a round comes to every cell: times that lie apart");
  number(command, "--steps", options.steps, 1, 1'000'000, "measured steps per cell and visit, at least");
  number(command, "--time-limit", options.time_limit_s, 0, 1e7,
         "seconds: no round but the first begins that would end later; 0: none");
  text(command, "--fit-on", options.fit_on,
       "models whose ops are measured for the cost model 'fitted', which sees none of the compared models'");
  command->add_flag("--peers", options.peers,
                    "the same steps in plain PyTorch (bench/peers), in the same rounds; of an imported model by the "
                    "module that its file names, whose code is run");
  number(command, "--seed", options.seed, 0, 4'294'967'295, "of the order within a round");
  add_measured_results(command, options);
}

void check_compare(const CLI::App& command, const Options& /*options*/) {
  refuse_together(command, "--graph", {"--peers"}, "plain PyTorch launches op by op");
}

void add_report(CLI::App* command, Options& options) {
  text(command, "files", options.files, "result files (.json) of compare or measure")->required();
  text(command, "--record", options.record, "write how far the forecasts were off, for `predict`");
  add_files(command, options);
  command->add_flag(
      "--compact", options.compact,
      "the --json file as compare writes it: what was measured, without the rows that are computed from it");
}

void add_trace(CLI::App* command, Options& options) {
  add_run(command, options);
  text(command, "--profile", options.profile, "a profile; calibrated on the spot unless given");
  text(command, "-o,--output", options.output, "the trace file")->required();
}

void add_train(CLI::App* command, Options& options) {
  add_run(command, options);
  options.cost_models = {"profiled"};
  text(
      command, "--data", options.data,
      "folder of CIFAR-10's binary files (data_batch_1.bin …, and test_batch.bin but for imported models, which aren't "
      "tested); a small learnable set is made unless given");
  number(command, "--samples", options.samples, 1, 1'000'000'000,
         "to train on: the files' first, or so many made ones; all, or 2000, unless given");
  number(command, "--epochs", options.epochs, 1, 1'000'000, "passes over the samples, each in an order of its own");
  number(command, "--seed", options.seed, 0, 4'294'967'295, "of the first parameters, the order, and made samples");
  command->add_flag(
      "--phases", options.phases,
      "daso: warm-up, cycling and cool-down by the losses, as in Heat: skips and waits of its own each epoch");
  text(command, "--checkpoint", options.checkpoint,
       "parameters, buffers and the optimizer's states after each epoch, in safetensors' format; where the file is "
       "there, "
       "training goes on from it");
  text(command, "--cost-model", options.cost_models, fmt::format("one of {}", sim::cost_model_table().names()))
      ->expected(1)
      ->capture_default_str();
  text(command, "--profile", options.profile, "a profile; calibrated on the spot unless given");
  text(command, "-o,--output", options.output,
       "losses, accuracy (not of an imported model) and times of the epochs, as JSON");
}

constexpr const char* kExamples =
    "Examples:\n"
    "  paragauge predict -m resnet50 -s ddp,dp=8 -c dgx_a100          a machine you don't have, from data sheets\n"
    "  paragauge predict -m convnet -s single -s ddp -w gloo          this machine, from data sheets\n"
    "  paragauge import net.py:build --input f32[B,3,64,64] -o n.json a PyTorch module of your own, for -m n.json\n"
    "  paragauge plan -m resnet50,global_batch=256 -c dgx_a100        which strategy is fastest there\n"
    "  paragauge machine -o box.json                                  a cluster file of this machine, for -c\n"
    "  paragauge compare -m convnet -s single -s ddp --json r.json    forecast and measurement side by side\n"
    "  paragauge report r.json                                        how far the forecasts were off\n"
    "  paragauge measure -m convnet -s ddp -w gloo --verify           run it, and check it against one device\n"
    "  paragauge calibrate -m convnet -s ddp -o cpu.json              this machine's ops and links\n"
    "  paragauge trace -m convnet -s pipeline,pp=2 -o t.json          both timelines of a step, for Perfetto\n"
    "  paragauge train -m convnet -s ddp -w gloo --checkpoint c       epochs: loss, accuracy and times\n"
    "'paragauge predict --help' and so on show what each command takes.";

constexpr std::array kCommands{
    Command{"list", "What there is: models, strategies, schedules, clusters, devices, cost models, worlds", bench::list,
            add_nothing, kExamples},
    Command{"describe", "A model's table: shape, parameters, FLOPs, bytes, activations per node", bench::describe,
            add_describe, "Example:\n  paragauge describe resnet50,image=128"},
    Command{"import", "A PyTorch module of your own becomes a model file, checked against the module",
            bench::import_model, add_import, ""},
    Command{"predict", "Step time and memory of each model and strategy, without running them", bench::predict,
            add_predict,
            "Examples:\n"
            "  paragauge predict -m resnet50 -s single -s ddp,dp=8 -c dgx_a100\n"
            "  paragauge predict -m resnet50 -s ddp,dp=8 -c dgx_a100 --scale bandwidth=0.1,latency=10\n"
            "  paragauge predict -m convnet -s pipeline,pp=2,split_size=8 --program",
            check_predict},
    Command{"plan", "Which strategy is fastest on so many devices, of all that there are and that fit", bench::plan,
            add_plan,
            "Examples:\n"
            "  paragauge plan -m resnet50,global_batch=256 -c dgx_a100\n"
            "  paragauge plan -m vgg16,global_batch=256 -c dgx_a100 --method hypar\n"
            "  paragauge plan -m convnet --devices 2 -w gloo --method layers --measure 2",
            check_plan},
    Command{"machine", "Writes a cluster file of this machine, and the other hosts of a launch, for --cluster",
            write_machine, add_machine,
            "Examples:\n"
            "  paragauge machine -o box.json\n"
            "  torchrun --no-python --nnodes=2 --nproc_per_node=1 … paragauge machine -o pair.json",
            nullptr, true},
    Command{"measure", "Runs steps on this machine, and with --verify checks their results", measure, add_measure,
            "Examples:\n"
            "  paragauge measure -m convnet -s single -s ddp -w gloo --verify\n"
            "  torchrun --no-python --nproc_per_node=2 paragauge measure -m convnet -s ddp -w gloo\n"
            "  srun --nodes=2 --ntasks-per-node=8 paragauge measure -m resnet50 -s ddp,dp=16 -w nccl --device cuda\n"
            "  mpirun --host a:2,b:2 -x MASTER_ADDR=a paragauge measure -m convnet -s ddp,dp=4 -w gloo",
            nullptr, true},
    Command{"calibrate", "Measures ops and links into a profile; goes on where an earlier run stopped", calibrate,
            add_calibrate, "Example:\n  paragauge calibrate -m convnet -s ddp -w local gloo -o cpu.json", nullptr,
            true},
    Command{"compare", "Rounds of calibration, forecast and measurement; how far the forecasts are off", compare,
            add_compare,
            "Examples:\n"
            "  paragauge compare -m convnet -s single,threads=2 -s ddp -w gloo --peers --json r.json\n"
            "  paragauge compare -m resnet18,image=64 -s ddp -w gloo --network 1gbit --json n.json",
            check_compare, true},
    Command{"report", "Result files together: errors, coverage of the forecast intervals", bench::report, add_report,
            "Example:\n  paragauge report r.json n.json --csv all.csv"},
    Command{"trace", "Predicted and measured timeline of one step as a Chrome trace (Perfetto)", trace, add_trace,
            "Example:\n  paragauge trace -m convnet -s pipeline,pp=2 -o t.json", nullptr, true},
    Command{"train", "Trains on CIFAR-10's files or a made set: loss, accuracy, and times beside forecasts", train,
            add_train,
            "Examples:\n"
            "  paragauge train -m convnet,timing=epoch -s ddp -w gloo --data cifar-10-batches-bin --checkpoint "
            "c.safetensors\n"
            "  paragauge train -m linear_lightning,device_batch=32 -s ddp -w gloo --samples 1000",
            check_profile, true}};
constexpr sim::Table<Command> kTable("command", kCommands);

// ---- What is done before any command runs

constexpr double kSearch_s = 600;  // that rank 0 of a launch may look for strategies, before it comes

/// Whether ranks of a launch meet for such a command line, or would if it were right.
bool has_ranks(const Texts& argv) {
  const auto command = std::ranges::find(kCommands, argv.size() > 1 ? argv[1] : "", &Command::name);
  return command == kCommands.end() || command->has_ranks ||
         (command->run == bench::plan &&
          std::ranges::any_of(argv, [](const std::string& text) { return text.starts_with("--measure"); }));
}

/// What is given twice is used once.
void use_once(Texts& texts) {
  Texts kept;
  for (const std::string& text : texts)
    if (std::ranges::count(kept, text) == 0) kept.push_back(text);
  texts = kept;
}

/// Locks the files that a command writes, for as long as it runs. ConfigError when two of them are one, or when one is
/// also read.
std::vector<sim::FileLock> claim(const Options& options) {
  std::vector<sim::FileLock> locks;
  if (is_only_a_rank()) return locks;
  Texts written{options.json, options.csv, options.record, options.output, options.checkpoint};
  if (options.measure > 0)
    written.insert(written.end(), {bench::measured_file(options.json), bench::measured_file(options.csv)});
  Texts read = options.files;
  read.insert(read.end(), {options.profile, options.cluster});
  for (const Texts* models : {&options.subject.models, &options.fit_on})
    for (const std::string& model : *models) read.emplace_back(sim::head_of(model));
  std::erase(written, "");
  std::erase(read, "");
  for (std::size_t i = 0; i < written.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j)
      if (sim::same_output(written[i], written[j]))
        throw sim::ConfigError("{} and {} are the same file; each output needs one of its own", written[j], written[i]);
    for (const std::string& input : read)
      if (sim::same_output(written[i], input))
        throw sim::ConfigError("{} is read, too; the output needs a file of its own", written[i]);
  }
  for (const std::string& file : written) locks.emplace_back(file);
  return locks;
}

/// What is wrong with the command line.
[[noreturn]] void refuse(const CLI::App& app, const CLI::ParseError& error) {
  const bool in_command = !app.get_subcommands().empty();
  const CLI::App& command = in_command ? *app.get_subcommands().front() : app;
  const Texts unexpected = app.remaining(true);
  std::string said = error.what();
  if (!unexpected.empty() && unexpected[0].starts_with("-")) {
    const std::string given = unexpected[0].substr(0, unexpected[0].find('='));
    Texts options;
    for (const CLI::Option* option : command.get_options())
      for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
    said = fmt::format("unknown option '{}'{}", given, sim::did_you_mean(given, {options.begin(), options.end()}));
  } else if (!unexpected.empty()) {
    said = fmt::format("unexpected argument '{}'", unexpected[0]);
  }
  throw sim::ConfigError("{}{} ('{} --help' shows what it takes)", in_command ? command.get_name() + ": " : "", said,
                         in_command ? "paragauge " + command.get_name() : "paragauge");
}

int run(int argc, char** argv) {
  if (argc < 2)
    throw sim::ConfigError("a command is missing; known: {}; 'paragauge --help' shows examples", kTable.names());
  if (argv[1][0] != '-') static_cast<void>(kTable.at(argv[1]));  // else it is unknown
  CLI::App app(
      "Predicts, measures and compares training steps of parallel strategies:\nwhat (a model), how (a strategy), "
      "on what (this machine or a cluster).",
      "paragauge");
  app.require_subcommand(1);
  app.footer(kExamples);
  std::array<Options, kCommands.size()> options;  // each command's own: their defaults differ
  int status = 0;
  for (std::size_t i = 0; i < kCommands.size(); ++i) {
    Options& own = options[i];
    own.machine.argv.assign(argv, argv + argc);
    CLI::App* app_of_command = app.add_subcommand(std::string(kCommands[i].name), kCommands[i].description);
    kCommands[i].add_options(app_of_command, own);
    app_of_command->footer(kCommands[i].examples);
    app_of_command->callback([&status, &own, app_of_command, &command = kCommands[i]] {
      for (Texts* texts : {&own.machine.worlds, &own.cost_models, &own.fit_on}) use_once(*texts);
      if (command.check != nullptr) command.check(*app_of_command, own);
#ifdef PARAGAUGE_TORCH_PROGRAM
      if (command.run == hand_over || own.measure > 0) hand_over(own);  // which claims the files
#endif
#ifdef PARAGAUGE_BACKEND
      if (command.run == bench::plan && own.measure > 0 && backend::is_launched()) {
        own.hosts = backend::hosts_of_launch();
        own.devices = backend::ranks_of_launch() / own.hosts;
      }
      if (has_ranks(own.machine.argv) && command.run != write_machine && backend::only_serves()) {
        status = bench::serve(own.machine, /*work_before_s=*/command.run == bench::plan ? kSearch_s : 0);
        return;
      }
#endif
      own.is_only_a_rank = is_only_a_rank();
      const auto locks = claim(own);
      status = command.run(own);
    });
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0) refuse(app, error);
    fmt::print("{}", app.help());
  }
  return status;
}

/// What can't be written to standard output (a full disk, `| head`) is an error like any other.
int run_and_flush(int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    errno = 0;
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      throw sim::RunError("standard output can't be written{}{}", errno != 0 ? ": " : "",
                          errno != 0 ? std::strerror(errno) : "");
    return status;
  } catch (const std::system_error& error) {
    if (std::ferror(stdout) == 0) throw;
    throw sim::RunError("standard output can't be written: {}", error.code().message());
  }
}

/// Says what is wrong: of the ranks of a launch one. Returns the exit status.
int fail(const Texts& argv, const std::exception& error) {
  const int status = sim::exit_status(error);
  const std::string why = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
#ifdef PARAGAUGE_BACKEND
  if (dynamic_cast<const backend::SaidByAnother*>(&error) != nullptr) return sim::kRunErrorStatus;
  const bool may_wait = has_ranks(argv), serves = may_wait && backend::only_serves();
  if (serves && backend::stay_away(status, why)) return 0;
#elif defined(PARAGAUGE_TORCH_PROGRAM)
  try {  // it finds the same mistake, and can tell the other ranks
    backend::adopt_launcher();
    Options options;
    options.machine.argv = argv;
    if (has_ranks(argv) && backend::is_rank_process()) hand_over(options);
  } catch (const std::exception&) {
  }
#endif
  // Which may be closed, too (`2>&1 | head`): nothing can be said then.
  std::fputs(fmt::format("paragauge: {}\n", sim::printable(why)).c_str(), stderr);
#ifdef PARAGAUGE_BACKEND
  if (may_wait && !serves) backend::stay_away(status, why);
#endif
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  const Texts texts(argv, argv + argc);
  for (const int too_late : {SIGPIPE, SIGXFSZ}) std::signal(too_late, SIG_IGN);  // the write itself fails and says why
  try {
#if defined(PARAGAUGE_BACKEND) || defined(PARAGAUGE_TORCH_PROGRAM)
    backend::restore_settings();
#endif
#ifdef PARAGAUGE_BACKEND
    backend::adopt_launcher();
    const int status = run_and_flush(argc, argv);
    if (has_ranks(texts)) backend::stay_away(status, "");
    return status;
#else
    return run_and_flush(argc, argv);
#endif
  } catch (const std::exception& error) {
    std::fflush(stdout);
    return fail(texts, error);
  }
}
