// What the ranks of one process share, whatever moves their data (local.cpp: memory copies; local_device.cpp: an
// accelerator's copy streams).
//
//   class CpuCommunicator : public LocalCommunicator<Transfer> {};  // in its members:
//   party.finished = step();
//   ring(partner);                       // whoever changes what another rank may wait for rings its bell
//   wait_until([&] { return party.finished == step(); }, [&] { return "rank 1 hasn't finished"; });
//
// Shared state carries the number of the step it belongs to, so nothing has to be cleared between steps.
#pragma once

#include <array>
#include <atomic>
#include <concepts>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <utility>

#include "backend/machine/scheduling.hpp"
#include "backend/world/world.hpp"
#include "sim/cluster/allowance.hpp"

namespace backend {

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

/// Transfers that their parties address by number. References stay valid.
template <class Transfer>
class Transfers {
 public:
  /// `ranks`: the parties of a transfer that nobody has asked for yet.
  Transfer& at(std::uint32_t number, std::span<const std::uint32_t> ranks) {
    const std::lock_guard lock(mutex_);
    while (transfers_.size() <= number) transfers_.emplace_back(ranks);
    return transfers_[number];
  }

 private:
  std::mutex mutex_;
  std::deque<Transfer> transfers_;
};

/// The barrier, the bells, the transfers and the fate of all ranks. A Transfer is made with the ranks of its parties: a
/// message's sender and receiver, or the members of a group.
template <class Transfer>
struct LocalWorld {
  explicit LocalWorld(const SessionOptions& options)
      : ranks(options.ranks),
        timeout_s(options.timeout_s),
        bells(options.ranks),
        arrived(options.ranks),
        messages(options.ranks * options.ranks) {}

  const std::uint32_t ranks;
  const double timeout_s;
  std::vector<Doorbell> bells;
  std::vector<std::atomic<std::uint32_t>> arrived;  // step that each rank has come to
  std::atomic<std::uint32_t> arrivals{0};
  std::atomic<std::uint32_t> released{0};  // step that may begin …
  double release_s = 0;                    // … at this moment
  std::atomic<bool> failed{false};
  std::vector<Transfers<Transfer>> messages;  // [source × ranks + destination]
  std::mutex mutex;
  std::map<std::pair<std::uint32_t, std::vector<std::uint32_t>>, Transfers<Transfer>> collectives;  // group, members
};

/// The half of a Communicator that all local worlds share.
template <class Transfer>
class LocalCommunicator : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalWorld<Transfer>> world, std::uint32_t rank)
      : world_(std::move(world)), rank_(rank) {}
  [[nodiscard]] std::uint32_t rank() const final { return rank_; }
  [[nodiscard]] std::uint32_t size() const final { return world_->ranks; }

  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    ranks_ = ranks;
    own_core_ = ranks <= sim::usable_cores();
    step_ = world_->released;  // ranks that were idle have missed steps
    memberships_.assign(groups.size(), {});
    const std::lock_guard lock(world_->mutex);
    for (std::uint32_t g = 0; g < groups.size(); ++g)
      for (const std::vector<std::uint32_t>& members : groups[g].members)
        for (std::uint32_t m = 0; m < members.size(); ++m)
          if (members[m] == rank_) memberships_[g] = {&world_->collectives[{g, members}], members, m};
  }

  double begin_step() override {
    constexpr double kMargin_s = 100e-6;  // until then a sleeping rank has woken up
    ++step_;
    for (Membership& membership : memberships_) membership.posted = 0;
    world_->arrived[rank_] = step_;
    if (++world_->arrivals == ranks_) {
      world_->arrivals = 0;
      world_->release_s = now_s() + kMargin_s;
      world_->released = step_;
      for (Doorbell& bell : world_->bells) bell.ring();
    }
    wait_until([&] { return world_->released == step_; },
               [&] {
                 std::uint32_t late = 0;
                 while (late + 1 < ranks_ && world_->arrived[late] == step_) ++late;
                 return fmt::format("rank {} hasn't come to the start of the step", late);
               });
    const double release_s = world_->release_s;
    sleep_until(release_s + turn_after_s(rank_), own_core_);
    return release_s;
  }

  void abandon() final {
    world_->failed = true;
    for (Doorbell& bell : world_->bells) bell.ring();
  }

  Ticket post_send(const at::Tensor& tensor, std::uint32_t destination, std::uint32_t tag) final {
    return post({.transfer = &message(rank_, destination, tag), .me = 0, .tag = tag}, {&tensor, 1}, {&tensor, 1});
  }
  Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) final {
    return post({.transfer = &message(source, rank_, tag), .me = 1, .tag = tag}, {&tensor, 1}, {&tensor, 1});
  }
  using Communicator::post_collective;
  Ticket post_collective(const Collective& collective, std::span<const at::Tensor> reads,
                         std::span<const at::Tensor> writes) final {
    Membership& membership = memberships_.at(collective.group);
    Transfer& transfer = membership.collectives->at(membership.posted++, membership.members);
    const Part part{.transfer = &transfer,
                    .me = membership.me,
                    .kind = collective.kind,
                    .root = collective.root,
                    .reduction = collective.reduction};
    const sim::CollectiveOperands operands = sim::operands_of(part.kind, part.me == part.root);
    const auto members = static_cast<std::uint32_t>(membership.members.size());
    return post(part, blocks_of(operands.reads, reads, members), blocks_of(operands.writes, writes, members));
  }

 protected:
  /// This rank's part of a transfer. A message is a broadcast by its sender.
  struct Part {
    Transfer* transfer = nullptr;
    std::uint32_t me = 0;  // index among the parties
    sim::CollectiveKind kind = sim::CollectiveKind::broadcast;
    std::uint32_t root = 0;              // index among the parties
    std::optional<std::uint32_t> tag{};  // of a message
    sim::Reduction reduction = sim::Reduction::sum;
  };
  /// The operands as blocks.
  virtual Ticket post(const Part& part, std::span<const at::Tensor> reads, std::span<const at::Tensor> writes) = 0;

  [[nodiscard]] std::uint32_t step() const { return step_; }
  [[nodiscard]] std::uint32_t ranks_of_program() const { return ranks_; }
  void ring(std::uint32_t rank) { world_->bells[rank].ring(); }
  /// Calls `ready` whenever something may have changed until it holds. Timeout: RunError with `missing()`.
  template <std::predicate Ready, class Missing>
  void wait_until(Ready ready, Missing missing) {
    // A sleeping core takes some 10 µs to wake up; spinning longer than that gains little and starves whoever shares
    // the core.
    constexpr double kSpin_s = 100e-6;
    Doorbell& bell = world_->bells[rank_];
    double deadline = 0;
    for (;;) {
      const std::uint32_t heard = bell.rings();
      if (ready()) return;
      bell.sleep(heard, own_core_ ? kSpin_s : 0);
      if (world_->failed) throw sim::RunError("another rank has failed");
      if (deadline == 0) deadline = now_s() + world_->timeout_s;
      if (now_s() > deadline) throw sim::RunError("{} within {:g} s", missing(), world_->timeout_s);
    }
  }

 private:
  /// This rank's place in a member list of a group.
  struct Membership {
    Transfers<Transfer>* collectives = nullptr;  // null: not a member
    std::vector<std::uint32_t> members;
    std::uint32_t me = 0;      // index in the list
    std::uint32_t posted = 0;  // collectives posted in this step
  };

  Transfer& message(std::uint32_t source, std::uint32_t destination, std::uint32_t tag) {
    return world_->messages.at(source * size() + destination).at(tag, std::array{source, destination});
  }

  std::shared_ptr<LocalWorld<Transfer>> world_;
  const std::uint32_t rank_;
  std::uint32_t step_ = 0, ranks_ = 1;  // the ranks that run the program
  bool own_core_ = false;               // each of them has a core for itself: it may spin
  std::vector<Membership> memberships_;
};

/// All ranks, in this process; `more` goes to their constructors.
template <class Rank, class Transfer, class... More>
World local_world(const SessionOptions& options, const More&... more) {
  const auto shared = std::make_shared<LocalWorld<Transfer>>(options);
  World world;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank)
    world.ranks.push_back(std::make_unique<Rank>(shared, rank, more...));
  return world;
}

/// ConfigError when there's no such device.
World make_local_device_world(const SessionOptions& options);

}  // namespace backend
