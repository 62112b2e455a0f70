// World `local` on a GPU: every rank has a compute stream and a copy stream of the first GPU. A transfer is issued on a
// copy stream by the rank that posts last, and waits there for the events that the parties recorded when they posted.
// Nothing but events orders the streams.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <memory>

#include "backend/world/local.hpp"

namespace backend {
namespace {

using Event = at::cuda::CUDAEvent;
using Stream = at::cuda::CUDAStream;

/// The parties, and what moves when all have posted.
struct Transfer {
  struct Party {
    std::uint32_t posted = 0;  // step
    at::Tensor tensor;         // until the transfer is issued
    Event ready{cudaEventDefault};
  };
  explicit Transfer(std::span<const std::uint32_t> of) : ranks(of.begin(), of.end()), parties(of.size()) {}

  const std::vector<std::uint32_t> ranks;
  std::mutex mutex;
  std::vector<Party> parties;
  Event end{cudaEventDefault};
  std::atomic<std::uint32_t> issued{0};  // step
};

class CudaCommunicator final : public LocalCommunicator<Transfer> {
 public:
  using LocalCommunicator::LocalCommunicator;

  [[nodiscard]] at::Device device() const override { return {at::kCUDA, 0}; }

  /// From here on the calling thread's kernels go to this rank's compute stream.
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    at::cuda::setCurrentCUDAStream(compute_);
    LocalCommunicator::prepare(groups, ranks);
  }

  double begin_step() override {
    posted_.clear();
    moments_.clear();
    events_used_ = 0;
    compute_.synchronize();
    begin_s_ = LocalCommunicator::begin_step();
    begin_.record(compute_);
    return begin_s_;
  }

  void mark(double* moment_s) override {
    if (events_used_ == events_.size()) events_.emplace_back(cudaEventDefault);
    Event& event = events_[events_used_++];
    event.record(compute_);
    moments_.push_back({moment_s, &event});
  }

  void end_step() override {
    compute_.synchronize();
    for (const auto& [moment_s, event] : moments_) *moment_s = 0;
    for (const auto& [moment_s, event] : moments_)
      *moment_s = std::max(*moment_s, begin_s_ + 1e-3 * begin_.elapsed_time(*event));
  }

  void wait(Ticket ticket, Completion& done) override {
    Transfer& transfer = *posted_.at(ticket);
    // The partner's host thread may be late; the GPU's own waiting is the stream's.
    wait_until([&] { return transfer.issued == step(); },
               [&] {
                 const std::lock_guard lock(transfer.mutex);
                 std::size_t late = 0;
                 while (late + 1 < transfer.parties.size() && transfer.parties[late].posted == step()) ++late;
                 return fmt::format("rank {} hasn't posted its part of the transfer", transfer.ranks[late]);
               });
    transfer.end.block(compute_);
    for (const Transfer::Party& party : transfer.parties) moments_.push_back({&done.start_s, &party.ready});
    moments_.push_back({&done.end_s, &transfer.end});
  }

 private:
  struct Moment {
    double* moment_s = nullptr;  // the latest of its events
    const Event* event = nullptr;
  };

  static bool is_sum(sim::CollectiveKind kind) {
    switch (kind) {
      case sim::CollectiveKind::all_reduce:
        return true;
      case sim::CollectiveKind::broadcast:
        return false;
    }
    throw sim::InternalError("world 'local' on CUDA has no collective of kind {}", static_cast<int>(kind));
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
    const c10::cuda::CUDAStreamGuard on_copy_stream(copy_);
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

  const Stream compute_ = at::cuda::getStreamFromPool(false, 0), copy_ = at::cuda::getStreamFromPool(false, 0);
  Event begin_{cudaEventDefault};
  double begin_s_ = 0;
  std::deque<Event> events_;
  std::size_t events_used_ = 0;
  std::vector<Moment> moments_;
  std::vector<Transfer*> posted_;  // by ticket
};

}  // namespace

World make_local_cuda_world(const SessionOptions& options) {
  if (c10::cuda::device_count() == 0) throw sim::ConfigError("device=cuda: this machine has no usable GPU");
  at::globalContext().lazyInitDevice(at::kCUDA);
  return local_world<CudaCommunicator, Transfer>(options);
}

}  // namespace backend
