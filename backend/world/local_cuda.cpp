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

/// A point-to-point transfer or a collective: parties, and what moves when all have posted.
struct Transfer {
  struct Party {
    std::uint32_t posted = 0;  // step
    at::Tensor tensor;         // until the transfer is issued
    Event ready{cudaEventDefault};
  };
  explicit Transfer(std::size_t size) : parties(size) {}

  std::mutex mutex;
  std::vector<Party> parties;  // sender, receiver; or a group's members
  Event end{cudaEventDefault};
  std::atomic<std::uint32_t> issued{0};  // step
};

struct CudaWorld : LocalTeam {
  explicit CudaWorld(const WorldOptions& options) : LocalTeam(options), channels(options.ranks * options.ranks) {}
  std::vector<Slots<Transfer>> channels;  // [source × ranks + destination]
  LocalGroups<Transfer> groups;
};

class CudaCommunicator final : public LocalRank {
 public:
  CudaCommunicator(std::shared_ptr<CudaWorld> world, std::uint32_t rank)
      : LocalRank(*world, rank),
        world_(std::move(world)),
        compute_(at::cuda::getStreamFromPool(false, 0)),
        copy_(at::cuda::getStreamFromPool(false, 0)) {}

  [[nodiscard]] at::Device device() const override { return {at::kCUDA, 0}; }

  /// From here on the calling thread's kernels go to this rank's compute stream.
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    LocalRank::prepare(groups, ranks);
    at::cuda::setCurrentCUDAStream(compute_);
    memberships_ = memberships(world_->groups, groups, rank());
  }

  double begin_step() override {
    posted_.clear();
    moments_.clear();
    events_used_ = 0;
    for (auto& membership : memberships_) membership.posted = 0;
    compute_.synchronize();
    begin_s_ = LocalRank::begin_step();
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

  Ticket post_send(const at::Tensor& tensor, std::uint32_t destination, std::uint32_t tag) override {
    return post(channel(rank(), destination, tag), 0, tensor, pair(rank(), destination), Move::copy, 0);
  }
  Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) override {
    return post(channel(source, rank(), tag), 1, tensor, pair(source, rank()), Move::copy, 0);
  }
  Ticket post_collective(sim::CollectiveKind kind, const at::Tensor& tensor, std::uint32_t group,
                         std::uint32_t root) override {
    auto& membership = memberships_.at(group);
    const std::vector<std::uint32_t>& members = membership.entry->members;
    Transfer& transfer =
        membership.entry->collectives.at(membership.posted++, [&](auto& slots) { slots.emplace_back(members.size()); });
    return post(transfer, membership.me, tensor, members, move_of(kind), root);
  }

  void wait(Ticket ticket, Completion& done) override {
    const Posted& posted = posted_.at(ticket);
    Transfer& transfer = *posted.transfer;
    // The partner's host thread may be late; the GPU's own waiting is the stream's.
    wait_until([&] { return transfer.issued == step(); },
               [&] {
                 const std::lock_guard lock(transfer.mutex);
                 std::size_t late = 0;
                 while (late + 1 < transfer.parties.size() && transfer.parties[late].posted == step()) ++late;
                 return fmt::format("rank {} hasn't posted its part of the transfer", posted.ranks[late]);
               });
    transfer.end.block(compute_);
    for (const Transfer::Party& party : transfer.parties) moments_.push_back({&done.start_s, &party.ready});
    moments_.push_back({&done.end_s, &transfer.end});
  }

 private:
  enum class Move : std::uint8_t { copy, sum };
  static Move move_of(sim::CollectiveKind kind) {
    switch (kind) {
      case sim::CollectiveKind::all_reduce:
        return Move::sum;
      case sim::CollectiveKind::broadcast:
        return Move::copy;
    }
    throw sim::InternalError("world 'local' on CUDA has no collective of kind {}", static_cast<int>(kind));
  }
  struct Posted {
    Transfer* transfer = nullptr;
    std::vector<std::uint32_t> ranks;  // of the parties
  };
  struct Moment {
    double* moment_s = nullptr;  // the latest of its events
    const Event* event = nullptr;
  };

  static std::vector<std::uint32_t> pair(std::uint32_t source, std::uint32_t destination) {
    return {source, destination};
  }
  Transfer& channel(std::uint32_t source, std::uint32_t destination, std::uint32_t tag) {
    return world_->channels.at(source * size() + destination).at(tag, [](auto& slots) { slots.emplace_back(2); });
  }

  Ticket post(Transfer& transfer, std::uint32_t me, const at::Tensor& tensor, std::vector<std::uint32_t> ranks,
              Move move, std::uint32_t root) {
    {
      const std::lock_guard lock(transfer.mutex);
      Transfer::Party& party = transfer.parties[me];
      party.tensor = tensor;
      party.ready.record(compute_);
      party.posted = step();
      if (std::ranges::all_of(transfer.parties, [&](const Transfer::Party& other) { return other.posted == step(); }))
        issue(transfer, move, root);
    }
    if (transfer.issued == step())
      for (std::uint32_t other : ranks) ring(other);
    posted_.push_back({&transfer, std::move(ranks)});
    return static_cast<Ticket>(posted_.size() - 1);
  }

  /// Sums are taken in the members' order: the same bits on all.
  void issue(Transfer& transfer, Move move, std::uint32_t root) {
    const c10::cuda::CUDAStreamGuard on_copy_stream(copy_);
    for (Transfer::Party& party : transfer.parties) party.ready.block(copy_);
    const at::Tensor from = transfer.parties[root].tensor;
    if (move == Move::sum)
      for (std::size_t k = 1; k < transfer.parties.size(); ++k) from.add_(transfer.parties[k].tensor);
    for (Transfer::Party& party : transfer.parties) {
      if (!party.tensor.is_same(from)) party.tensor.copy_(from, /*non_blocking=*/true);
      party.tensor.reset();
    }
    transfer.end.record(copy_);
    transfer.issued = step();
  }

  std::shared_ptr<CudaWorld> world_;
  const Stream compute_, copy_;
  Event begin_{cudaEventDefault};
  double begin_s_ = 0;
  std::deque<Event> events_;
  std::size_t events_used_ = 0;
  std::vector<Moment> moments_;
  std::vector<Membership<Transfer>> memberships_;
  std::vector<Posted> posted_;  // by ticket
};

}  // namespace

World make_local_cuda_world(const WorldOptions& options) {
  if (c10::cuda::device_count() == 0) throw sim::ConfigError("device=cuda: this machine has no usable GPU");
  at::globalContext().lazyInitDevice(at::kCUDA);
  const auto shared = std::make_shared<CudaWorld>(options);
  World world;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank)
    world.ranks.push_back(std::make_unique<CudaCommunicator>(shared, rank));
  return world;
}

}  // namespace backend
