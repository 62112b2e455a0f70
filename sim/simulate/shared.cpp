#include <algorithm>
#include <deque>

#include "sim/error.hpp"
#include "sim/simulate/fluid.hpp"
#include "sim/simulate/step.hpp"

namespace sim {
namespace {

constexpr std::initializer_list<Fluid::Demand> kNothing;

class SharedStep {
 public:
  SharedStep(const PlacedProgram& placed, const StepCosts& costs)
      : placed_(placed),
        costs_(costs),
        hosts_(placed, costs),
        timeline_(placed.empty_timeline()),
        cores_(placed.devices),
        nodes_(placed.nodes),
        ranks_(placed.ranks()),
        transfers_(placed.matching.participants.size()),
        channels_(placed.matching.channels) {
    for (std::uint32_t resource = 0; resource < placed.devices + placed.ports(); ++resource) fluid_.add_resource();
    for (std::uint32_t rank = 0; rank < placed.ranks(); ++rank) ranks_[rank].node = placed.node(rank);
  }

  Timeline run() {
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) ready_.push_back(rank);
    do {
      while (!ready_.empty()) {
        const std::uint32_t rank = ready_.front();
        ready_.pop_front();
        go_on(rank);
      }
      slow_down_by_contention();
    } while (fluid_.advance());
    for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
      check_internal(ranks_[rank].next == placed_.role(rank).size(),
                     "rank {} stands at instruction {} for ever: the program wasn't validated", rank,
                     ranks_[rank].next);
      timeline_.step_s = std::max(timeline_.step_s, timeline_.ranks[rank].end_of_step_s);
      fill_transfers(rank);
    }
    hosts_.fill(timeline_);
    return std::move(timeline_);
  }

 private:
  struct Core {
    std::uint32_t rank = kNone;            // that has the core, where one runs until it waits
    std::deque<std::uint32_t> line;        // of those that are ready for it then
    std::uint32_t computing = 0;           // ranks
    std::vector<std::uint32_t> disturbed;  // transfers that move and are slower while it computes
    std::uint32_t engaged = 0;     // collectives that the transport begins: no other rank gets the core meanwhile
    std::uint32_t demand = kNone;  // in `demands_`, of a transfer that `move` begins
  };
  struct Node {
    std::uint32_t computing = 0;  // devices
    std::uint32_t busy = 1;       // of them, as far as costs tell: what the speeds are set for
  };
  struct RankState {
    std::uint32_t node = 0;
    std::uint32_t next = 0;               // instruction
    bool issued = false;                  // the host time of `next` has begun
    bool computing = false;               // the compute of `next` has begun
    bool waiting = false;                 // in the wait at `next`
    bool asleep = false;                  // there, with nothing to do
    Fluid::Activity activity = 0;         // while computing
    std::vector<std::uint32_t> uncopied;  // instructions that it has posted and will copy
  };
  struct Transfer {
    std::uint32_t posted = 0;
    bool sender_posted_first = false;  // point to point
    bool all_posted = false, done = false;
    double ready_s = 0, end_s = 0;
    std::uint32_t rank = kNone, instruction = kNone;  // who posted it last: for its link and its ends
    std::uint32_t uncopied = 0;                       // parts
    bool on_sender = false;                           // the transport's threads work on the sender's core, too
    bool moving = false;                              // `activity` goes on
    std::uint32_t computing = 0;                      // meanwhile, of the cores at its ends, if that slows it down
    Fluid::Activity activity = 0;
    std::vector<std::uint32_t> sleepers;
  };

  [[nodiscard]] Transfer& transfer_of(std::uint32_t rank, std::uint32_t i) {
    return transfers_[placed_.transfer(rank, i)];
  }

  // ---- Ranks: each goes through its list until something takes time. ----

  void go_on(std::uint32_t rank) {
    if (!claim_core(rank)) return;
    RankState& state = ranks_[rank];
    const Role& list = placed_.role(rank);
    for (; state.next < list.size(); ++state.next) {
      if (!state.issued) {
        state.issued = true;
        if (begin_host_time(rank)) return;
      }
      const InstructionKind kind = list.kind[state.next];
      if (is_computed(kind) ? begin_compute(rank) : is_posted(kind) ? post(rank) : wait(rank)) return;
      state.issued = false;
    }
    timeline_.ranks[rank].end_of_step_s = fluid_.now_s();
    release_core(rank);
  }

  /// False: another rank has the core; this one is in line for it.
  bool claim_core(std::uint32_t rank) {
    if (placed_.cluster.scheduling == Scheduling::fair) return true;
    Core& core = cores_[placed_.device(rank)];
    if (core.rank == kNone && core.engaged == 0) core.rank = rank;
    if (core.rank != rank) core.line.push_back(rank);
    return core.rank == rank;
  }
  void release_core(std::uint32_t rank) {
    Core& core = cores_[placed_.device(rank)];
    if (core.rank != rank) return;
    core.rank = kNone;
    hand_over(core);
  }
  void hand_over(Core& core) {
    if (core.rank != kNone || core.engaged > 0 || core.line.empty()) return;
    core.rank = core.line.front();
    core.line.pop_front();
    ready_.push_back(core.rank);
  }

  /// All of these: true while the rank has to let time pass first.
  bool begin_host_time(std::uint32_t rank) {
    const std::uint32_t i = ranks_[rank].next;
    const bool asynchronous = costs_.host_runs_ahead();
    const bool has_posted = i > 0 && is_posted(placed_.role(rank).kind[i - 1]);
    const double host_s = asynchronous
                              ? std::max(costs_.gap_s(rank, i), hosts_.issue(rank, i) - fluid_.now_s())
                              : costs_.host_s(rank, i, has_posted && transfer_of(rank, i - 1).sender_posted_first);
    if (host_s <= 0) return false;
    // Posting is a part of what the transport takes from the core already: used once more, it would count twice.
    if (asynchronous || has_posted)
      fluid_.begin(host_s, kNothing, [this, rank] { ready_.push_back(rank); });
    else
      use_core(rank, host_s);
    return true;
  }

  bool begin_compute(std::uint32_t rank) {
    RankState& state = ranks_[rank];
    RankTimeline& times = timeline_.ranks[rank];
    state.computing = !state.computing;
    (state.computing ? times.start_s : times.end_s)[state.next] = fluid_.now_s();
    if (costs_.is_on_host(rank, state.next)) {
      if (state.computing)
        fluid_.begin(costs_.compute_s(rank, state.next), kNothing, [this, rank] { ready_.push_back(rank); });
      else
        hosts_.has_done(rank, state.next, fluid_.now_s());
    } else if (state.computing) {
      use_core(rank, costs_.compute_s(rank, state.next));
      set_speed(rank);
    }
    return state.computing;
  }

  void use_core(std::uint32_t rank, double seconds) {
    Core& core = cores_[placed_.device(rank)];
    if (core.computing++ == 0) {
      nodes_[ranks_[rank].node].computing += placed_.alike_on_node(rank);
      for (const std::uint32_t id : core.disturbed) compute_beside(transfers_[id], true);
    }
    ranks_[rank].activity = fluid_.begin(seconds, {{placed_.device(rank)}}, [this, rank, &core] {
      if (--core.computing == 0) {
        nodes_[ranks_[rank].node].computing -= placed_.alike_on_node(rank);
        for (const std::uint32_t id : core.disturbed) compute_beside(transfers_[id], false);
      }
      ready_.push_back(rank);
    });
  }

  /// Where other numbers of devices compute than the speeds are set for.
  void slow_down_by_contention() {
    const std::uint32_t levels = costs_.mean.busy_levels;
    if (levels == 1) return;
    for (std::uint32_t node = 0; node < nodes_.size(); ++node)
      if (const std::uint32_t busy = std::clamp<std::uint32_t>(nodes_[node].computing, 1, levels);
          busy != nodes_[node].busy) {
        nodes_[node].busy = busy;
        for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank)
          if (ranks_[rank].node == node && ranks_[rank].computing && !costs_.is_on_host(rank, ranks_[rank].next))
            set_speed(rank);
      }
  }
  /// Seconds alone over seconds with as many devices of the node computing.
  void set_speed(std::uint32_t rank) {
    const RankState& state = ranks_[rank];
    const double* cost_s = &costs_.mean.work_s[placed_.role(rank).work[state.next] * costs_.mean.busy_levels];
    const double slow_s = cost_s[nodes_[state.node].busy - 1];
    fluid_.set_speed(state.activity, cost_s[0] > 0 && slow_s > 0 ? cost_s[0] / slow_s : 1);
  }

  bool post(std::uint32_t rank) {
    const std::uint32_t i = ranks_[rank].next;
    timeline_.ranks[rank].posted_s[i] = fluid_.now_s();
    if (const double late_s = costs_.late_s(rank, i); late_s > 0)
      fluid_.begin(late_s, kNothing, [this, rank, i] { all_alike_have_posted(rank, i); });
    else
      all_alike_have_posted(rank, i);
    return false;
  }
  void all_alike_have_posted(std::uint32_t rank, std::uint32_t i) {
    const Role& list = placed_.role(rank);
    Transfer& transfer = transfer_of(rank, i);
    transfer.rank = rank, transfer.instruction = i;
    if (placed_.is_copied(rank, i) && placed_.copies(rank, i)) ranks_[rank].uncopied.push_back(i);
    if (transfer.posted++ == 0 && list.kind[i] != InstructionKind::collective) {
      transfer.sender_posted_first = list.kind[i] == InstructionKind::send;
      notify(rank, i);
    }
    if (transfer.posted == placed_.matching.participants[placed_.transfer(rank, i)])
      begin_transfer(transfer);
    else if (list.kind[i] == InstructionKind::collective)
      engage_core(rank, costs_.transfer(rank, i).engaged_s);
  }

  /// The transport's threads go before the rank's, and before those that wait for the core.
  void engage_core(std::uint32_t rank, double engaged_s) {
    if (engaged_s <= 0) return;
    Core& core = cores_[placed_.device(rank)];
    ++core.engaged;
    fluid_.begin(engaged_s, {{placed_.device(rank), 1}}, [this, &core] {
      --core.engaged;
      hand_over(core);
    });
  }

  bool wait(std::uint32_t rank) {
    RankState& state = ranks_[rank];
    const std::uint32_t awaited = placed_.role(rank).awaits[state.next];
    if (!state.waiting) {
      state.waiting = true;
      timeline_.ranks[rank].start_s[state.next] = fluid_.now_s();
    }
    if (!is_done(rank, awaited)) {
      const std::uint32_t next = next_copy(rank, awaited);
      if (next == kNone) {
        state.asleep = true;
        Transfer& transfer = transfer_of(rank, awaited);
        transfer.sleepers.push_back(rank);
        if (!keeps_core(rank, transfer)) release_core(rank);
      } else {
        copy(rank, next);
      }
      return true;
    }
    state.waiting = false;
    timeline_.ranks[rank].end_s[state.next] = fluid_.now_s();
    return false;
  }

  [[nodiscard]] bool is_done(std::uint32_t rank, std::uint32_t i) {
    if (!placed_.is_copied(rank, i) || !placed_.is_done_with_its_part(rank, i)) return transfer_of(rank, i).done;
    return std::ranges::find(ranks_[rank].uncopied, i) == ranks_[rank].uncopied.end();
  }

  void wake(std::uint32_t rank) {
    if (!ranks_[rank].asleep) return;
    ranks_[rank].asleep = false;
    ready_.push_back(rank);
  }

  // ---- Transfers that the ranks' threads copy while they wait: the awaited one first, then in the order posted. ----

  [[nodiscard]] std::uint32_t next_copy(std::uint32_t rank, std::uint32_t awaited) {
    std::uint32_t next = kNone;
    for (const std::uint32_t i : ranks_[rank].uncopied) {
      if (!transfer_of(rank, i).all_posted) continue;
      if (i == awaited) return i;
      if (next == kNone) next = i;
    }
    return next;
  }

  void copy(std::uint32_t rank, std::uint32_t i) {
    const Message message = costs_.message(rank, i, false);
    fluid_.begin(message.latency_s + message.wire_s, {{placed_.device(rank)}}, [this, rank, i] { end_copy(rank, i); });
  }

  void end_copy(std::uint32_t rank, std::uint32_t i) {
    std::erase(ranks_[rank].uncopied, i);
    timeline_.ranks[rank].end_s[i] = fluid_.now_s();
    Transfer& transfer = transfer_of(rank, i);
    if (--transfer.uncopied == 0) end_transfer(transfer);
    ready_.push_back(rank);
  }

  // ---- Transfers in the background: latencies overlap; the bytes of one channel go one after the other. ----

  /// The first end that posts notifies the other, whose core has to handle that.
  void notify(std::uint32_t rank, std::uint32_t i) {
    const double notification_s = costs_.message(rank, i, transfer_of(rank, i).sender_posted_first).notification_s;
    if (notification_s > 0) fluid_.begin(notification_s, {{placed_.device(placed_.partner(rank, i)), 1}}, [] {});
  }

  void begin_transfer(Transfer& transfer) {
    const std::uint32_t rank = transfer.rank, i = transfer.instruction;
    transfer.all_posted = true;
    transfer.ready_s = fluid_.now_s();
    if (placed_.is_copied(rank, i)) {
      transfer.uncopied = placed_.copiers(rank, i);
      if (transfer.uncopied == 0) return end_transfer(transfer);
      for_each_end(transfer, [&](std::uint32_t end) { wake(end); });
      return;
    }
    const Message message = costs_.message(rank, i, transfer.sender_posted_first);
    const std::uint32_t id = id_of(transfer);
    transfer.on_sender = message.sender_free_s <= 0;
    move(transfer, message.latency_s, [this, id] { queue_wire(id); });
    if (!transfer.on_sender)
      fluid_.begin(message.sender_free_s, kNothing, [this, id] { begin_on_sender(transfers_[id]); });
  }

  /// Whether a rank that waits for a collective keeps its core: who posted it last does. The transport's threads take the
  /// core at once, and where each member has one for itself they find what the others gave and go through with it: over
  /// before the rank's thread, which they go before, comes to sleep.
  [[nodiscard]] bool keeps_core(std::uint32_t rank, const Transfer& transfer) const {
    const std::uint32_t i = transfer.instruction;
    if (!transfer.all_posted || transfer.rank != rank || placed_.is_copied(rank, i) ||
        placed_.role(rank).kind[i] != InstructionKind::collective || costs_.transfer(rank, i).core_share <= 0)
      return false;
    const std::span<const std::uint32_t> members = placed_.members(rank, i);
    return std::ranges::count_if(
               members, [&](std::uint32_t member) { return placed_.device(member) == placed_.device(rank); }) == 1;
  }

  /// An activity of the transport: beside `demands_`, takes its share of the cores at its ends.
  void move(Transfer& transfer, double seconds, std::function<void()> at_end) {
    const double share = costs_.transfer(transfer.rank, transfer.instruction).core_share;
    if (share > 0)
      for_each_end(transfer, [&](std::uint32_t end) {
        if (!transfer.on_sender && end == sender_of(transfer)) return;
        Core& core = cores_[placed_.device(end)];
        if (core.demand == kNone) {
          core.demand = static_cast<std::uint32_t>(demands_.size());
          demands_.push_back({placed_.device(end), share});
        } else {  // its time was measured with both of them there
          double& taken = demands_[core.demand].taken;
          taken = std::min(1.0, taken + share);
        }
      });
    for (const Fluid::Demand& demand : demands_)
      if (demand.taken > 0) cores_[demand.resource].demand = kNone;
    transfer.moving = true;
    transfer.activity = fluid_.begin(seconds, demands_, std::move(at_end));
    demands_.clear();
    if (costs_.transfer(transfer.rank, transfer.instruction).beside_compute <= 1) return;
    for_each_end(transfer, [&](std::uint32_t end) {
      Core& core = cores_[placed_.device(end)];
      core.disturbed.push_back(id_of(transfer));
      if (core.computing > 0) compute_beside(transfer, true);
    });
  }
  void stop(Transfer& transfer) {
    transfer.moving = false;
    transfer.computing = 0;
    if (costs_.transfer(transfer.rank, transfer.instruction).beside_compute <= 1) return;
    for_each_end(transfer,
                 [&](std::uint32_t end) { std::erase(cores_[placed_.device(end)].disturbed, id_of(transfer)); });
  }
  /// One more of the cores at a moving transfer's ends computes, or one less.
  void compute_beside(Transfer& transfer, bool more) {
    const std::uint32_t before = transfer.computing;
    transfer.computing += more ? 1 : -1;
    if ((before == 0) == (transfer.computing == 0)) return;
    const double slower = costs_.transfer(transfer.rank, transfer.instruction).beside_compute;
    fluid_.set_speed(transfer.activity, more ? 1 / slower : 1);
  }
  [[nodiscard]] std::uint32_t id_of(const Transfer& transfer) const {
    return static_cast<std::uint32_t>(&transfer - transfers_.data());
  }

  void begin_on_sender(Transfer& transfer) {
    transfer.on_sender = true;
    const double share = costs_.transfer(transfer.rank, transfer.instruction).core_share;
    if (transfer.moving && share > 0) fluid_.demand(transfer.activity, {placed_.device(sender_of(transfer)), share});
  }

  void queue_wire(std::uint32_t id) {
    stop(transfers_[id]);
    std::deque<std::uint32_t>& queue = channels_[placed_.matching.channel[id]];
    queue.push_back(id);
    if (queue.size() == 1) begin_wire(id);
  }
  void begin_wire(std::uint32_t id) {
    Transfer& transfer = transfers_[id];
    const TransferCost& cost = costs_.transfer(transfer.rank, transfer.instruction);
    for (const PlacedProgram::PortUse& at : placed_.ports_of(transfer.rank, transfer.instruction))
      if (const double use = at.times * cost.use_of(at.level); use > 0)
        demands_.push_back({placed_.devices + at.port, 0, use});
    const Message message = costs_.message(transfer.rank, transfer.instruction, transfer.sender_posted_first);
    move(transfer, message.wire_s, [this, id] { end_wire(id); });
  }
  void end_wire(std::uint32_t id) {
    stop(transfers_[id]);
    end_transfer(transfers_[id]);
    std::deque<std::uint32_t>& queue = channels_[placed_.matching.channel[id]];
    queue.pop_front();
    if (!queue.empty()) begin_wire(queue.front());
  }

  void end_transfer(Transfer& transfer) {
    transfer.done = true;
    transfer.end_s = fluid_.now_s();
    for (const std::uint32_t rank : transfer.sleepers) wake(rank);
    transfer.sleepers.clear();
  }

  /// The ranks of a transfer.
  template <class Visit>
  void for_each_end(const Transfer& transfer, Visit visit) const {
    const std::uint32_t rank = transfer.rank, i = transfer.instruction;
    if (placed_.role(rank).kind[i] == InstructionKind::collective) {
      for (const std::uint32_t member : placed_.members(rank, i)) visit(member);
    } else {
      visit(rank);
      visit(placed_.partner(rank, i));
    }
  }
  [[nodiscard]] std::uint32_t sender_of(const Transfer& transfer) const {
    const InstructionKind kind = placed_.role(transfer.rank).kind[transfer.instruction];
    if (kind == InstructionKind::collective) return kNone;
    return kind == InstructionKind::send ? transfer.rank : placed_.partner(transfer.rank, transfer.instruction);
  }

  void fill_transfers(std::uint32_t rank) {
    const Role& list = placed_.role(rank);
    RankTimeline& times = timeline_.ranks[rank];
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      if (!is_posted(list.kind[i])) continue;
      const Transfer& transfer = transfer_of(rank, i);
      times.start_s[i] = transfer.ready_s;
      if (!placed_.is_copied(rank, i) || !placed_.is_done_with_its_part(rank, i)) times.end_s[i] = transfer.end_s;
    }
  }

  const PlacedProgram& placed_;
  const StepCosts& costs_;
  HostLanes hosts_;
  Timeline timeline_;
  Fluid fluid_;
  std::vector<Core> cores_;  // by device
  std::vector<Node> nodes_;
  std::vector<Fluid::Demand> demands_;  // of the activity that `move` begins next
  std::vector<RankState> ranks_;
  std::deque<std::uint32_t> ready_;
  std::vector<Transfer> transfers_;
  std::vector<std::deque<std::uint32_t>> channels_;  // waiting for their wire; the front has it
};

}  // namespace

Timeline simulate_shared(const PlacedProgram& placed, const StepCosts& costs) {
  return SharedStep(placed, costs).run();
}

}  // namespace sim
