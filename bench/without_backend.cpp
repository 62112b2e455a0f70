// The commands that run on devices, in a build without LibTorch.
#include "bench/commands.hpp"
#include "sim/error.hpp"

namespace bench {
namespace {

[[noreturn]] void refuse(std::string_view command) {
  throw sim::ConfigError(
      "{}: built without LibTorch, so only list, describe, predict and report work; bench/setup.sh installs it",
      command);
}

}  // namespace

int measure(const MeasureOptions&) { refuse("measure"); }
int calibrate(const CalibrateOptions&) { refuse("calibrate"); }
int compare(const CompareOptions&) { refuse("compare"); }
int trace(const TraceOptions&) { refuse("trace"); }

}  // namespace bench
