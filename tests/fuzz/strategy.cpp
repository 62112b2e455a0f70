// A strategy's text, for a small model; lowered when it is one.
#include "sim/strategy/strategy.hpp"

#include "sim/calibrate/alone.hpp"
#include "sim/lower/lower.hpp"
#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  // 24 samples: at most 24 replicas or microbatches, so that lowering is quick.
  static const sim::Model model = sim::load_model("toy_mlp,global_batch=24");
  return fuzz::read([&] {
    const sim::Strategy strategy = sim::parse_strategy(fuzz::text_of(data, size), model);
    fuzz::require(sim::parse_strategy(strategy.text(), model).text() == strategy.text(), "the text is canonical");
    fuzz::require(strategy.ranks() >= strategy.dp && strategy.ranks() >= strategy.pp, "ranks don't overflow");
    const sim::Program program = sim::lower(model, strategy);
    std::vector<sim::RoleAlone> lists;
    for (std::uint32_t r = 0; r < program.roles.size(); ++r) lists.push_back({r, program.roles[r].ranks, 1 + r % 2});
    static_cast<void>(sim::alone(program, lists));
  });
}
