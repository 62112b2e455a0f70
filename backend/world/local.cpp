#include "backend/world/local.hpp"

#include <ATen/Dispatch.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "backend/machine/scheduling.hpp"

namespace backend {

void Doorbell::ring() {
  rings_.fetch_add(1, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst) != 0)
    syscall(SYS_futex, &rings_, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
}

void Doorbell::sleep(std::uint32_t heard, double spin_s) {
  if (spin_s > 0)
    for (const double end = now_s() + spin_s; now_s() < end;) {
      if (rings() != heard) return;
      __builtin_ia32_pause();
    }
  constexpr timespec kSlice{.tv_sec = 0, .tv_nsec = 50'000'000};
  sleeping_.store(1, std::memory_order_seq_cst);
  if (rings() == heard) syscall(SYS_futex, &rings_, FUTEX_WAIT_PRIVATE, heard, &kSlice, nullptr, 0);
  sleeping_.store(0, std::memory_order_relaxed);
}

LocalTeam::LocalTeam(const WorldOptions& options)
    : ranks(options.ranks), timeout_s(options.timeout_s), bells(options.ranks), arrived(options.ranks) {}

void LocalRank::prepare(const std::vector<sim::Group>& /*groups*/, std::uint32_t ranks) {
  ranks_ = ranks;
  own_core_ = ranks <= usable_cores();
  step_ = team_.released;  // ranks that were idle have missed steps
}

double LocalRank::begin_step() {
  constexpr double kMargin_s = 100e-6;  // until then a sleeping rank has woken up
  ++step_;
  team_.arrived[rank_] = step_;
  if (++team_.arrivals == ranks_) {
    team_.arrivals = 0;
    team_.release_s = now_s() + kMargin_s;
    team_.released = step_;
    for (Doorbell& bell : team_.bells) bell.ring();
  }
  wait_until([&] { return team_.released == step_; },
             [&] {
               std::uint32_t late = 0;
               while (late + 1 < ranks_ && team_.arrived[late] == step_) ++late;
               return fmt::format("rank {} hasn't come to the start of the step", late);
             });
  const double release_s = team_.release_s;
  sleep_until(release_s, own_core_);
  return release_s;
}

void LocalRank::abandon() {
  team_.failed = true;
  for (Doorbell& bell : team_.bells) bell.ring();
}

namespace {

/// A message from one rank to another. The receiver copies.
struct Transfer {
  std::atomic<std::uint32_t> sent{0}, done{0};  // steps
  const void* data = nullptr;
  std::size_t bytes = 0;
  double sent_s = 0;
  Completion when;
};

/// A collective of a group. Every member reads the others' memory.
struct Collective {
  struct Member {
    std::atomic<std::uint32_t> joined{0}, reduced{0}, finished{0};  // steps
    void* data = nullptr;
    std::size_t bytes = 0;
    double joined_s = 0;
  };
  explicit Collective(std::size_t size) : members(size) {}
  std::vector<Member> members;
};

struct CpuWorld : LocalTeam {
  explicit CpuWorld(const WorldOptions& options) : LocalTeam(options), channels(options.ranks * options.ranks) {}
  std::vector<Slots<Transfer>> channels;  // [source × ranks + destination]
  LocalGroups<Collective> groups;
};

/// destination[i] = sum of sources[k][i] for i in [begin, end), in the order of k: the same bits whoever computes it.
template <class T>
void sum(const std::vector<Collective::Member>& sources, T* destination, std::size_t begin, std::size_t end) {
  constexpr std::size_t kBlock = 2048;
  T total[kBlock];
  for (; begin < end; begin += kBlock) {
    const std::size_t count = std::min(kBlock, end - begin);
    std::memcpy(total, static_cast<const T*>(sources[0].data) + begin, count * sizeof(T));
    for (std::size_t k = 1; k < sources.size(); ++k) {
      const T* source = static_cast<const T*>(sources[k].data) + begin;
      for (std::size_t i = 0; i < count; ++i) total[i] += source[i];
    }
    std::memcpy(destination + begin, total, count * sizeof(T));
  }
}

class CpuCommunicator final : public LocalRank {
 public:
  CpuCommunicator(std::shared_ptr<CpuWorld> world, std::uint32_t rank)
      : LocalRank(*world, rank), world_(std::move(world)) {}

  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    LocalRank::prepare(groups, ranks);
    memberships_ = memberships(world_->groups, groups, rank());
  }

  double begin_step() override {
    posted_.clear();
    open_.clear();
    for (auto& membership : memberships_) membership.posted = 0;
    return LocalRank::begin_step();
  }

  Ticket post_send(const at::Tensor& tensor, std::uint32_t destination, std::uint32_t tag) override {
    Transfer& transfer = channel(rank(), destination, tag);
    transfer.data = tensor.const_data_ptr();
    transfer.bytes = tensor.nbytes();
    transfer.sent_s = now_s();
    transfer.sent = step();
    ring(destination);
    return add({.kind = Kind::send, .partner = destination, .tag = tag, .transfer = &transfer});
  }

  Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) override {
    open_.push_back(static_cast<Ticket>(posted_.size()));
    return add({.kind = Kind::recv,
                .partner = source,
                .tag = tag,
                .transfer = &channel(source, rank(), tag),
                .data = tensor.mutable_data_ptr(),
                .bytes = tensor.nbytes(),
                .posted_s = now_s()});
  }

  Ticket post_collective(sim::CollectiveKind kind, const at::Tensor& tensor, std::uint32_t group,
                         std::uint32_t root) override {
    auto& membership = memberships_.at(group);
    const std::size_t size = membership.entry->members.size();
    Collective& collective =
        membership.entry->collectives.at(membership.posted++, [&](auto& slots) { slots.emplace_back(size); });
    Collective::Member& me = collective.members[membership.me];
    me.data = tensor.mutable_data_ptr();
    me.bytes = tensor.nbytes();
    me.joined_s = now_s();
    me.joined = step();
    for (std::uint32_t member : membership.entry->members) ring(member);
    open_.push_back(static_cast<Ticket>(posted_.size()));
    return add({.kind = Kind::collective,
                .collective_kind = kind,
                .collective = &collective,
                .members = &membership.entry->members,
                .me = membership.me,
                .root = root,
                .data = me.data,
                .bytes = me.bytes,
                .dtype = tensor.scalar_type(),
                .next = membership.me + 1});
  }

  void wait(Ticket ticket, Completion& done) override {
    Posted& awaited = posted_.at(ticket);
    wait_until(
        [&] {
          // Others' transfers that wait for this rank go on as well: two ranks that wait for their sends first must not
          // wait for ever.
          do {
            advance(awaited);
            if (awaited.done) return true;
          } while (std::ranges::any_of(open_, [&](Ticket open) { return advance(posted_[open]); }));
          return false;
        },
        [&] { return missing(awaited); });
    std::erase_if(open_, [&](Ticket open) { return posted_[open].done; });
    done = awaited.when;
  }

 private:
  enum class Kind : std::uint8_t { send, recv, collective };
  struct Posted {
    Kind kind = Kind::send;
    sim::CollectiveKind collective_kind = sim::CollectiveKind::all_reduce;
    std::uint32_t partner = 0, tag = 0;
    Transfer* transfer = nullptr;
    Collective* collective = nullptr;
    const std::vector<std::uint32_t>* members = nullptr;
    std::uint32_t me = 0, root = 0;
    void* data = nullptr;
    std::size_t bytes = 0;
    at::ScalarType dtype = at::kFloat;
    double posted_s = 0;
    std::uint32_t next = 0;  // all_reduce: members me+1 … next−1 (modulo their number) have given their chunk
    bool ready = false, finished = false, done = false;
    Completion when{};
  };

  Ticket add(const Posted& posted) {
    posted_.push_back(posted);
    return static_cast<Ticket>(posted_.size() - 1);
  }

  Transfer& channel(std::uint32_t source, std::uint32_t destination, std::uint32_t tag) {
    return world_->channels.at(source * size() + destination).at(tag, [](auto& slots) { slots.emplace_back(); });
  }

  /// Does what this rank can do for a transfer now. True if that was anything.
  bool advance(Posted& posted) {
    if (posted.done) return false;
    switch (posted.kind) {
      case Kind::send:
        return finish_if(posted, posted.transfer->done == step(), posted.transfer->when);
      case Kind::recv:
        return receive(posted);
      case Kind::collective:
        return is_ready(posted) && join(posted);
    }
    return false;
  }

  static bool finish_if(Posted& posted, bool done, const Completion& when) {
    posted.done = done;
    if (done) posted.when = when;
    return done;
  }

  bool receive(Posted& posted) {
    Transfer& transfer = *posted.transfer;
    if (transfer.sent != step()) return false;
    sim::check_internal(transfer.bytes == posted.bytes, "rank {} sends {} bytes, rank {} receives {}", posted.partner,
                        transfer.bytes, rank(), posted.bytes);
    std::memcpy(posted.data, transfer.data, posted.bytes);
    transfer.when = {std::max(transfer.sent_s, posted.posted_s), now_s()};
    finish_if(posted, true, transfer.when);
    transfer.done = step();
    ring(posted.partner);
    return true;
  }

  bool is_ready(Posted& posted) {
    if (posted.ready) return true;
    for (const Collective::Member& member : posted.collective->members) {
      if (member.joined != step()) return false;
      sim::check_internal(member.bytes == posted.bytes, "a collective of {} and {} bytes", member.bytes, posted.bytes);
      posted.when.start_s = std::max(posted.when.start_s, member.joined_s);
    }
    return posted.ready = true;
  }

  bool join(Posted& posted) {
    switch (posted.collective_kind) {
      case sim::CollectiveKind::all_reduce:
        return all_reduce(posted);
      case sim::CollectiveKind::broadcast:
        return broadcast(posted);
    }
    throw sim::InternalError("world 'local' has no collective of kind {}", static_cast<int>(posted.collective_kind));
  }

  bool broadcast(Posted& posted) {
    std::vector<Collective::Member>& members = posted.collective->members;
    const bool is_root = posted.me == posted.root;
    const bool moved = !posted.finished;
    if (moved) {
      if (!is_root) std::memcpy(posted.data, members[posted.root].data, posted.bytes);
      posted.finished = true;
      leave(posted);
    }
    const bool done = !is_root || all_finished(members);  // the root's memory is read until the last one has it
    return finish_if(posted, done, {posted.when.start_s, now_s()}) || moved;
  }

  /// Each member sums its chunk of everyone, then copies the other chunks from those who summed them: 2(n−1)/n of the
  /// bytes are read from others, as in a ring, in two steps.
  bool all_reduce(Posted& posted) {
    std::vector<Collective::Member>& members = posted.collective->members;
    const auto n = static_cast<std::uint32_t>(members.size());
    const std::size_t width = c10::elementSize(posted.dtype), elements = posted.bytes / width;
    const auto begin = [&](std::uint32_t chunk) { return elements * chunk / n; };
    bool moved = false;
    if (members[posted.me].reduced != step()) {
      AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, posted.dtype, "all_reduce", [&] {
        sum(members, static_cast<scalar_t*>(posted.data), begin(posted.me), begin(posted.me + 1));
      });
      members[posted.me].reduced = step();
      ring_all(posted);
      moved = true;
    }
    for (; posted.next < posted.me + n; ++posted.next) {
      const std::uint32_t k = posted.next % n;
      if (members[k].reduced != step()) return moved;
      const std::size_t offset = begin(k) * width;
      std::memcpy(static_cast<std::byte*>(posted.data) + offset,
                  static_cast<const std::byte*>(members[k].data) + offset, begin(k + 1) * width - offset);
      moved = true;
    }
    if (!posted.finished) {
      posted.finished = moved = true;
      leave(posted);
    }
    // Until all have finished, someone may still read this rank's chunk.
    return finish_if(posted, all_finished(members), {posted.when.start_s, now_s()}) || moved;
  }

  [[nodiscard]] bool all_finished(const std::vector<Collective::Member>& members) const {
    return std::ranges::all_of(members, [&](const Collective::Member& member) { return member.finished == step(); });
  }

  void leave(Posted& posted) {
    posted.collective->members[posted.me].finished = step();
    ring_all(posted);
  }

  void ring_all(const Posted& posted) {
    for (std::uint32_t member : *posted.members) ring(member);
  }

  std::string missing(const Posted& posted) const {
    if (posted.kind == Kind::send)
      return fmt::format("rank {} hasn't received tag {} of rank {}", posted.partner, posted.tag, rank());
    if (posted.kind == Kind::recv)
      return fmt::format("rank {} hasn't sent tag {} to rank {}", posted.partner, posted.tag, rank());
    const std::string_view name = to_string(posted.collective_kind);
    const std::vector<Collective::Member>& members = posted.collective->members;
    for (std::uint32_t m = 0; m < members.size(); ++m)
      if (members[m].joined != step()) return fmt::format("rank {} hasn't joined the {}", (*posted.members)[m], name);
    for (std::uint32_t m = 0; m < members.size(); ++m)
      if (members[m].finished != step())
        return fmt::format("rank {} hasn't finished the {}", (*posted.members)[m], name);
    throw sim::InternalError("a {} that everyone has finished is waited for", name);
  }

  std::shared_ptr<CpuWorld> world_;
  std::vector<Membership<Collective>> memberships_;
  std::vector<Posted> posted_;  // by ticket
  std::vector<Ticket> open_;    // receives and collectives that aren't done
};

}  // namespace

World make_local_world(const WorldOptions& options) {
  if (options.device.is_cuda()) {
#ifdef PARAGAUGE_CUDA
    return make_local_cuda_world(options);
#else
    throw sim::ConfigError("device=cuda: this build has no CUDA (PARAGAUGE_CUDA=OFF)");
#endif
  }
  const auto shared = std::make_shared<CpuWorld>(options);
  World world;
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank)
    world.ranks.push_back(std::make_unique<CpuCommunicator>(shared, rank));
  return world;
}

}  // namespace backend
