// The text form of a schedule.
#include "sim/strategy/schedule/schedule.hpp"

#include "tests/fuzz/target.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::read([&] {
    const std::vector<sim::Action> actions = sim::actions_from_text(fuzz::text_of(data, size));
    fuzz::require(sim::actions_from_text(sim::to_text(actions)) == actions, "to_text can be read");
  });
}
