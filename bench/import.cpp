// `paragauge import`: hands over to bench/import, which is written in Python as torch.export is.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <vector>

#include "bench/commands.hpp"
#include "bench/python.hpp"
#include "sim/error.hpp"

namespace bench {
int import_model(const Options& options) {
  std::vector<std::string> texts{python(), PARAGAUGE_SOURCE_DIR "/bench/import"};
  texts.insert(texts.end(), options.machine.argv.begin() + 2, options.machine.argv.end());
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  throw sim::RunError("{}, which reads PyTorch modules, can't be executed: {}", texts[0], std::strerror(errno));
}

}  // namespace bench
