// World `local` on an accelerator: every rank has a compute stream and a copy stream of the first device. A transfer is
// issued on a copy stream by the rank that posts last, and waits there for the events that the parties recorded when they
// posted. Nothing but events orders the streams. Whatever LibTorch has a device guard for can be the accelerator: CUDA's
// is in LibTorch; tests/standin has one of its own.
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
    std::uint32_t posted = 0;  // step
    at::Tensor tensor;         // until the transfer is issued
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
        compute_(guard_.getStreamFromGlobalPool(device)),
        copy_(guard_.getStreamFromGlobalPool(device)),
        clock_(compute_) {}

  [[nodiscard]] at::Device device() const override { return compute_.device(); }
  [[nodiscard]] bool shares_device() const override { return ranks_of_program() > 1; }

  /// From here on the calling thread's kernels go to this rank's compute stream.
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    guard_.exchangeStream(compute_);
    LocalCommunicator::prepare(groups, ranks);
  }

  double begin_step() override {
    posted_.clear();
    compute_.synchronize();
    const double begin_s = LocalCommunicator::begin_step();
    clock_.begin(begin_s);
    return begin_s;
  }
  void mark(double* moment_s) override { clock_.mark(moment_s); }
  void end_step() override {
    compute_.synchronize();
    clock_.settle();
  }

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
  static bool is_sum(sim::CollectiveKind kind) {
    switch (kind) {
      case sim::CollectiveKind::all_reduce:
        return true;
      case sim::CollectiveKind::broadcast:
        return false;
    }
    throw sim::InternalError("world 'local' has no collective of kind {} on an accelerator", static_cast<int>(kind));
  }

  Ticket post(const Part& part, const at::Tensor& tensor) override {
    Transfer& transfer = *part.transfer;
    const bool sums = is_sum(part.kind);
    {
      const std::lock_guard lock(transfer.mutex);
      Transfer::Party& party = transfer.parties[part.me];
      party.tensor = tensor;
      party.ready.record(compute_);
      party.posted = step();
      if (std::ranges::all_of(transfer.parties, [&](const Transfer::Party& other) { return other.posted == step(); }))
        issue(transfer, sums, part.root);
    }
    if (transfer.issued == step())
      for (std::uint32_t other : transfer.ranks) ring(other);
    posted_.push_back(&transfer);
    return static_cast<Ticket>(posted_.size() - 1);
  }

  /// Sums are taken in the members' order: the same bits on all.
  void issue(Transfer& transfer, bool sums, std::uint32_t root) {
    const c10::StreamGuard on_copy_stream(copy_);
    for (Transfer::Party& party : transfer.parties) party.ready.block(copy_);
    const at::Tensor from = transfer.parties[root].tensor;
    if (sums)
      for (std::size_t k = 1; k < transfer.parties.size(); ++k) from.add_(transfer.parties[k].tensor);
    for (Transfer::Party& party : transfer.parties) {
      if (!party.tensor.is_same(from)) party.tensor.copy_(from, /*non_blocking=*/true);
      party.tensor.reset();
    }
    transfer.end.record(copy_);
    transfer.issued = step();
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
