// A device's file; a small program is executed on what came out.
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::File file("device.json");
  static sim::Cluster cluster = sim::load_cluster("cpu_gloo", 2, 2);
  return fuzz::read([&] {
    cluster.device = sim::load_device(file.holding(fuzz::text_of(data, size)));
    fuzz::execute(fuzz::small_program(), cluster);
  });
}
