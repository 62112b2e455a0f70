// A model: a file, a file after a line with options (",image=64,loss=cross_entropy"), or a text alone
// ("convnet,image=64").
#include "sim/model/model.hpp"

#include "sim/lower/lower.hpp"
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static fuzz::File file("model.json");
  return fuzz::read([&] {
    const std::string_view text = fuzz::text_of(data, size);
    const std::size_t end = text.starts_with('{') ? 0 : std::min(text.find('\n'), text.size());
    std::string spec(text.substr(0, end));
    if (spec.empty() || spec.starts_with(',')) spec = file.holding(text.substr(end)) + spec;
    const sim::Model model = sim::load_model(spec);
    fuzz::require(sim::load_model(model.text()).text() == model.text(), "a model's text makes the model again");
    fuzz::require(sim::parameter_count(model) >= 0, "a count of parameters");
    fuzz::require(sim::summarize(model, model.global_batch).size() == model.nodes.size(), "a summary has every node");
    if (model.nodes.size() > 50) return;
    for (const char* strategy : {"single", "tp,tp=2", "tp,sp=1", "zero3,recompute=block"})
      fuzz::read([&] {
        const sim::Program program = sim::lower(model, sim::parse_strategy(strategy, model));
        const std::string lowered = sim::to_text(program);
        fuzz::require(sim::to_text(sim::program_from_text(lowered)) == lowered, "a lowered program can be read");
      });
  });
}
