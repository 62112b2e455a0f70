// One step: what its instructions ask for (a program's costs, times the random factors of one step where there are
// some), and the two ways to put that into time.
//
//   const StepCosts of_step(placed, costs, factors);  // factors may be null: every op and transfer at its mean
//   of_step.compute_s(rank, i);
//   std::optional<Timeline> found = closed_form(placed, of_step);
//   if (!found) found = simulate_shared(placed, of_step);
//
// In the shared step ranks go through their lists; what takes time is an activity of a Fluid: compute
// and host time use the rank's device, bytes use the ports of the network, a transport's threads take their share of
// the cores at its ends: all transfers in flight no more than there is. Ranks that share a device share its time as the
// cluster's scheduling says. `fair`: in equal parts. `run_until_wait`: one rank has the core until it waits for something
// that isn't there yet (and that no transport's threads go through with on this core meanwhile) or is done with its step;
// then the rank that has been ready for longest gets it. All begin in the order of their numbers. Ops that run beside those of other ranks of the node are
// slower by contention for caches and memory, as measured with that many ranks computing (Costs::busy_levels).
//
// What the two ends of a message do to each other beside moving its bytes; which end posts first decides what it asks
// for (cluster.hpp's Transport):
// none    Each end pays its own overhead; the transfer takes latency + wire, from when both have posted.
// notify  gloo over TCP (gloo/transport/tcp/pair.cc). Whoever posts first notifies the other end (NOTIFY_RECV_READY,
//         NOTIFY_SEND_READY); handling that takes notification_s of the other's core. Receiver first: the message is
//         *expected*, and the sending thread writes it while it posts: what TCP takes at once is its overhead, the rest
//         the transport's thread writes on the sender's core. Sender first: it is *unexpected*; the sender's overhead
//         is small, and the transport's thread writes the message once the receiver has posted.
//         Assumes: what a profile hasn't measured of it costs nothing.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "sim/cost/cost_model.hpp"
#include "sim/simulate/placed_program.hpp"
#include "sim/simulate/timeline.hpp"

namespace sim {

/// How much longer than its mean everything takes in one random step.
struct Factors {
  std::vector<std::vector<float>> compute;  // [rank][instruction]
  std::vector<float> transfer;              // by transfer id
  std::vector<std::vector<float>> late_s;   // [rank][instruction]: of a post, after it; empty: none
};
/// Random steps, some at a time. Every compute and transfer has its own factor (a hiccup), and each rank has one more,
/// shared by all its compute in the step (a core that others use too is slow for seconds). Gamma distributed with the
/// costs' jitter as coefficient of variation (positive, one-sided where the jitter is large), independent; the same
/// ones in every call and on every machine. The mean of every draw over a batch is exactly 1: without rank jitter, a
/// rank that waits for nobody takes what `simulate` says. `placed` and `costs` must outlive it.
///
/// A rank that plays for its class (sim/program/fold.hpp) is one of n that draw. A collective in which m of them take
/// part begins when the slowest of these has posted it: what the others have computed since all were together last is
/// taken as gamma distributed, and the largest of m − 1 drawn at once, by its distribution. So is, for the step's end,
/// the slowest of all n. Assumes: what makes ranks late is their own compute, and who waits for a collective is
/// together with the others from then on; of a class's transfers one draws for all.
class DrawnSteps {
 public:
  static constexpr std::size_t kBatch = 8;

  DrawnSteps(const PlacedProgram& placed, const Costs& costs);
  /// The largest of some normal variables of mean 0 and standard deviation 1.
  struct Largest {
    explicit Largest(std::uint32_t of_count);

    std::uint32_t count;
    double mean, sd;
    /// What it is less than with this probability.
    [[nodiscard]] double quantile(double probability) const;
  };
  /// False where nothing jitters, for one rank (it waits for nobody), or where a batch's factors would take more than
  /// 128 MiB: every step takes its means.
  [[nodiscard]] bool vary() const { return varies_; }
  /// kBatch more; until the next call.
  const std::vector<Factors>& next();

 private:
  /// Random numbers from std::mt19937_64, which the standard defines, by formulas of our own: the distributions of
  /// <random> differ between standard libraries.
  double uniform();
  double normal();
  double gamma(double shape);
  template <class FactorOf>
  void draw(double jitter, FactorOf factor_of);
  void count_alike();
  void wait_for_slowest(std::uint32_t rank, Factors& step);

  const PlacedProgram& placed_;
  const Costs& costs_;
  bool varies_ = false;
  std::vector<std::vector<std::uint32_t>> alike_;  // folded: [group][rank]: of its class in its list; last: in all
  std::map<std::uint32_t, Largest> largest_;       // by how many of them
  std::mt19937_64 bits_{1};
  std::vector<Factors> batch_;
};

/// What one message asks for, once it is known which end has posted first.
struct Message {
  double latency_s = 0, wire_s = 0;
  double send_overhead_s = 0, recv_overhead_s = 0;  // host time until the thread that posts goes on
  double notification_s = 0;                        // of the core of the end that posts last, from the first post on
  /// The time from when both have posted until the transport's threads work on the sender's core, too; on the
  /// receiver's they do from the beginning.
  double sender_free_s = 0;
};
Message ask(Transport transport, const TransferCost& cost, bool sender_posted_first);

class StepCosts {
 public:
  /// All of them must outlive it.
  StepCosts(const PlacedProgram& placed, const Costs& of_program, const Factors* factors);

  const Costs& mean;

  /// Alone on the device.
  [[nodiscard]] double compute_s(std::uint32_t rank, std::uint32_t i) const {
    const double mean_s = mean.work_s[placed_.role(rank).work[i] * mean.busy_levels];
    return factors_ != nullptr ? mean_s * static_cast<double>(factors_->compute[rank][i]) : mean_s;
  }
  /// The cost of the transfer that instruction `i` of `rank` posts.
  [[nodiscard]] const TransferCost& transfer(std::uint32_t rank, std::uint32_t i) const {
    return mean.transfers[mean.transfer_of[placed_.transfer(rank, i)]];
  }
  /// The factor of its latency and wire time in this step.
  [[nodiscard]] double transfer_factor(std::uint32_t rank, std::uint32_t i) const {
    return factors_ != nullptr ? static_cast<double>(factors_->transfer[placed_.transfer(rank, i)]) : 1;
  }
  /// How long after the rank the slowest of those that it plays for posts.
  [[nodiscard]] double late_s(std::uint32_t rank, std::uint32_t i) const {
    return factors_ == nullptr || factors_->late_s.empty() ? 0 : static_cast<double>(factors_->late_s[rank][i]);
  }
  [[nodiscard]] Message message(std::uint32_t rank, std::uint32_t i, bool sender_posted_first) const;

  /// Host time to issue an instruction to the rank's device.
  [[nodiscard]] double launch_s(std::uint32_t rank) const { return mean.launch_of(placed_.kind(rank)); }
  /// Host time of an instruction of a synchronous device: a launch, or what posting the instruction before it takes, if
  /// that is more; and what writing takes longer that others have read in that one.
  [[nodiscard]] double host_s(std::uint32_t rank, std::uint32_t i, bool sender_posted_first) const {
    if (i == 0 || !is_posted(placed_.role(rank).kind[i - 1])) return launch_s(rank);
    const TransferCost& before = transfer(rank, i - 1);
    const bool received = placed_.role(rank).kind[i - 1] == InstructionKind::recv;
    const double send_overhead_s =
        sender_posted_first ? message(rank, i - 1, true).send_overhead_s : before.send_overhead_s;
    const bool is_rewritten = !mean.rewritten.empty() && mean.rewritten[placed_.transfer(rank, i - 1)];
    return std::max(launch_s(rank), received ? before.recv_overhead_s : send_overhead_s) +
           (is_rewritten ? before.rewriting_s : 0);
  }

  /// The host of an asynchronous device (a GPU) runs ahead of it: an instruction starts at the earliest when it has
  /// been issued (HostLanes), and gap_s after the one before it.
  [[nodiscard]] bool host_runs_ahead() const { return placed_.cluster.device.asynchronous; }
  /// Host time to issue an instruction; nothing of the host's own ops.
  [[nodiscard]] double issue_s(std::uint32_t rank, std::uint32_t i) const;
  [[nodiscard]] bool is_on_host(std::uint32_t rank, std::uint32_t i) const {
    const std::uint32_t work = placed_.role(rank).work[i];
    return host_runs_ahead() && work != kNone && placed_.program.works[work].op.kind->on_host;
  }
  /// From the end of the instruction before until the device begins with `i`, which has been issued long ago.
  [[nodiscard]] double gap_s(std::uint32_t rank, std::uint32_t i) const {
    const auto is_op = [&](std::uint32_t k) { return is_computed(placed_.role(rank).kind[k]); };
    return i > 0 && is_op(i) && is_op(i - 1) && !placed_.cluster.one_launch ? mean.gap_s : 0;
  }

 private:
  const PlacedProgram& placed_;
  const Factors* factors_;
};

/// The host threads of asynchronous devices in a step: each takes StepCosts::issue_s for an instruction. An op of the
/// host's own (OpKind::on_host) begins when device and host have come to it, and both go on when it is over. Where ranks
/// are threads of one process, a wait holds its thread until the others have posted. A step that is launched at once
/// (Cluster::one_launch) takes launch_s in all.
///
/// One process that issues for all ranks of a node (Cluster::one_host_thread), as PyTorch does it: its thread goes
/// through their lists in turn, each as far as what it waits for has been issued. A message is one copy, which its
/// sender's list issues; its recv and the waits are events, in no time. The backward is one call for all, after all
/// forwards: there each device has a thread of its own (autograd's, torch/csrc/autograd/engine.cpp), which begins with
/// what another one hands over when that has been issued, while the process's own thread waits for them. Where forwards
/// come after backwards (1F1B, recomputation) the one thread issues all. Of the node's ranks only the op's own waits for
/// an op of the host's.
class HostLanes {
 public:
  HostLanes(const PlacedProgram& placed, const StepCosts& costs);

  /// When instruction `i` has been issued; of an op of the host's own: when the host has come to it. Called once for
  /// each, in the list's order, when the device has come to it: what it waited for is over.
  double issue(std::uint32_t rank, std::uint32_t i);
  /// An op of the host's own is over.
  void has_done(std::uint32_t rank, std::uint32_t i, double end_s);
  /// When everything had been issued; of the host's own ops when they were over.
  void fill(Timeline& timeline);

 private:
  void issue_in_turn();

  const PlacedProgram& placed_;
  const StepCosts& costs_;
  std::vector<std::vector<double>> issued_s_;  // [rank][instruction]; empty: a device's own thread does all
  std::vector<double> clock_s_;                // by rank
  std::vector<double> posted_s_;               // by transfer: when the last thread had posted
  bool is_known_ = false;                      // issued_s_ was filled before: nobody waits but for host ops,
  std::vector<double> late_s_;                 // and by rank, so late is it for them
  bool threads_meet_ = false;
};

/// Nothing when something is shared: two ranks on a device, a transfer that takes core time, ops that slow each other
/// down; or when things meet that may as well not have met: two flows at one port of the network, messages of one
/// channel that overtake each other, a rank that waits and could copy another transfer meanwhile. A step in which
/// nothing has met is exactly what simulate_shared would say. Without the breakdown.
std::optional<Timeline> closed_form(const PlacedProgram& placed, const StepCosts& costs);

/// InternalError when a rank waits for ever: the program wasn't validated. Without the breakdown.
Timeline simulate_shared(const PlacedProgram& placed, const StepCosts& costs);

}  // namespace sim
