// Which Python the programs run: plain PyTorch's for `compare --peers`, and `import`.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>

namespace bench {

/// PARAGAUGE_PYTHON in the environment, the checkout's own, or the first on the PATH.
inline std::string python() {
  if (const char* given = std::getenv("PARAGAUGE_PYTHON"); given != nullptr && *given != '\0') return given;
  const std::string own = PARAGAUGE_SOURCE_DIR "/.venv/bin/python";
  return access(own.c_str(), X_OK) == 0 ? own : "python3";
}

}  // namespace bench
