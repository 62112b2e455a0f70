#include "sim/simulate/step.hpp"

namespace sim {

Message ask(Transport transport, const TransferCost& cost, bool sender_posted_first) {
  Message message{.latency_s = cost.latency_s,
                  .wire_s = cost.wire_s,
                  .send_overhead_s = cost.send_overhead_s,
                  .recv_overhead_s = cost.recv_overhead_s};
  const Rendezvous& rendezvous = cost.rendezvous;
  if (transport == Transport::none || !rendezvous.known()) return message;
  message.notification_s = rendezvous.notification_s;
  message.sender_free_s = cost.send_overhead_s + rendezvous.delivery_s;
  if (!sender_posted_first) return message;
  message.latency_s = rendezvous.latency_s;
  message.wire_s = rendezvous.wire_s;
  message.send_overhead_s = rendezvous.send_overhead_s;
  message.sender_free_s = cost.recv_overhead_s;
  return message;
}

StepCosts::StepCosts(const PlacedProgram& placed, const Costs& of_program, const Factors* factors)
    : mean(of_program), placed_(placed), factors_(factors) {
  if (placed.cluster.device.asynchronous) issue();
}

Message StepCosts::message(std::uint32_t rank, std::uint32_t i, bool sender_posted_first) const {
  Message message = ask(placed_.link(rank, i).transport, transfer(rank, i), sender_posted_first);
  message.latency_s *= transfer_factor(rank, i);
  message.wire_s *= transfer_factor(rank, i);
  return message;
}

void StepCosts::issue() {
  const bool one_thread = placed_.cluster.one_host_thread;
  std::vector<double> clock_s(std::max(placed_.ranks(), placed_.nodes), 0);  // by thread: numbered by node or by rank
  std::vector<std::uint32_t> next(placed_.ranks(), 0), posted(placed_.matching.participants.size(), 0);
  for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank)
    issued_s_.emplace_back(placed_.role(rank).size(), mean.launch_s);  // all with the first launch
  if (placed_.cluster.one_launch) return;
  const auto is_issued = [&](std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t id = placed_.transfer(rank, i);
    return posted[id] == placed_.matching.participants[id];
  };
  for (bool advances = true; advances;) {
    advances = false;
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
      const Role& list = placed_.role(rank);
      double& host_s = clock_s[one_thread ? placed_.cluster.node_of(rank) : rank];
      for (std::uint32_t& i = next[rank]; i < list.size(); ++i, advances = true) {
        if (one_thread && list.kind[i] == InstructionKind::wait && !is_issued(rank, list.awaits[i])) break;
        issued_s_[rank][i] = host_s += mean.launch_s;
        if (is_posted(list.kind[i])) ++posted[placed_.transfer(rank, i)];
      }
    }
  }
}

}  // namespace sim
