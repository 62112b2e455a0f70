#include "bench/google_benchmark.hpp"

#include <fmt/format.h>

#include <cstdio>

namespace bench {

void guarded(benchmark::State& state, const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    state.SkipWithError(error.what());
  }
}

int run_benchmarks(char* program, std::vector<std::string> arguments) {
  std::vector<char*> texts{program};
  for (std::string& argument : arguments) texts.push_back(argument.data());
  int count = static_cast<int>(texts.size());
  benchmark::Initialize(&count, texts.data());
  if (benchmark::ReportUnrecognizedArguments(count, texts.data())) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

int main_of_suite(const char* name, int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: {}\n", name, error.what());
    return 2;
  }
}

}  // namespace bench
