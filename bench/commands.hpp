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
  std::vector<std::string> models;
  std::vector<std::string> strategies;
};

struct Machine {
  std::vector<std::string> worlds{"local"};
  std::string device = "cpu";  // cpu or cuda
  std::uint32_t ranks = 0;     // 0: as many as the strategy needs; else every strategy must need just these
  double timeout_s = 120;
  bool real_time = true;
  std::string network;            // rate of the links between gloo's ranks, as bench/network.sh made them; empty: none
  std::vector<std::string> argv;  // this process's command line, for spawning ranks
};

struct Output {
  std::string json, csv;  // file paths; empty: none
  bool details = false;   // the long tables instead of the answer
  bool raw = false;       // every measured step goes into the JSON file, too
};

struct PredictOptions {
  Subject subject;
  std::string cluster;        // empty: this machine, world by world
  std::uint32_t devices = 0;  // per node; 0: the cluster's own number, or this machine's cores
  std::string scale;          // sim::parse_scale; empty: the machine as it is
  std::int64_t epoch = 0;     // samples of an epoch to predict too; 0: steps only
  Machine machine;
  std::vector<std::string> cost_models{"analytic"};
  std::string profile;
  bool print_program = false;
  Output output;
};

struct MeasureOptions {
  Subject subject;
  Machine machine;
  std::uint32_t warmup_steps = 1, steps = 5;
  bool verify = false;
  Output output;
};

struct CalibrateOptions {
  Subject subject;
  Machine machine;
  std::uint32_t rounds = 3;
  std::string output;
};

struct CompareOptions {
  Subject subject;
  Machine machine;
  std::uint32_t rounds = 8, visits = 1, steps = 2, seed = 1;
  double time_limit_s = 0;  // 0: none; else no round begins after it
  /// Models whose ops every round measures for the cost model `fitted`, which never sees the compared models' own.
  std::vector<std::string> fit_on;
  bool peers = false;  // the same steps in plain PyTorch, in the same rounds
  Output output;
};

struct ReportOptions {
  std::vector<std::string> files;
  std::string record;  // write the forecasts' track record to this file
  Output output;
};

struct TraceOptions {
  Subject subject;  // one of each
  Machine machine;
  std::string profile;  // empty: calibrated on the spot
  std::string output;
};

int list();
int describe(const std::vector<std::string>& models, std::int64_t rows);
int predict(const PredictOptions& options);
int measure(const MeasureOptions& options);
int calibrate(const CalibrateOptions& options);
int compare(const CompareOptions& options);
int report(const ReportOptions& options);
int trace(const TraceOptions& options);

}  // namespace bench
