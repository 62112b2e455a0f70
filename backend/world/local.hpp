// What the ranks of one process share, whatever moves their data (local.cpp: memory copies; local_cuda.cpp: a GPU's
// copy streams).
//
//   class CpuCommunicator : public LocalRank { … };
//   transfer.done = step();
//   ring(partner);                       // whoever changes what another rank may wait for rings its bell
//   wait_until([&] { return transfer.done == step(); }, [&] { return "rank 1 hasn't …"; });
//
// Shared state carries the number of the step it belongs to, so nothing has to be cleared between steps.
#pragma once

#include <atomic>
#include <concepts>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "backend/world/world.hpp"

namespace backend {

/// Slots that two sides address by number. References stay valid.
template <class Slot>
class Slots {
 public:
  /// `make` constructs a slot nobody has asked for yet.
  template <class Make>
  Slot& at(std::uint32_t number, Make make) {
    const std::lock_guard lock(mutex_);
    while (slots_.size() <= number) make(slots_);
    return slots_[number];
  }

 private:
  std::mutex mutex_;
  std::deque<Slot> slots_;
};

/// A rank that finds nothing to do sleeps until somebody rings.
class Doorbell {
 public:
  [[nodiscard]] std::uint32_t rings() const { return rings_.load(std::memory_order_seq_cst); }
  void ring();
  /// Returns soon after somebody has rung since `rings` was `heard`, at the latest after 50 ms: a waiting rank also
  /// looks at the clock.
  void sleep(std::uint32_t heard, double spin_s);

 private:
  alignas(64) std::atomic<std::uint32_t> rings_{0};
  std::atomic<std::uint32_t> sleeping_{0};
};

/// The barrier, the bells and the fate of all ranks.
struct LocalTeam {
  explicit LocalTeam(const WorldOptions& options);

  const std::uint32_t ranks;
  const double timeout_s;
  std::vector<Doorbell> bells;
  std::vector<std::atomic<std::uint32_t>> arrived;  // step that each rank has come to
  std::atomic<std::uint32_t> arrivals{0};
  std::atomic<std::uint32_t> released{0};  // step that may begin …
  double release_s = 0;                    // … at this moment
  std::atomic<bool> failed{false};
};

/// The half of a Communicator that all local worlds share.
class LocalRank : public Communicator {
 public:
  LocalRank(LocalTeam& team, std::uint32_t rank) : team_(team), rank_(rank) {}
  [[nodiscard]] std::uint32_t rank() const override { return rank_; }
  [[nodiscard]] std::uint32_t size() const override { return team_.ranks; }
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override;
  double begin_step() override;
  void abandon() override;

 protected:
  [[nodiscard]] std::uint32_t step() const { return step_; }
  void ring(std::uint32_t rank) { team_.bells[rank].ring(); }
  /// Calls `ready` whenever something may have changed until it holds. Timeout: RunError with `missing()`.
  template <std::predicate Ready, class Missing>
  void wait_until(Ready ready, Missing missing) {
    Doorbell& bell = team_.bells[rank_];
    double deadline = 0;
    for (;;) {
      const std::uint32_t heard = bell.rings();
      if (ready()) return;
      bell.sleep(heard, own_core_ ? kSpin_s : 0);
      if (team_.failed) throw sim::RunError("another rank has failed");
      if (deadline == 0) deadline = now_s() + team_.timeout_s;
      if (now_s() > deadline) throw sim::RunError("{} within {:g} s", missing(), team_.timeout_s);
    }
  }

 private:
  /// A sleeping core takes some 10 µs to wake up; spinning longer than that gains little and starves whoever shares the
  /// core.
  static constexpr double kSpin_s = 100e-6;

  LocalTeam& team_;
  const std::uint32_t rank_;
  std::uint32_t step_ = 0, ranks_ = 1;  // the ranks that run the program
  bool own_core_ = false;               // each of them has a core for itself: it may spin
};

/// The collectives of each member list of each group, shared by its members.
template <class Collective>
class LocalGroups {
 public:
  struct Entry {
    std::vector<std::uint32_t> members;
    Slots<Collective> collectives;
  };
  Entry& at(std::uint32_t group, const std::vector<std::uint32_t>& members) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[{group, members}];
    entry.members = members;
    return entry;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::uint32_t, std::vector<std::uint32_t>>, Entry> entries_;
};

/// One rank's view of its member list of a group.
template <class Collective>
struct Membership {
  typename LocalGroups<Collective>::Entry* entry = nullptr;  // null: not a member
  std::uint32_t me = 0;                                      // index in the list
  std::uint32_t posted = 0;                                  // collectives posted in this step
};

template <class Collective>
std::vector<Membership<Collective>> memberships(LocalGroups<Collective>& shared, const std::vector<sim::Group>& groups,
                                                std::uint32_t rank) {
  std::vector<Membership<Collective>> list(groups.size());
  for (std::uint32_t g = 0; g < groups.size(); ++g)
    for (const std::vector<std::uint32_t>& members : groups[g].members)
      for (std::uint32_t m = 0; m < members.size(); ++m)
        if (members[m] == rank) list[g] = {&shared.at(g, members), m, 0};
  return list;
}

#ifdef PARAGAUGE_CUDA
/// ConfigError when there's no GPU.
World make_local_cuda_world(const WorldOptions& options);
#endif

}  // namespace backend
