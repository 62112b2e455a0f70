#include "sim/error.hpp"
#include "sim/simulate/durations.hpp"
#include "sim/simulate/longest_path.hpp"

namespace sim {
namespace {

class Replay : public LongestPath<Replay> {
 public:
  Replay(const PlacedProgram& placed, const Durations& durations)
      : LongestPath(placed), durations_(durations), copied_(placed.ranks(), 0) {}

  Timeline run() {
    const std::uint32_t stuck = LongestPath::run();
    check_internal(stuck == kNone, "rank {} stands at instruction {} for ever: the program wasn't validated", stuck,
                   stuck == kNone ? 0 : next_of(stuck));
    for (std::uint32_t rank = 0; rank < placed_.ranks(); ++rank) {
      const Role& list = placed_.role(rank);
      RankTimeline& times = timeline_.ranks[rank];
      for (std::uint32_t i = 0; i < list.size(); ++i) {
        if (!is_posted(list.kind[i])) continue;
        times.start_s[i] = transfer_of(rank, i).ready_s;
        if (times.end_s[i] == 0) times.end_s[i] = times.start_s[i] + durations_.seconds[rank][i];
      }
    }
    break_down(placed_.program, timeline_);
    check(placed_.program, timeline_);
    return std::move(timeline_);
  }

 private:
  friend LongestPath;

  [[nodiscard]] double issued_s(std::uint32_t rank, std::uint32_t i, double clock_s) const {
    return clock_s + durations_.host_s[rank][i];
  }
  [[nodiscard]] double compute_s(std::uint32_t rank, std::uint32_t i) const { return durations_.seconds[rank][i]; }
  void all_have_posted(std::uint32_t /*rank*/, std::uint32_t /*i*/) {}

  void begin_wait(std::uint32_t rank, std::uint32_t i) {
    const auto& copies = durations_.copied_in[rank];
    for (std::uint32_t& next = copied_[rank]; next < copies.size() && copies[next].first == i; ++next) {
      timeline_.ranks[rank].end_s[copies[next].second] = timeline_.ranks[rank].start_s[i];  // until it is done
      move(rank, copies[next].second);
    }
  }
  [[nodiscard]] double done_s(std::uint32_t rank, std::uint32_t i) {
    const std::uint32_t awaited = placed_.role(rank).awaits[i];
    const double begun_s = begin_s(rank, awaited, timeline_.ranks[rank].end_s[awaited]);
    return begun_s == kUnknown ? kUnknown : begun_s + durations_.seconds[rank][awaited];
  }

  const Durations& durations_;
  std::vector<std::uint32_t> copied_;  // by rank: how many of its copies have begun
};

}  // namespace

Timeline replay(const Program& program, const Durations& durations, const Cluster& cluster) {
  const TransferMatching matching(program);
  const PlacedProgram placed(program, cluster, matching);
  return Replay(placed, durations).run();
}

}  // namespace sim
