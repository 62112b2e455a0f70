#include "sim/probe.hpp"

#include "sim/pass/pass.hpp"

namespace sim {
namespace {

Instruction transfer(InstructionKind kind, std::uint32_t peer, std::uint32_t tag) {
  Instruction i;
  i.kind = kind;
  i.peer = peer;
  i.tag = tag;
  return i;
}

void add_collectives(Draft& draft, const TransferQuestion& question, const TensorSpec& spec, std::uint32_t repeats) {
  for (std::uint32_t k = 0; k < repeats; ++k) {
    const std::uint32_t source = draft.role.add_tensor(fmt::format("source{}", k), spec, TensorClass::input, true,
                                                       {Initial::Kind::constant, 1, 0, 0});
    const std::uint32_t buffer = draft.role.add_tensor(fmt::format("buffer{}", k), spec, TensorClass::communication,
                                                       true, {Initial::Kind::constant, 0, 0, 0});
    draft.scaled_copy(source, buffer, 1, kNone);
    Instruction i = transfer(InstructionKind::collective, 0, 0);
    i.collective = question.collective;
    i.reads = i.writes = {buffer};
    draft.wait(draft.post(i), kNone);
  }
}

void add_ping_pong(Draft& draft, std::uint32_t own, const TensorSpec& spec, std::uint32_t repeats) {
  for (std::uint32_t k = 0; k < repeats; ++k) {
    const bool sends = k % 2 == own;
    const std::uint32_t tag = k / 2;  // counted per direction
    const std::uint32_t buffer = draft.role.add_tensor(fmt::format("buffer{}", k), spec, TensorClass::communication);
    if (sends) {
      const std::uint32_t source = draft.role.add_tensor(fmt::format("source{}", k), spec, TensorClass::input, true,
                                                         {Initial::Kind::constant, 1, 0, 0});
      draft.scaled_copy(source, buffer, 1, kNone);
    }
    Instruction i = transfer(sends ? InstructionKind::send : InstructionKind::recv, 1 - own, tag);
    (sends ? i.reads : i.writes) = {buffer};
    draft.wait(draft.post(i), kNone);
  }
}

}  // namespace

Program transfer_probe(const TransferQuestion& question, std::uint32_t repeats) {
  Program program;
  program.model = "none";
  program.global_batch = 1;
  const bool collective = question.kind == InstructionKind::collective;
  program.strategy =
      fmt::format("probe of {}", collective ? to_string(question.collective) : to_string(InstructionKind::send));
  WorkTable works(program.works);
  const TensorSpec spec{Dtype::f32, {(question.bytes + 3) / 4}};
  const std::uint32_t roles = collective ? 1 : 2;
  std::vector<std::uint32_t> members;
  for (std::uint32_t rank = 0; rank < question.members; ++rank) members.push_back(rank);
  if (collective) program.groups.push_back({"data", {members}});
  for (std::uint32_t r = 0; r < roles; ++r) {
    Draft draft;
    draft.program = &program;
    draft.works = &works;
    draft.role.name = fmt::format("stage{}", r);
    draft.role.ranks = collective ? members : std::vector<std::uint32_t>{r};
    if (collective)
      add_collectives(draft, question, spec, repeats);
    else
      add_ping_pong(draft, r, spec, repeats);
    add_frees(draft);
    program.roles.push_back(std::move(draft).finish());
  }
  validate(program);
  return program;
}

}  // namespace sim
