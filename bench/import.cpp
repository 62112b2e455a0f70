// `paragauge import`: hands over to bench/import, which is written in Python as torch.export is.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "bench/commands.hpp"
#include "sim/error.hpp"

namespace bench {
namespace {

/// PARAGAUGE_PYTHON in the environment (one that has the model's packages), the checkout's own, or the first on the PATH.
std::string python_of_import() {
  if (const char* given = std::getenv("PARAGAUGE_PYTHON"); given != nullptr && *given != '\0') return given;
  const std::string own = PARAGAUGE_SOURCE_DIR "/.venv/bin/python";
  return access(own.c_str(), X_OK) == 0 ? own : "python3";
}

}  // namespace

int import_model(const Options& options) {
  std::vector<std::string> texts{python_of_import(), PARAGAUGE_SOURCE_DIR "/bench/import/import_model.py"};
  texts.insert(texts.end(), options.machine.argv.begin() + 2, options.machine.argv.end());
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  throw sim::RunError("{}, which reads PyTorch modules, can't be executed: {}", texts[0], std::strerror(errno));
}

}  // namespace bench
