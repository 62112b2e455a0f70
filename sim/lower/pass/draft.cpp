#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"

namespace sim {

std::uint32_t Draft::post(Instruction instruction) {
  instruction.ticket = tickets;
  list.push_back(std::move(instruction));
  return tickets++;
}

void Draft::wait(std::uint32_t ticket, std::uint32_t node, std::int32_t microbatch) {
  list.push_back({.kind = InstructionKind::wait, .node = node, .microbatch = microbatch, .ticket = ticket});
}

Draft::Flat Draft::add_flat(const std::string& name, const std::vector<TensorSpec>& specs, bool persistent) {
  const Dtype dtype = specs.at(0).dtype;
  std::int64_t elements = 0, offset = 0;
  for (const TensorSpec& spec : specs) {
    check_internal(spec.dtype == dtype, "'{}' holds {} and {}", name, to_string(dtype), to_string(spec.dtype));
    elements += spec.elements();
  }
  const Initial initial = persistent ? Initial{Initial::Kind::constant, 0} : Initial{};
  Flat flat{role.add_tensor(name, {dtype, {elements}}, TensorClass::communication, persistent, initial), {}};
  for (const TensorSpec& spec : specs) {
    const TensorSpec slice = spec.flat();
    flat.slices.push_back(role.add_view(fmt::format("{}.{}", name, flat.slices.size()), slice, flat.tensor, offset));
    offset += slice.bytes();
  }
  return flat;
}

std::uint32_t Draft::post_collective(CollectiveKind kind, std::uint32_t group, std::uint32_t tensor,
                                     std::uint32_t node) {
  return post_collective(kind, group, /*root=*/0, {tensor}, {tensor}, node);
}

std::uint32_t Draft::post_collective(CollectiveKind kind, std::uint32_t group, std::uint32_t root,
                                     const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                                     std::uint32_t node) {
  return post({.kind = InstructionKind::collective,
               .collective = kind,
               .node = node,
               .peer = group,
               .root = root,
               .reads = reads,
               .writes = writes});
}

void Draft::scaled_copy(std::uint32_t source, std::uint32_t destination, double scale, std::uint32_t node) {
  static const OpKind &kind = op_table().at("scaled_copy"), &cast = op_table().at("cast");
  const TensorSpec from = role.tensors[source].spec.flat(), to = role.tensors[destination].spec.flat();
  list.push_back({.kind = InstructionKind::copy,
                  .work = from.dtype == to.dtype ? works->add_elementwise(kind, {}, Pass::forward, from)
                                                 : works->add({{&cast, {}, {from, to}}, Pass::forward, 0}),
                  .node = node,
                  .scale = scale,
                  .reads = {source},
                  .writes = {destination}});
}

void Draft::fill(std::uint32_t destination, std::uint32_t node) {
  copy("fill", {}, role.tensors[destination].spec, {}, {destination}, node);
}

void Draft::copy(std::string_view kind, const Attributes& attributes, const TensorSpec& like,
                 const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                 std::uint32_t node) {
  list.push_back({.kind = InstructionKind::copy,
                  .work = works->add_elementwise(op_table().at(kind), attributes, Pass::forward, like),
                  .node = node,
                  .reads = reads,
                  .writes = writes});
}

void Draft::accumulate(std::uint32_t a, std::uint32_t b, std::uint32_t node, std::int32_t microbatch) {
  static const OpKind& kind = op_table().at("accumulate");
  list.push_back({.work = works->add_elementwise(kind, {}, Pass::forward, role.tensors[a].spec),
                  .node = node,
                  .microbatch = microbatch,
                  .reads = {a, b},
                  .writes = {a}});
}

std::vector<std::vector<std::size_t>> Draft::writes() const {
  std::vector<std::vector<std::size_t>> written(role.tensors.size());
  for (std::size_t at = 0; at < list.size(); ++at)
    for (const std::uint32_t tensor : list[at].writes) written[tensor].push_back(at);
  return written;
}

Role Draft::finish() && {
  std::vector<std::uint32_t> numbers(tickets, kNone);  // in the list's order, by ticket
  std::uint32_t next = 0;
  for (Instruction& instruction : list) {
    if (is_posted(instruction.kind) && numbers[instruction.ticket] == kNone) numbers[instruction.ticket] = next++;
    if (instruction.ticket != kNone) instruction.ticket = numbers[instruction.ticket];
    role.add(instruction);
  }
  if (body_end > 0) {
    role.body_begin = static_cast<std::uint32_t>(body_begin);
    role.body_end = static_cast<std::uint32_t>(body_end);
  }
  return std::move(role);
}

}  // namespace sim
