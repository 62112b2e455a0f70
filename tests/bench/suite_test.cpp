#include <gtest/gtest.h>

#include "bench/google_benchmark.hpp"

namespace bench {
namespace {

// Whose error it was, as paragauge says it.
TEST(Suite, ExitStatusSaysWhoseErrorItWas) {
  const auto status_of = [](int (*run)(int, char**)) { return main_of_suite("suite", run, 0, nullptr); };
  EXPECT_EQ(status_of([](int, char**) { return 0; }), 0);
  EXPECT_EQ(status_of([](int, char**) -> int { throw sim::ConfigError("the user's"); }), 2);
  EXPECT_EQ(status_of([](int, char**) -> int { throw sim::InternalError("ours"); }), 70);
  EXPECT_EQ(status_of([](int, char**) -> int { throw sim::RunError("the machine's"); }), 75);
}

}  // namespace
}  // namespace bench
