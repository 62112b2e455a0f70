#include <algorithm>

#include "sim/simulate/longest_path.hpp"
#include "sim/simulate/step.hpp"

namespace sim {
namespace {

/// Costs that only shared time can tell. What a transport's ends do to each other is among them: a transfer's cost is
/// all that the closed form needs.
bool is_shared(const PlacedProgram& placed, const Costs& mean) {
  return placed.shares_devices || mean.busy_levels > 1 ||
         std::ranges::any_of(mean.transfers,
                             [](const TransferCost& cost) { return cost.core_share > 0 || cost.rendezvous.known(); });
}

class ClosedForm : public LongestPath<ClosedForm> {
 public:
  ClosedForm(const PlacedProgram& placed, const StepCosts& costs)
      : LongestPath(placed), costs_(costs), hosts_(placed, costs), channels_(placed.matching.channels) {}

  std::optional<Timeline> run() {
    if (LongestPath::run() != kNone || overtaken_ || flows_meet()) return std::nullopt;
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank)
      if (!fill_transfers(rank)) return std::nullopt;
    hosts_.fill(timeline_);
    return std::move(timeline_);
  }

 private:
  friend LongestPath;

  /// Transfers whose bytes go one after the other, in the order in which they could begin.
  struct Channel {
    double arrival_s = 0, free_s = 0;                 // of the latest transfer's first and last byte
    std::uint32_t rank = kNone, instruction = kNone;  // one that uses it
    std::vector<std::pair<double, double>> busy_s;    // from, to: only where its ports are others', too
    std::vector<double> use;                          // by level: the most of its transfers

    [[nodiscard]] double most_use(std::size_t level) const { return level < use.size() ? use[level] : 0; }
  };

  [[nodiscard]] double issued_s(std::uint32_t rank, std::uint32_t i, double clock_s) {
    if (!costs_.host_runs_ahead()) return clock_s + costs_.host_s(rank, i, false);
    const double begin_s = std::max(clock_s + costs_.gap_s(rank, i), hosts_.issue(rank, i));
    if (costs_.is_on_host(rank, i)) hosts_.has_done(rank, i, begin_s + compute_s(rank, i));
    return begin_s;
  }
  [[nodiscard]] double compute_s(std::uint32_t rank, std::uint32_t i) const { return costs_.compute_s(rank, i); }
  [[nodiscard]] double late_s(std::uint32_t rank, std::uint32_t i) const { return costs_.late_s(rank, i); }

  void all_have_posted(std::uint32_t rank, std::uint32_t i) {
    if (placed_.is_copied(rank, i)) return;
    Transfer& transfer = transfer_of(rank, i);
    Channel& channel = channels_[placed_.matching.channel[placed_.transfer(rank, i)]];
    const double factor = costs_.transfer_factor(rank, i), wire_s = factor * costs_.transfer(rank, i).wire_s;
    const double arrival_s = transfer.ready_s + factor * costs_.transfer(rank, i).latency_s;
    overtaken_ |= arrival_s < channel.arrival_s;
    channel.arrival_s = arrival_s;
    transfer.end_s = std::max(arrival_s, channel.free_s) + wire_s;
    channel.free_s = transfer.end_s;
    channel.rank = rank, channel.instruction = i;
    if (!(wire_s > 0)) return;
    channel.busy_s.emplace_back(transfer.end_s - wire_s, transfer.end_s);
    channel.use.resize(placed_.cluster.levels.size(), 0);
    for (std::size_t level = 0; level < channel.use.size(); ++level)
      channel.use[level] = std::max(channel.use[level], costs_.transfer(rank, i).use_of(level));
  }

  void begin_wait(std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t awaited = placed_.role(rank).awaits[i];
    if (placed_.is_copied(rank, awaited) && placed_.copies(rank, awaited)) move(rank, awaited);
  }
  [[nodiscard]] double done_s(std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t awaited = placed_.role(rank).awaits[i];
    if (!placed_.is_copied(rank, awaited)) return transfer_of(rank, awaited).end_s;
    const double begun_s = begin_s(rank, awaited, timeline_.ranks[rank].start_s[i]);
    return begun_s == kUnknown ? kUnknown : begun_s + copy_s(rank, awaited);
  }
  [[nodiscard]] double copy_s(std::uint32_t rank, std::uint32_t i) const {
    const TransferCost& cost = costs_.transfer(rank, i);
    return costs_.transfer_factor(rank, i) * (cost.latency_s + cost.wire_s);
  }

  /// Bytes of several channels go through one port at the same time, and need more than it has.
  [[nodiscard]] bool flows_meet() const {
    const bool is_folded = placed_.program.classes.has_value();  // a channel stands for several
    if (!is_folded && std::ranges::count_if(channels_, [](const Channel& c) { return !c.busy_s.empty(); }) < 2)
      return false;
    struct Change {
      double at_s, use;
      auto operator<=>(const Change&) const = default;
    };
    std::vector<std::vector<Change>> changes(placed_.ports());
    for (const Channel& channel : channels_) {
      if (channel.busy_s.empty()) continue;
      for (const PlacedProgram::PortUse& at : placed_.ports_of(channel.rank, channel.instruction)) {
        const double use = at.times * channel.most_use(at.level);
        for (const auto& [from_s, until_s] : channel.busy_s) {
          if (!(use > 0)) continue;
          changes[at.port].push_back({from_s, use});
          changes[at.port].push_back({until_s * (1 - kRounding), -use});
        }
      }
    }
    for (std::vector<Change>& of_port : changes) {
      std::ranges::sort(of_port);
      double used = 0;
      for (const Change& change : of_port)
        if ((used += change.use) > 1 + kMostOver) return true;
    }
    return false;
  }

  /// False: the rank stood idle in a wait while it could have copied another transfer.
  [[nodiscard]] bool fill_transfers(std::uint32_t rank) {
    const Role& list = placed_.role(rank);
    RankTimeline& times = timeline_.ranks[rank];
    open_.clear();
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      if (is_posted(list.kind[i])) {
        const Transfer& transfer = transfer_of(rank, i);
        times.start_s[i] = transfer.ready_s;
        if (!placed_.is_copied(rank, i))
          times.end_s[i] = transfer.end_s;
        else if (placed_.copies(rank, i))
          open_.push_back(i);
      } else if (list.kind[i] == InstructionKind::wait && !open_.empty()) {
        std::erase(open_, list.awaits[i]);
        if (!open_.empty() && could_copy(rank, i)) return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool could_copy(std::uint32_t rank, std::uint32_t wait) const {
    const RankTimeline& times = timeline_.ranks[rank];
    const std::uint32_t awaited = placed_.role(rank).awaits[wait];
    // Idle until its own part of the awaited transfer begins, and from that part's end on.
    double from_s = times.end_s[wait], until_s = from_s;
    if (placed_.is_copied(rank, awaited) && placed_.copies(rank, awaited)) {
      until_s = std::max(times.start_s[wait], times.start_s[awaited]);
      from_s = until_s + copy_s(rank, awaited);
    }
    return std::ranges::any_of(open_, [&](std::uint32_t i) {
      const double ready_s = times.start_s[i];
      return std::max(ready_s, times.start_s[wait]) < until_s * (1 - kRounding) ||
             std::max(ready_s, from_s) < times.end_s[wait] * (1 - kRounding);
    });
  }

  static constexpr double kRounding = 1e-12, kMostOver = 1e-9;
  const StepCosts& costs_;
  HostLanes hosts_;
  std::vector<Channel> channels_;
  std::vector<std::uint32_t> open_;  // of one rank: posted, will be copied by it
  bool overtaken_ = false;
};

}  // namespace

std::optional<Timeline> closed_form(const PlacedProgram& placed, const StepCosts& costs) {
  if (is_shared(placed, costs.mean)) return std::nullopt;
  return ClosedForm(placed, costs).run();
}

}  // namespace sim
