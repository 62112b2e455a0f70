#include "sim/program/staging.hpp"

#include <span>

namespace sim {
namespace {

std::int64_t bytes_of(const Role& role, std::span<const std::uint32_t> tensors) {
  std::int64_t bytes = 0;
  for (const std::uint32_t t : tensors) bytes += role.tensors[t].spec.bytes();
  return bytes;
}

/// One after the other in one storage.
bool lie_together(const Role& role, std::span<const std::uint32_t> tensors) {
  const Tensor* before = nullptr;
  for (const std::uint32_t t : tensors) {
    const Tensor& tensor = role.tensors[t];
    if (before != nullptr &&
        (tensor.storage != before->storage || tensor.offset_bytes != before->offset_bytes + before->spec.bytes()))
      return false;
    before = &tensor;
  }
  return true;
}

Staging staging_of(const Role& role, std::uint32_t i, std::int64_t members) {
  if (members < 2) return {};
  const std::span<const std::uint32_t> reads = role.reads(i), writes = role.writes(i);
  const CollectiveKind kind = role.collective[i];
  if (kind == CollectiveKind::reduce) return {.sent_bytes = writes.empty() ? bytes_of(role, reads) : 0};
  if (works_in_place(kind) || members == 2) return {};
  if (kind == CollectiveKind::all_gather && writes.size() == 1) return {};  // gloo has that
  Staging staging;
  if (!lie_together(role, reads)) staging.sent_bytes = bytes_of(role, reads);
  if (!lie_together(role, writes)) staging.received_bytes = bytes_of(role, writes);
  if (kind == CollectiveKind::all_gather) staging.sent_bytes = members * bytes_of(role, reads);
  if (kind == CollectiveKind::reduce_scatter) staging.received_bytes = members * bytes_of(role, writes);
  return staging;
}

}  // namespace

std::vector<Staging> staging_of(const Program& program, const Role& role, Transport transport) {
  if (transport != Transport::notify) return {};
  std::vector<Staging> staging(role.size());
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (role.kind[i] == InstructionKind::collective)
      staging[i] = staging_of(role, i, std::ssize(program.groups.at(role.peer[i]).members.at(0)));
  return staging;
}

}  // namespace sim
