// World `local` on an accelerator: every rank has a compute stream and a copy stream of the first device. A transfer is
// issued on a copy stream by the rank that posts last, and waits there for the events that the parties recorded when
// they posted. Nothing but events orders the streams. Whatever LibTorch has a device guard for can be the accelerator:
// CUDA's is in LibTorch; tests/standin has one of its own.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <memory>

#include "backend/machine/accelerator.hpp"
#include "backend/world/local.hpp"

namespace backend {
namespace {

/// The parties, and what moves when all have posted.
struct Transfer {
  struct Party {
    std::uint32_t posted = 0;               // step
    std::vector<at::Tensor> reads, writes;  // until the transfer is issued
    StreamEvent ready;
  };
  explicit Transfer(std::span<const std::uint32_t> of) : ranks(of.begin(), of.end()), parties(of.size()) {}

  const std::vector<std::uint32_t> ranks;
  std::mutex mutex;
  std::vector<Party> parties;
  StreamEvent end;
  std::atomic<std::uint32_t> issued{0};  // step
};

class DeviceCommunicator final : public LocalCommunicator<Transfer> {
 public:
  DeviceCommunicator(std::shared_ptr<LocalWorld<Transfer>> world, std::uint32_t rank, at::Device device)
      : LocalCommunicator(std::move(world), rank),
        guard_(device.type()),
        compute_(own_stream(device)),
        copy_(own_stream(device)),
        clock_(compute_) {}

  [[nodiscard]] at::Device device() const override { return compute_.device(); }
  [[nodiscard]] bool shares_device() const override { return ranks_of_program() > 1; }

  /// Makes the calling thread's kernels go, from here on, to this rank's compute stream.
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    guard_.exchangeStream(compute_);
    LocalCommunicator::prepare(groups, ranks);
  }

  double begin_step() override {
    posted_.clear();
    compute_.synchronize();
    const double begin_s = LocalCommunicator::begin_step();
    clock_.begin();
    return begin_s;
  }
  void mark(double* moment_s) override { clock_.mark(moment_s); }
  void end_step() override {
    compute_.synchronize();
    clock_.settle();
  }
  void forget_captured() override { clock_.forget(); }

  void wait(Ticket ticket, Completion& done) override {
    Transfer& transfer = *posted_.at(ticket);
    // The partner's host thread may be late; the device's own waiting is the stream's.
    wait_until([&] { return transfer.issued == step(); },
               [&] {
                 const std::lock_guard lock(transfer.mutex);
                 std::size_t late = 0;
                 while (late + 1 < transfer.parties.size() && transfer.parties[late].posted == step()) ++late;
                 return fmt::format("rank {} hasn't posted its part of the transfer", transfer.ranks[late]);
               });
    transfer.end.block(compute_);
    for (const Transfer::Party& party : transfer.parties) clock_.mark_at(party.ready, &done.start_s);
    clock_.mark_at(transfer.end, &done.end_s);
  }

 private:
  Ticket post(const Part& part, std::span<const at::Tensor> reads, std::span<const at::Tensor> writes) override {
    Transfer& transfer = *part.transfer;
    {
      const std::lock_guard lock(transfer.mutex);
      Transfer::Party& party = transfer.parties[part.me];
      party.reads.assign(reads.begin(), reads.end());
      party.writes.assign(writes.begin(), writes.end());
      party.ready.record(compute_);
      party.posted = step();
      if (std::ranges::all_of(transfer.parties, [&](const Transfer::Party& other) { return other.posted == step(); }))
        issue(transfer, part.kind, part.root, part.reduction);
    }
    if (transfer.issued == step())
      for (std::uint32_t other : transfer.ranks) ring(other);
    posted_.push_back(&transfer);
    return static_cast<Ticket>(posted_.size() - 1);
  }

  void issue(Transfer& transfer, sim::CollectiveKind kind, std::uint32_t root, sim::Reduction reduction) {
    const c10::StreamGuard on_copy_stream(copy_);
    std::vector<Transfer::Party>& parties = transfer.parties;
    for (Transfer::Party& party : parties) party.ready.block(copy_);
    if (kind == sim::CollectiveKind::all_reduce) {  // in place: the first member's is everyone's
      reduce(parties, 0, reduction, parties[0].writes[0]);
      kind = sim::CollectiveKind::broadcast;
      root = 0;
    }
    sim::for_each_move(kind, static_cast<std::uint32_t>(parties.size()), root, [&](const sim::Move& move) {
      const at::Tensor& to = parties[move.to].writes[move.block];
      if (move.from == sim::kEveryone)
        reduce(parties, move.from_block, reduction, to);
      else
        to.copy_(parties[move.from].reads[move.from_block].view_as(to), /*non_blocking=*/true);
    });
    for (Transfer::Party& party : parties) {
      party.reads.clear();
      party.writes.clear();
    }
    transfer.end.record(copy_);
    transfer.issued = step();
  }

  /// Reduces in the members' order, but for a member whose own block is `to`: that comes first.
  static void reduce(const std::vector<Transfer::Party>& parties, std::uint32_t block, sim::Reduction reduction,
                     at::Tensor to) {
    const auto is_to = [&](const Transfer::Party& party) {
      return party.reads[block].const_data_ptr() == to.const_data_ptr();
    };
    bool is_first = std::ranges::none_of(parties, is_to);
    for (const Transfer::Party& party : parties) {
      if (is_to(party)) continue;
      reduce_into(to, party.reads[block].view_as(to), reduction, is_first);
      is_first = false;
    }
    if (reduction == sim::Reduction::mean) to.div_(static_cast<double>(parties.size()));
  }

  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream compute_, copy_;
  StreamClock clock_;
  std::vector<Transfer*> posted_;  // by ticket
};

}  // namespace

World make_local_device_world(const SessionOptions& options) {
  return local_world<DeviceCommunicator, Transfer>(options, first_device(options.device));
}

}  // namespace backend
