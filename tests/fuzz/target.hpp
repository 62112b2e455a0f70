// What the fuzz targets share. A target reads its bytes as a file or text of one format and goes on with what came out.
// The right answer to bad input is ConfigError; every other exception, a crash or a broken promise (`require`) is a
// bug.
//
//   extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
//     return fuzz::read([&] { static_cast<void>(actions_from_text(fuzz::text_of(data, size))); });
//   }
//
// tests/fuzz/run.sh links the targets with libFuzzer; the tests fuzz.* link them with replay.cpp.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/error.hpp"
#include "sim/program/program.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/text/spec.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A promise that holds for every input.
inline void require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s\n", promise);
  std::abort();
}

/// What a target returns.
template <class Body>
int read(const Body& body) {
  try {
    body();
  } catch (const sim::ConfigError&) {
  }
  return 0;
}

/// A file for readers that take a path; in memory where the system can.
class File {
 public:
  explicit File(const char* name)
      : path_((std::filesystem::exists("/dev/shm") ? std::filesystem::path("/dev/shm")
                                                   : std::filesystem::temp_directory_path()) /
              fmt::format("paragauge_fuzz_{}_{}", ::getpid(), name)) {}
  ~File() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  const std::string& holding(std::string_view text) {
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    return path_;
  }

 private:
  std::string path_;
};

/// A program of two ranks that compute, broadcast and reduce, for formats that only say what things cost.
inline const sim::Program& small_program() {
  static const sim::Program program =
      sim::program_from_text(sim::read_text_file(PARAGAUGE_TESTS_DIR "/golden/programs/toy_mlp.ddp.txt"));
  return program;
}

inline void execute(const sim::Program& program, const sim::CostModel& model, const sim::Cluster& cluster) {
  const sim::Timeline timeline = sim::simulate(program, sim::costs_of(program, model, cluster), cluster);
  require(timeline.ranks.size() == program.ranks(), "every rank has a timeline");
}

inline void execute(const sim::Program& program, const sim::Cluster& cluster) {
  execute(program, *sim::cost_model_table().at("analytic").make(cluster, nullptr), cluster);
}

}  // namespace fuzz
