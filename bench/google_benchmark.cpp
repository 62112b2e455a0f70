#include "bench/google_benchmark.hpp"

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

}  // namespace bench
