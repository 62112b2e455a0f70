// What the Google Benchmark suites share.
//
//   add_case("predicted/convnet", [](benchmark::State& state) { state.SetIterationTime(1e-3); })->UseManualTime();
//   // and more of them; then
//   return run_benchmarks(argv[0], app.remaining());
#pragma once

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/commands.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"

namespace bench {

/// A case whose failure becomes the row's reason: the row stays.
template <class Body>
benchmark::internal::Benchmark* add_case(const std::string& name, Body body) {
  return benchmark::RegisterBenchmark(name.c_str(), [body](benchmark::State& state) {
    try {
      body(state);
    } catch (const std::exception& error) {
      state.SkipWithError(error.what());
    }
  });
}

/// The options of every suite; those that the app doesn't know are Google Benchmark's own.
inline void add_machine(CLI::App& app, Machine& machine, int argc, char** argv) {
  machine.argv.assign(argv, argv + argc);
  app.allow_extras();
  app.add_option("-w,--world", machine.worlds, sim::world_table().names())->capture_default_str();
  app.add_option("--device", machine.device, "cpu or cuda")->capture_default_str();
}

/// Runs what is registered. `arguments`: the command line's rest. The exit status: 2 where Google Benchmark doesn't
/// know one of them.
inline int run_benchmarks(char* program, std::vector<std::string> arguments) {
  std::vector<char*> texts{program};
  for (std::string& argument : arguments) texts.push_back(argument.data());
  int count = static_cast<int>(texts.size());
  benchmark::Initialize(&count, texts.data());
  if (benchmark::ReportUnrecognizedArguments(count, texts.data())) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

/// What main returns: an error is a line with the program's name, and its exit status.
inline int main_of_suite(const char* name, int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return sim::exit_status(error);
  }
}

}  // namespace bench
