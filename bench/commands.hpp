// The commands of `paragauge`. Each takes its options and returns an exit status; errors are exceptions (main prints
// them).
//
//   what   models      load_model texts: "resnet50,image=128,global_batch=8"
//   how    strategies  parse_strategy texts: "pipeline,pp=2,split_size=2,cut=r1"
//   on     machine     worlds on this machine, or a cluster of the catalog
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

struct Subject {
  std::vector<std::string> models, strategies;
};

struct Machine {
  std::vector<std::string> worlds{"local"};
  std::string device = "cpu";  // cpu or cuda
  std::uint32_t ranks = 0;     // 0: as many as the strategy needs; else every strategy must need just these
  double timeout_s = 120;
  bool real_time = true;
  bool anyway = false;            // what has too little memory by its forecast is run all the same
  bool graph = false;             // steps are captured and replayed
  std::string network;            // rate of the links between gloo's ranks, as bench/network.sh made them; empty: none
  bool may_idle = false;          // ranks of a launch may have nothing to do
  std::vector<std::string> argv;  // this process's command line, for spawning ranks
};

/// What a command line says; a command looks at what it takes.
struct Options {
  Subject subject;  // describe: without strategies; trace: one of each
  Machine machine;

  std::int64_t rows = 0;      // describe: samples per pass; 0: the model's global_batch
  std::string cluster;        // empty: this machine, world by world
  std::uint32_t devices = 0;  // per node; 0: the cluster's own number, or this machine's cores
  std::uint32_t hosts = 1;    // predict: so many like this machine, `devices` ranks on each
  std::string scale;          // sim::parse_scale; empty: the machine as it is
  std::int64_t epoch = 0;     // samples of an epoch to predict too; 0: steps only
  bool drop_last = false;     // of the epoch: its smaller last step
  std::vector<std::string> cost_models{"analytic"};
  bool print_program = false;
  std::uint32_t plan_devices = 0;      // plan: in all; 0: those of the cluster
  std::string method = "candidates";   // plan: a row of sim::method_table
  double memory_GiB = 0;               // predict, plan: of each device; 0: the device's own
  std::uint32_t top = 8, measure = 0;  // plan: strategies to show, and to run

  std::uint32_t rounds = 8, visits = 1, warmup_steps = 1, steps = 2, seed = 1;
  double time_limit_s = 0;  // 0: none; else no round but the first begins that would end after it
  bool verify = false;
  /// Models whose ops every round measures for the cost model `fitted`, which never sees the compared models' own.
  std::vector<std::string> fit_on;
  bool peers = false;  // the same steps in plain PyTorch, in the same rounds

  std::string data;          // train: the folder of CIFAR-10's binary files; empty: samples are made on the spot
  std::int64_t samples = 0;  // train: to train on; 0: the folder's, or as many as are made
  std::uint32_t epochs = 10;
  bool phases = false;     // train: daso as Heat's changes from epoch to epoch (sim/strategy/daso_phases.hpp)
  std::string checkpoint;  // train: read where it is there, written after each epoch; empty: none

  // Files; empty: none.
  std::vector<std::string> files;  // the results to report
  std::string profile;             // to read; trace without one calibrates on the spot
  std::string json, csv;           // the results and their table; plan: of forecasts, see measured_file
  std::string record;              // how far the forecasts were off
  std::string output;              // calibrate's profile, machine's cluster, trace's timelines, train's epochs
  bool details = false;            // the long tables instead of the answer
  bool is_only_a_rank = false;     // another process of the same command line answers, and prints
  int (*compare)(const Options&) = nullptr;  // plan: what runs strategies
  bool raw = false;                          // every measured step goes into the JSON file, too
  bool compact = false;                      // report: the JSON file without what is computed from its cells
};

/// What a reader of times with --graph must know.
constexpr const char* kGraphRemark =
    "graph: a rank's step is one launch of its captured second step; only the whole of it is timed, and\n"
    "forecast with one launch, as long as a kernel's, and each op as it was timed by itself: on an H100\n"
    "5 us too long, so that the ConvNet's forecast was 38 % and ResNet-50's 7 % slow.\n";

/// All that a rank of a launch does that isn't rank 0 (backend::only_serves). It reads no file but what it trains on.
/// `work_before_s`: how long rank 0 may take before it comes, beside the timeout.
int serve(const Machine& machine, double work_before_s);

int list(const Options& options);
int describe(const Options& options);
int import_model(const Options& options);
int predict(const Options& options);
int plan(const Options& options);
/// Where `plan --measure` keeps what it measures, beside the forecasts' file: "p.json" → "p.measured.json"; "" of "", and of
/// what is no file.
std::string measured_file(const std::string& file);
int measure(const Options& options);
int write_machine(const Options& options);
int calibrate(const Options& options);
int compare(const Options& options);
int report(const Options& options);
int trace(const Options& options);
int train(const Options& options);

}  // namespace bench
