#include "sim/program/traffic.hpp"

#include <cmath>

namespace sim {
namespace {

/// In shares of its bytes: what each of n members sends.
double share_of(CollectiveKind kind, double n) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (n - 1) / n;
    case CollectiveKind::broadcast:
    case CollectiveKind::reduce:
    case CollectiveKind::all_gather:
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_to_all:
      return (n - 1) / n;
    case CollectiveKind::scatter:
    case CollectiveKind::gather:
      return (n - 1) / (n * n);
  }
  return 0;
}

}  // namespace

Traffic traffic_of(const Program& program, const Role& role) {
  Traffic traffic;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    const auto bytes = static_cast<double>(is_posted(role.kind[i]) ? program.transfer_bytes(role, i) : 0);
    if (role.kind[i] == InstructionKind::send) {
      traffic.sent_bytes += bytes;
      ++traffic.transfers;
    } else if (role.kind[i] == InstructionKind::collective) {
      const auto members = static_cast<double>(program.groups[role.peer[i]].members[0].size());
      traffic.sent_bytes += share_of(role.collective[i], members) * bytes;
      ++traffic.transfers;
    }
  }
  return traffic;
}

Traffic traffic_of(const Program& program) {
  Traffic most;
  for (const Role& role : program.roles)
    if (const Traffic traffic = traffic_of(program, role); traffic.sent_bytes > most.sent_bytes) most = traffic;
  const auto steps = static_cast<double>(program.steps_in_list());
  return {most.sent_bytes / steps, static_cast<std::uint32_t>(std::lround(most.transfers / steps))};
}

}  // namespace sim
