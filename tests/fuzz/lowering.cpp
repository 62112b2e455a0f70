// A model file, or a model's text, that is lowered: parts of layers, of positions and of states, recomputed blocks.
#include "sim/lower/lower.hpp"

#include "sim/model/model.hpp"
#include "tests/fuzz/model_text.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::File file("lowered.json");
  return fuzz::read([&] {
    const sim::Model model = sim::load_model(fuzz::model_text(file, data, size));
    if (model.nodes.size() > 50) return;
    for (const char* strategy : {"single", "tp,tp=2", "tp,sp=1", "zero3,recompute=block", "zero3,param_dtype=half"})
      fuzz::read([&] {
        const sim::Program program = sim::lower(model, sim::parse_strategy(strategy, model));
        const std::string lowered = sim::to_text(program);
        fuzz::require(sim::to_text(sim::program_from_text(lowered)) == lowered, "a lowered program can be read");
      });
  });
}
