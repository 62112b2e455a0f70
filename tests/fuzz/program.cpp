// A program's text. A valid one is written, read, measured and executed: on CPU cores (shared links: fluid time) and on
// GPUs (an asynchronous device, several nodes).
#include "sim/program/memory.hpp"
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint32_t kRanks = 64;
  static const sim::Cluster cores = sim::load_cluster("cpu_gloo", kRanks, 2);
  static const sim::Cluster gpus = sim::load_cluster("dgx_a100", kRanks, 2);
  return fuzz::read([&] {
    const sim::Program program = sim::program_from_text(fuzz::text_of(data, size));
    sim::validate(program);
    const std::string text = sim::to_text(program);
    const sim::Program again = sim::program_from_text(text);
    fuzz::require(sim::to_text(again) == text, "to_text can be read and is the same then");
    sim::validate(again);
    for (const sim::Role& role : program.roles) {
      const sim::Memory memory = sim::peak_memory(role);
      fuzz::require(memory.peak_bytes >= memory.persistent_bytes && memory.persistent_bytes >= 0, "a peak is a peak");
    }
    if (program.ranks() > kRanks) return;
    fuzz::execute(program, cores);
    fuzz::execute(program, gpus);
  });
}
