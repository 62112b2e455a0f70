#include "sim/simulate/step.hpp"

#include <algorithm>
#include <utility>

#include "sim/cluster/world.hpp"

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
    : mean(of_program), placed_(placed), factors_(factors) {}

Message StepCosts::message(std::uint32_t rank, std::uint32_t i, bool sender_posted_first) const {
  Message message = ask(placed_.link(rank, i).transport, transfer(rank, i), sender_posted_first);
  message.latency_s *= transfer_factor(rank, i);
  message.wire_s *= transfer_factor(rank, i);
  return message;
}

double StepCosts::issue_s(std::uint32_t rank, std::uint32_t i) const {
  const std::uint32_t work = placed_.role(rank).work[i];
  if (is_on_host(rank, i)) return 0;
  return work == kNone || mean.issue_s.empty() ? mean.launch_s : mean.issue_s[work];
}

HostLanes::HostLanes(const PlacedProgram& placed, const StepCosts& costs) : placed_(placed), costs_(costs) {
  if (!costs.host_runs_ahead()) return;
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank)
    issued_s_.emplace_back(placed.role(rank).size(), costs.mean.launch_s);  // all with the first launch
  clock_s_.assign(placed.ranks(), 0);
  late_s_ = clock_s_;
  threads_meet_ = !world_kind(placed.cluster.world).processes;
  is_known_ = placed.cluster.one_launch || placed.cluster.one_host_thread;
  if (placed.cluster.one_host_thread && !placed.cluster.one_launch) issue_in_turn();
  if (!is_known_) posted_s_.assign(placed.matching.participants.size(), 0);
}

double HostLanes::issue(std::uint32_t rank, std::uint32_t i) {
  double& issued_s = issued_s_[rank][i];
  if (is_known_) return issued_s += late_s_[rank];
  const Role& list = placed_.role(rank);
  double& clock_s = clock_s_[rank];
  if (threads_meet_ && i > 0 && list.kind[i - 1] == InstructionKind::wait)
    clock_s = std::max(clock_s, posted_s_[placed_.transfer(rank, list.awaits[i - 1])]);
  clock_s += costs_.issue_s(rank, i);
  if (is_posted(list.kind[i])) {
    double& posted_s = posted_s_[placed_.transfer(rank, i)];
    posted_s = std::max(posted_s, clock_s);
  }
  return issued_s = clock_s;
}

void HostLanes::has_done(std::uint32_t rank, std::uint32_t i, double end_s) {
  double& issued_s = issued_s_[rank][i];
  late_s_[rank] += std::max(0.0, end_s - issued_s);
  clock_s_[rank] = issued_s = std::max(issued_s, end_s);
}

void HostLanes::fill(Timeline& timeline) {
  for (std::uint32_t rank = 0; rank < issued_s_.size(); ++rank)
    timeline.ranks[rank].issued_s = std::move(issued_s_[rank]);
}

void HostLanes::issue_in_turn() {
  std::vector<double> clock_s(placed_.nodes, 0);
  std::vector<std::uint32_t> next(placed_.ranks(), 0), posted(placed_.matching.participants.size(), 0);
  const auto is_issued = [&](std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t id = placed_.transfer(rank, i);
    return posted[id] == placed_.matching.participants[id];
  };
  for (bool advances = true; advances;) {
    advances = false;
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
      const Role& list = placed_.role(rank);
      double& host_s = clock_s[placed_.node(rank)];
      for (std::uint32_t& i = next[rank]; i < list.size(); ++i, advances = true) {
        if (list.kind[i] == InstructionKind::wait && !is_issued(rank, list.awaits[i])) break;
        issued_s_[rank][i] = host_s += costs_.issue_s(rank, i);
        if (is_posted(list.kind[i])) ++posted[placed_.transfer(rank, i)];
      }
    }
  }
}

}  // namespace sim
