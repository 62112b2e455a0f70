// A model (tests/fuzz/model_text.hpp); what is lowered of it is `lowering`'s.
#include "sim/model/model.hpp"

#include "tests/fuzz/model_text.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::File file("model.json");
  return fuzz::read([&] {
    const sim::Model model = sim::load_model(fuzz::model_text(file, data, size));
    fuzz::require(sim::load_model(model.text()).text() == model.text(), "a model's text makes the model again");
    fuzz::require(sim::parameter_count(model) >= 0, "a count of parameters");
    fuzz::require(sim::summarize(model, model.global_batch).size() == model.nodes.size(), "a summary has every node");
  });
}
