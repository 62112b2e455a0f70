// What the Google Benchmark suites share.
#pragma once

#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

namespace bench {

/// Runs a case; what goes wrong becomes the row's reason, and the row stays.
void guarded(benchmark::State& state, const std::function<void()>& body);

/// Runs what is registered. `arguments`: the command line's rest, Google Benchmark's own flags. The exit status: 2
/// where it doesn't know one.
int run_benchmarks(char* program, std::vector<std::string> arguments);

/// What main returns: an error is a line with the program's name, and status 2.
int main_of_suite(const char* name, int (*run)(int argc, char** argv), int argc, char** argv);

}  // namespace bench
