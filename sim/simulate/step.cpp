#include "sim/simulate/step.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "sim/cluster/world.hpp"
#include "sim/error.hpp"

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
  const InstructionKind kind = placed_.role(rank).kind[i];
  if (placed_.cluster.one_host_thread && (kind == InstructionKind::recv || kind == InstructionKind::wait)) return 0;
  return work == kNone || mean.issue_s.empty() ? launch_s(rank) : mean.issue_s[work];
}

HostLanes::HostLanes(const PlacedProgram& placed, const StepCosts& costs) : placed_(placed), costs_(costs) {
  if (!costs.host_runs_ahead()) return;
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank)
    issued_s_.emplace_back(placed.role(rank).size(), costs.launch_s(rank));  // all with the first launch
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

namespace {

/// Where the backward's part of a rank's list begins and ends.
struct Backward {
  std::uint32_t begin = kNone, end = kNone;
  /// Of an instruction: 0 before it, 1 in it, 2 after it.
  [[nodiscard]] std::uint32_t phase(std::uint32_t i) const { return i < begin ? 0 : i < end ? 1 : 2; }
};

/// Nothing where there is none, forwards come after it, or messages are passed on before it: of which they are isn't told.
std::optional<Backward> backward_of(const Program& program, const Role& list) {
  std::uint32_t forwards_end = 0;
  Backward backward;
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    if (list.work[i] == kNone) continue;
    const Work& work = program.works[list.work[i]];
    if (work.pass == Pass::backward) {
      backward = {std::min(backward.begin, i), list.size()};
    } else if (work.pass == Pass::update || work.op.kind->on_host) {
      backward.end = std::min(backward.end, i);
    } else if (work.pass == Pass::forward && work.op.kind->role != OpRole::helper) {
      if (backward.begin != kNone) return std::nullopt;
      forwards_end = i + 1;
    }
  }
  if (backward.begin == kNone) return std::nullopt;
  const auto hands_over = [&](std::uint32_t i) {
    return list.kind[i] == InstructionKind::send || list.kind[i] == InstructionKind::collective;
  };
  while (hands_over(forwards_end)) ++forwards_end;  // what the last forward has made
  const auto storage_of = [&](std::uint32_t tensor) { return list.tensors[tensor].storage; };
  std::set<std::uint32_t> received;
  for (std::uint32_t i = forwards_end; i < backward.begin; ++i)
    if (list.kind[i] == InstructionKind::recv) {
      received.insert(storage_of(list.writes(i).front()));
    } else if (list.kind[i] == InstructionKind::send) {
      const std::uint32_t storage = storage_of(list.reads(i).front());
      if (received.contains(storage)) return std::nullopt;
      if (list.storages[storage].tensor_class == TensorClass::activation) forwards_end = i + 1;
    }
  backward.begin = forwards_end;
  return backward;
}

/// Of every rank, or, where one hasn't any, of none.
std::vector<Backward> backwards_of(const PlacedProgram& placed) {
  std::vector<Backward> backwards;
  for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) {
    const std::optional<Backward> backward = backward_of(placed.program, placed.role(rank));
    if (!backward) return std::vector<Backward>(placed.ranks());
    backwards.push_back(*backward);
  }
  return backwards;
}

}  // namespace

void HostLanes::issue_in_turn() {
  struct Process {  // of a node
    std::vector<std::uint32_t> ranks;
    double clock_s = 0;  // of its own thread
  };
  std::vector<Process> processes(placed_.nodes);
  for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) processes[placed_.node(rank)].ranks.push_back(rank);
  const std::vector<Backward> backwards = backwards_of(placed_);
  std::vector<std::uint32_t> next(placed_.ranks(), 0), phase(placed_.ranks(), 0),
      posted(placed_.matching.participants.size(), 0);
  std::vector<double> device_clock_s(placed_.ranks(), 0), handed_over_s(posted.size(), 0);
  // As far as what it waits for has been issued, and its process has come to the same phase with all of its ranks.
  const auto issue_some = [&](std::uint32_t rank) {
    const Role& list = placed_.role(rank);
    Process& process = processes[placed_.node(rank)];
    const std::uint32_t begun = next[rank];
    for (std::uint32_t& i = next[rank]; i < list.size() && backwards[rank].phase(i) == phase[rank]; ++i) {
      double& clock_s = phase[rank] == 1 ? device_clock_s[rank] : process.clock_s;
      if (list.kind[i] == InstructionKind::wait) {
        const std::uint32_t id = placed_.transfer(rank, list.awaits[i]);
        if (posted[id] < placed_.matching.participants[id]) break;
        clock_s = std::max(clock_s, handed_over_s[id]);
      }
      issued_s_[rank][i] = clock_s += costs_.issue_s(rank, i);
      if (!is_posted(list.kind[i])) continue;
      const std::uint32_t id = placed_.transfer(rank, i);
      ++posted[id];
      handed_over_s[id] = std::max(handed_over_s[id], clock_s);
    }
    return next[rank] > begun;
  };
  const auto begin_next_phase = [&](Process& process) {
    const std::uint32_t now = phase[process.ranks.front()];
    const bool is_over =
        std::ranges::all_of(process.ranks, [&](std::uint32_t rank) { return backwards[rank].phase(next[rank]) > now; });
    if (now == 2 || !is_over) return false;
    for (const std::uint32_t rank : process.ranks) {
      ++phase[rank];
      if (now == 1) process.clock_s = std::max(process.clock_s, device_clock_s[rank]);
      device_clock_s[rank] = process.clock_s;
    }
    return true;
  };
  for (bool advances = true; advances;) {
    advances = false;
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) advances |= issue_some(rank);
    for (Process& process : processes)
      if (!process.ranks.empty()) advances |= begin_next_phase(process);
  }
  for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank)
    check_internal(next[rank] == placed_.role(rank).size(), "rank {}: instruction {} is never issued", rank,
                   next[rank]);
}

}  // namespace sim
