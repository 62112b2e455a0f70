#include "sim/calibrate/make_probe.hpp"

#include <numeric>

namespace sim {

std::uint32_t post_message(Draft& draft, InstructionKind kind, std::int32_t by, std::uint32_t tag,
                           std::uint32_t tensor) {
  Instruction i{.kind = kind, .peer = 0, .by = by, .tag = tag};
  (kind == InstructionKind::send ? i.reads : i.writes) = {tensor};
  return draft.post(i);
}

std::uint32_t add_constant(Draft& draft, const std::string& name, const TensorSpec& spec, double value) {
  return draft.role.add_tensor(name, spec, TensorClass::input, true, {Initial::Kind::constant, value});
}

std::vector<std::uint32_t> first_numbers(std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

}  // namespace sim
