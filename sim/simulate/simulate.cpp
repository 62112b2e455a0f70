#include "sim/simulate/simulate.hpp"

#include <algorithm>
#include <limits>

#include "sim/error.hpp"
#include "sim/program/transfers.hpp"
#include "sim/simulate/jitter.hpp"

namespace sim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Where the engine takes durations from.
struct Source {
  const Prices* prices = nullptr;
  const Factors* factors = nullptr;
};

class Engine {
 public:
  Engine(const Program& program, const Cluster& cluster, const Source& source, const TransferMatching& wiring)
      : program_(program), cluster_(cluster), source_(source), wiring_(wiring), places_(program.places()) {
    const auto ranks = static_cast<std::uint32_t>(places_.size());
    if (cluster.place.size() < ranks)
      throw ConfigError("program of {} ranks on cluster '{}', which was made for {}", ranks, cluster.name,
                        cluster.place.size());
    std::uint32_t devices = 0, nodes = 0;
    for (std::uint32_t r = 0; r < ranks; ++r) {
      devices = std::max(devices, cluster.place[r].device + 1);
      nodes = std::max(nodes, cluster.place[r].node + 1);
    }
    device_load_.resize(devices);
    device_computes_.resize(devices);
    device_stolen_.resize(devices);
    device_node_.resize(devices);
    for (std::uint32_t r = 0; r < ranks; ++r) device_node_[cluster.place[r].device] = cluster.place[r].node;
    node_busy_.resize(nodes);
    transfers_.resize(wiring_.participants.size());
    channel_free_.assign(wiring_.channels, 0);
    channel_queue_.resize(wiring_.channels);
    asynchronous_ = cluster.device.asynchronous;
    if (asynchronous_) plan_issues(nodes);
    fluid_ = is_shared();
    ranks_.resize(ranks);
    timeline_.ranks.resize(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) {
      const std::uint32_t size = role(r).size();
      timeline_.ranks[r].posted_s.assign(size, 0);
      timeline_.ranks[r].start_s.assign(size, 0);
      timeline_.ranks[r].end_s.assign(size, 0);
    }
  }

  Timeline run() {
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) ready_.push_back(r);
    for (;;) {
      while (!ready_.empty()) {
        const std::uint32_t rank = ready_.back();
        ready_.pop_back();
        advance(rank);
      }
      if (active_.empty()) break;
      pass_time();
    }
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      check_internal(ranks_[r].next == role(r).size(),
                     "rank {} stands at instruction {} for ever: the program wasn't validated", r, ranks_[r].next);
      timeline_.ranks[r].end_of_step_s = ranks_[r].clock;
      timeline_.step_s = std::max(timeline_.step_s, ranks_[r].clock);
    }
    fill_transfers();
    break_down(program_, timeline_);
    check(program_, timeline_);
    return std::move(timeline_);
  }

 private:
  struct RankState {
    std::uint32_t next = 0;  // instruction
    double clock = 0;        // of the issuing thread; on an asynchronous device of the compute lane
    bool waiting = false;    // has entered the wait at `next`
    bool issued = false;     // the host time of `next` has passed
    bool computing = false;  // the compute activity of `next` has begun
  };
  struct Transfer {
    double ready = 0, start = 0, end = kInfinity;  // all have posted; begins to move; done
    double entered = 0;                            // engine receiver: when the last of those who copy began to wait
    std::uint32_t posted = 0, copiers = 0;
    bool unexpected = false;  // point to point: the sender has posted first
    std::uint32_t price = kNone;
    std::uint32_t role = kNone, instruction = kNone;  // of one party
    std::uint32_t replica = 0;
    std::vector<std::uint32_t> sleepers;
  };
  /// Something that goes on in a fluid world.
  struct Activity {
    enum class Kind : std::uint8_t { compute, timer, note, mark, latency, wire, copy } kind;
    std::uint32_t subject;  // rank (compute, timer), device (note) or transfer; a mark is a moment and does nothing
    double remaining;       // seconds if alone
    double rate = 1;
    /// A transfer by the transport's own threads.
    [[nodiscard]] bool transports() const { return kind == Kind::latency || kind == Kind::wire; }
    /// Needs cores for itself; what the transport's threads do only takes from others.
    [[nodiscard]] bool loads() const { return kind == Kind::compute || kind == Kind::copy; }
  };

  [[nodiscard]] const Role& role(std::uint32_t rank) const { return program_.roles[places_[rank].role]; }

  [[nodiscard]] bool is_shared() const {
    if (source_.prices->busy_levels > 1) return true;
    std::vector<int> ranks_on(device_load_.size(), 0);
    for (std::uint32_t r = 0; r < places_.size(); ++r)
      if (++ranks_on[cluster_.place[r].device] > 1) return true;
    for (const TransferCost& cost : source_.prices->transfers)
      if (cost.core_share > 0 || cost.rendezvous.known()) return true;
    return cluster_.link.shared && wiring_.channels > 1;  // two flows can meet, if only in opposite directions
  }

  /// The thread comes from posting a transfer.
  [[nodiscard]] bool has_posted(std::uint32_t rank, std::uint32_t i) const {
    return i > 0 && is_posted(role(rank).kind[i - 1]);
  }

  /// Host time before an instruction: what posting the one before takes, or a launch.
  [[nodiscard]] double launch(std::uint32_t rank, std::uint32_t i) const {
    if (!has_posted(rank, i)) return source_.prices->launch_s;
    return std::max(source_.prices->launch_s, post_s(transfers_[transfer_id(rank, i - 1)], role(rank).kind[i - 1]));
  }
  [[nodiscard]] double post_s(const Transfer& transfer, InstructionKind kind) const {
    const TransferCost& cost = cost_of(transfer);
    if (kind == InstructionKind::recv) return cost.recv_post_s;
    return transfer.unexpected ? cost.rendezvous.post_s : cost.post_s;
  }

  /// Alone on the device.
  [[nodiscard]] double work_s(std::uint32_t rank, const Role& list, std::uint32_t i) const {
    const double price = source_.prices->work_s[list.work[i] * source_.prices->busy_levels];
    return source_.factors != nullptr ? price * static_cast<double>(source_.factors->compute[rank][i]) : price;
  }
  [[nodiscard]] const TransferCost& cost_of(const Transfer& transfer) const {
    return source_.prices->transfers[transfer.price];
  }
  [[nodiscard]] double latency_s(std::uint32_t id) const {
    const TransferCost& cost = cost_of(transfers_[id]);
    return drawn_s(id, transfers_[id].unexpected ? cost.rendezvous.latency_s : cost.latency_s);
  }
  [[nodiscard]] double wire_s(std::uint32_t id) const {
    const TransferCost& cost = cost_of(transfers_[id]);
    return drawn_s(id, transfers_[id].unexpected ? cost.rendezvous.wire_s : cost.wire_s);
  }
  [[nodiscard]] double drawn_s(std::uint32_t id, double price_s) const {
    return source_.factors != nullptr ? price_s * static_cast<double>(source_.factors->transfer[id]) : price_s;
  }

  /// An asynchronous device's host runs ahead: when it has issued each instruction. A thread that issues for several
  /// ranks goes through their lists in turn, each as far as what it waits for has been issued.
  void plan_issues(std::uint32_t nodes) {
    const auto ranks = static_cast<std::uint32_t>(places_.size());
    const std::uint32_t threads = cluster_.one_host_thread ? nodes : ranks;
    std::vector<double> clock(threads, 0);
    std::vector<std::uint32_t> next(ranks, 0), posted(wiring_.participants.size(), 0);
    issued_s_.resize(ranks);
    for (std::uint32_t r = 0; r < ranks; ++r) issued_s_[r].resize(role(r).size());
    for (bool advances = true; advances;) {
      advances = false;
      for (std::uint32_t r = 0; r < ranks; ++r) {
        const Role& list = role(r);
        double& host_s = clock[cluster_.one_host_thread ? cluster_.place[r].node : r];
        for (; next[r] < list.size(); ++next[r], advances = true) {
          const std::uint32_t i = next[r];
          if (cluster_.one_host_thread && list.kind[i] == InstructionKind::wait) {
            const std::uint32_t id = transfer_id(r, list.awaits[i]);
            if (posted[id] < wiring_.participants[id]) break;
          }
          host_s += source_.prices->launch_s;
          issued_s_[r][i] = host_s;
          if (is_posted(list.kind[i])) ++posted[transfer_id(r, i)];
        }
      }
    }
  }

  /// Plays a rank's list until it has to wait for something.
  void advance(std::uint32_t rank) {
    RankState& state = ranks_[rank];
    RankTimeline& times = timeline_.ranks[rank];
    const Role& list = role(rank);
    const std::uint32_t size = list.size();
    while (state.next < size) {
      const std::uint32_t i = state.next;
      switch (list.kind[i]) {
        case InstructionKind::compute:
        case InstructionKind::copy:
        case InstructionKind::update: {
          if (fluid_) {
            if (!state.computing) {
              if (!issue_fluid(rank, i)) return;
              times.start_s[i] = state.clock;
              state.computing = true;
              start({Activity::Kind::compute, rank, work_s(rank, list, i)});
              return;
            }
            state.computing = state.issued = false;
            times.end_s[i] = state.clock;
          } else {
            issue(rank, i);
            times.start_s[i] = state.clock;
            state.clock += work_s(rank, list, i);
            times.end_s[i] = state.clock;
          }
          break;
        }
        case InstructionKind::send:
        case InstructionKind::recv:
        case InstructionKind::collective: {
          if (fluid_) {
            if (!issue_fluid(rank, i)) return;
            state.issued = false;
          } else {
            issue(rank, i);
          }
          times.posted_s[i] = state.clock;
          post(rank, i, transfer_id(rank, i));
          break;
        }
        case InstructionKind::wait: {
          const std::uint32_t awaited = list.awaits[i];
          Transfer& transfer = transfers_[transfer_id(rank, awaited)];
          if (!state.waiting) {
            if (fluid_) {
              if (!issue_fluid(rank, i)) return;
              state.issued = false;
            } else {
              issue(rank, i);
            }
            times.start_s[i] = state.clock;
            state.waiting = true;
            enter_wait(rank, awaited, transfer);
          }
          const double end = transfer.end;
          if (end == kInfinity) {
            transfer.sleepers.push_back(rank);
            return;
          }
          state.waiting = false;
          state.clock = std::max(state.clock, end);
          times.end_s[i] = state.clock;
          break;
        }
      }
      ++state.next;
    }
  }

  [[nodiscard]] std::uint32_t transfer_id(std::uint32_t rank, std::uint32_t i) const {
    return wiring_.transfer(places_[rank], rank, role(rank), i);
  }

  /// Host time of an instruction. A synchronous device's thread issues, then computes; a GPU's thread runs ahead of the
  /// lane.
  void issue(std::uint32_t rank, std::uint32_t i) {
    RankState& state = ranks_[rank];
    if (asynchronous_)
      state.clock = std::max(state.clock, issued_s_[rank][i]);
    else
      state.clock += launch(rank, i);
  }

  /// The same where time is shared: false while the rank has to let time pass first.
  bool issue_fluid(std::uint32_t rank, std::uint32_t i) {
    RankState& state = ranks_[rank];
    if (state.issued) return true;
    state.issued = true;
    state.clock = std::max(state.clock, now_);
    const double host = asynchronous_ ? issued_s_[rank][i] - state.clock : launch(rank, i);
    if (host <= 0) return true;
    // A thread that posts does a part of what the transport takes from its core.
    start({asynchronous_ || has_posted(rank, i) ? Activity::Kind::timer : Activity::Kind::compute, rank, host});
    return false;
  }

  void post(std::uint32_t rank, std::uint32_t i, std::uint32_t id) {
    Transfer& transfer = transfers_[id];
    transfer.ready = std::max(transfer.ready, ranks_[rank].clock);
    transfer.role = places_[rank].role;
    transfer.instruction = i;
    transfer.replica = places_[rank].replica;
    transfer.price = source_.prices->transfer_of[transfer.role][i];
    if (fluid_ && transfer.posted == 0) leave_note(transfer);
    if (++transfer.posted == wiring_.participants[id]) begin_if_possible(id);
  }

  /// The first of two ends that post takes note_s from the other's core.
  void leave_note(Transfer& transfer) {
    const Rendezvous& rendezvous = cost_of(transfer).rendezvous;
    if (!rendezvous.known()) return;
    transfer.unexpected = program_.roles[transfer.role].kind[transfer.instruction] == InstructionKind::send;
    start({Activity::Kind::note, cluster_.place[partner_in(transfer)].device, rendezvous.note_s});
  }

  /// Point to point: the rank at the other end of the party that the transfer names.
  [[nodiscard]] std::uint32_t partner_in(const Transfer& transfer) const {
    return program_.roles[program_.roles[transfer.role].peer[transfer.instruction]].ranks[transfer.replica];
  }

  /// Who moves the bytes with the issuing thread: the receiver, or every member of a collective.
  void enter_wait(std::uint32_t rank, std::uint32_t awaited, Transfer& transfer) {
    if (cluster_.link.engine != TransferEngine::receiver || role(rank).kind[awaited] == InstructionKind::send) return;
    transfer.entered = std::max(transfer.entered, ranks_[rank].clock);
    ++transfer.copiers;
    begin_if_possible(static_cast<std::uint32_t>(&transfer - transfers_.data()));
  }

  [[nodiscard]] std::uint32_t copiers_needed(std::uint32_t id) const {
    if (cluster_.link.engine != TransferEngine::receiver) return 0;
    const Transfer& transfer = transfers_[id];
    return program_.roles[transfer.role].kind[transfer.instruction] == InstructionKind::collective
               ? wiring_.participants[id]
               : 1;
  }

  void begin_if_possible(std::uint32_t id) {
    Transfer& transfer = transfers_[id];
    if (transfer.posted < wiring_.participants[id] || transfer.copiers < copiers_needed(id)) return;
    const std::uint32_t channel = wiring_.channel[id];
    transfer.start = std::max(transfer.ready, transfer.entered);
    const bool by_thread = cluster_.link.engine == TransferEngine::receiver;
    if (fluid_) {
      if (by_thread) {
        start({Activity::Kind::copy, id, latency_s(id) + wire_s(id)});
        return;
      }
      start({Activity::Kind::latency, id, latency_s(id)});
      const double pause_s = from_sender_s(transfer) - transfer.start;
      if (pause_s > 0) start({Activity::Kind::mark, id, pause_s});
      return;
    }
    // Messages in flight overlap their latencies; their bytes go one after the other.
    transfer.end = transfer.start + latency_s(id);
    if (!by_thread) transfer.end = std::max(transfer.end, channel_free_[channel]);
    transfer.end += wire_s(id);
    channel_free_[channel] = transfer.end;
    wake(transfer);
  }

  /// The bytes of a transfer wait for those of the earlier ones on the same channel.
  void queue_wire(std::uint32_t id) {
    std::vector<std::uint32_t>& queue = channel_queue_[wiring_.channel[id]];
    queue.push_back(id);
    if (queue.size() == 1) start_wire(id);
  }
  void start_wire(std::uint32_t id) { start({Activity::Kind::wire, id, wire_s(id)}); }
  void end_wire(std::uint32_t id) {
    end_transfer(id);
    std::vector<std::uint32_t>& queue = channel_queue_[wiring_.channel[id]];
    queue.erase(queue.begin());
    if (!queue.empty()) start_wire(queue.front());
  }
  void end_transfer(std::uint32_t id) {
    transfers_[id].end = now_;
    wake(transfers_[id]);
  }

  void wake(Transfer& transfer) {
    ready_.insert(ready_.end(), transfer.sleepers.begin(), transfer.sleepers.end());
    transfer.sleepers.clear();
  }

  // ---- Fluid time: everyone active has a rate; the next one to end is looked for among the active. ----

  void start(const Activity& activity) { active_.push_back(activity); }

  template <class Visit>
  void for_each_device(const Activity& activity, Visit visit) const {
    if (activity.kind == Activity::Kind::timer || activity.kind == Activity::Kind::mark) return;
    if (activity.kind == Activity::Kind::note) return visit(activity.subject);
    if (activity.kind == Activity::Kind::compute) return visit(cluster_.place[activity.subject].device);
    const Transfer& transfer = transfers_[activity.subject];
    const Role& list = program_.roles[transfer.role];
    if (list.kind[transfer.instruction] == InstructionKind::collective) {
      const Group& group = program_.groups[list.peer[transfer.instruction]];
      const std::uint32_t members = wiring_.list_of[list.peer[transfer.instruction]][list.ranks[transfer.replica]];
      for (std::uint32_t rank : group.members[members]) visit(cluster_.place[rank].device);
      return;
    }
    const std::uint32_t own = list.ranks[transfer.replica], partner = partner_in(transfer);
    const bool own_receives = list.kind[transfer.instruction] == InstructionKind::recv;
    visit(cluster_.place[own_receives ? own : partner].device);
    if (activity.transports() && takes_from_sender(transfer))
      visit(cluster_.place[own_receives ? partner : own].device);
  }

  /// When the transport's threads begin to write a message on the sender's core.
  [[nodiscard]] double from_sender_s(const Transfer& transfer) const {
    const TransferCost& cost = cost_of(transfer);
    if (!cost.rendezvous.known()) return transfer.start;
    return transfer.start + (transfer.unexpected ? cost.recv_post_s : cost.post_s + cost.rendezvous.delivery_s);
  }
  [[nodiscard]] bool takes_from_sender(const Transfer& transfer) const {
    constexpr double kRounding_s = 1e-9;
    return now_ >= from_sender_s(transfer) - kRounding_s;
  }

  void set_rates() {
    std::fill(device_load_.begin(), device_load_.end(), 0);
    std::fill(device_computes_.begin(), device_computes_.end(), 0);
    std::fill(device_stolen_.begin(), device_stolen_.end(), 0);
    std::fill(node_busy_.begin(), node_busy_.end(), 0);
    std::uint32_t flows = 0;
    for (const Activity& activity : active_) {
      if (activity.kind == Activity::Kind::wire) ++flows;
      const double stolen = activity.kind == Activity::Kind::note ? 1
                            : activity.transports()               ? cost_of(transfers_[activity.subject]).core_share
                                                                  : 0;
      for_each_device(activity, [&](std::uint32_t device) {
        device_stolen_[device] += stolen;
        if (activity.loads()) ++device_load_[device];
        if (activity.kind == Activity::Kind::compute) ++device_computes_[device];
      });
    }
    for (std::uint32_t device = 0; device < device_computes_.size(); ++device)
      if (device_computes_[device] > 0) ++node_busy_[device_node_[device]];
    for (Activity& activity : active_) {
      activity.rate = 1;
      if (!activity.loads()) {
        if (cluster_.link.shared && activity.kind == Activity::Kind::wire) activity.rate = 1.0 / flows;
        continue;
      }
      // The slowest of the cores it needs: an equal share among the ranks that work there, less what the transport's
      // own threads take first.
      for_each_device(activity, [&](std::uint32_t device) {
        constexpr double kLeast = 0.02;  // a core is never taken whole
        activity.rate = std::min(activity.rate, std::max(kLeast, 1 - device_stolen_[device]) / device_load_[device]);
      });
      if (activity.kind == Activity::Kind::compute) activity.rate *= company_factor(activity.subject);
    }
  }

  /// Ops slow each other down through caches and memory: seconds alone over seconds with as many ranks computing as
  /// now.
  [[nodiscard]] double company_factor(std::uint32_t rank) const {
    const std::uint32_t levels = source_.prices->busy_levels;
    if (levels == 1 || !ranks_[rank].computing) return 1;
    const std::uint32_t busy = std::clamp<std::uint32_t>(node_busy_[cluster_.place[rank].node], 1, levels);
    const double* cost = &source_.prices->work_s[role(rank).work[ranks_[rank].next] * levels];
    return cost[0] > 0 && cost[busy - 1] > 0 ? cost[0] / cost[busy - 1] : 1;
  }

  void pass_time() {
    set_rates();
    double step = kInfinity;
    for (const Activity& activity : active_) step = std::min(step, activity.remaining / activity.rate);
    now_ += step;
    std::vector<Activity> ended;
    std::size_t kept = 0;
    for (Activity& activity : active_) {
      const double left = activity.remaining - step * activity.rate;
      // What ends at the same moment but for rounding ends now.
      const bool over = left <= 1e-12 * (activity.remaining + 1e-3);
      activity.remaining = left;
      if (over)
        ended.push_back(activity);
      else
        active_[kept++] = activity;
    }
    active_.resize(kept, {Activity::Kind::timer, 0, 0});
    for (const Activity& activity : ended) end(activity);
  }

  void end(const Activity& activity) {
    switch (activity.kind) {
      case Activity::Kind::compute:
      case Activity::Kind::timer:
        ranks_[activity.subject].clock = now_;
        ready_.push_back(activity.subject);
        break;
      case Activity::Kind::note:
      case Activity::Kind::mark:
        break;
      case Activity::Kind::latency:
        queue_wire(activity.subject);
        break;
      case Activity::Kind::wire:
        end_wire(activity.subject);
        break;
      case Activity::Kind::copy:
        end_transfer(activity.subject);
        break;
    }
  }

  /// Ready and done times of the transfers, for every party.
  void fill_transfers() {
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      const Role& list = role(r);
      for (std::uint32_t i = 0; i < list.size(); ++i) {
        if (!is_posted(list.kind[i])) continue;
        const Transfer& transfer = transfers_[transfer_id(r, i)];
        timeline_.ranks[r].start_s[i] = transfer.ready;
        timeline_.ranks[r].end_s[i] = transfer.end;
      }
    }
  }

  const Program& program_;
  const Cluster& cluster_;
  Source source_;
  const TransferMatching& wiring_;
  std::vector<Program::Place> places_;
  Timeline timeline_;
  std::vector<RankState> ranks_;
  std::vector<std::uint32_t> ready_;
  std::vector<Transfer> transfers_;
  std::vector<double> channel_free_;
  std::vector<std::vector<std::uint32_t>> channel_queue_;
  bool asynchronous_ = false, fluid_ = false;
  std::vector<std::vector<double>> issued_s_;  // [rank][instruction]: by an asynchronous device's host
  double now_ = 0;
  std::vector<Activity> active_;
  std::vector<std::uint32_t> device_load_, device_computes_, device_node_, node_busy_;
  std::vector<double> device_stolen_;
};

}  // namespace

Timeline simulate(const Program& program, const Prices& prices, const Cluster& cluster) {
  return Engine(program, cluster, {.prices = &prices}, TransferMatching(program)).run();
}

StepTime expected_step(const Program& program, const Prices& prices, const Cluster& cluster) {
  const TransferMatching wiring(program);
  const std::vector<Factors> drawn = draw_factors(program, prices, wiring);
  if (drawn.empty()) return step_time(Engine(program, cluster, {.prices = &prices}, wiring).run());
  std::vector<StepTime> times;
  for (const Factors& factors : drawn)
    times.push_back(step_time(Engine(program, cluster, {.prices = &prices, .factors = &factors}, wiring).run()));
  return mean(times);
}

}  // namespace sim
