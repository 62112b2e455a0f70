// A cluster's file; a small program is executed on what came out.
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::File file("cluster.json");
  return fuzz::read([&] {
    const std::string& path = file.holding(fuzz::text_of(data, size));
    fuzz::execute(fuzz::small_program(), sim::load_cluster(path, 2, 2));
    fuzz::execute(fuzz::small_program(), sim::load_cluster(path, 2));
  });
}
