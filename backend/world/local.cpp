#include "backend/world/local.hpp"

#include <ATen/Dispatch.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

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

namespace {

struct Block {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// The parties read each other's memory: in a message the receiver copies.
struct Transfer {
  struct Party {
    std::atomic<std::uint32_t> joined{0}, reduced{0}, finished{0};  // steps
    std::vector<Block> reads, writes;
    double joined_s = 0, finished_s = 0;
  };
  explicit Transfer(std::span<const std::uint32_t> of) : ranks(of.begin(), of.end()), parties(of.size()) {}
  const std::vector<std::uint32_t> ranks;
  std::vector<Party> parties;
};
using Parties = std::vector<Transfer::Party>;

/// destination[i] = sum, mean or maximum of block `block` of what party k reads, [i], for i in [begin, end), in the
/// order of k: the same bits whoever computes it.
template <class T>
void reduce(const Parties& parties, std::uint32_t block, sim::Reduction reduction, T* destination, std::size_t begin,
            std::size_t end) {
  constexpr std::size_t kElements = 2048;
  T total[kElements];
  const auto source = [&](std::size_t k) { return reinterpret_cast<const T*>(parties[k].reads[block].data) + begin; };
  for (; begin < end; begin += kElements) {
    const std::size_t count = std::min(kElements, end - begin);
    std::memcpy(total, source(0), count * sizeof(T));
    for (std::size_t k = 1; k < parties.size(); ++k) {
      const T* summand = source(k);
      if (reduction == sim::Reduction::max)
        for (std::size_t i = 0; i < count; ++i) total[i] = std::max(total[i], summand[i]);
      else
        for (std::size_t i = 0; i < count; ++i) total[i] += summand[i];
    }
    if (reduction == sim::Reduction::mean)
      for (std::size_t i = 0; i < count; ++i) total[i] = total[i] / static_cast<T>(parties.size());
    std::memcpy(destination + begin, total, count * sizeof(T));
  }
}

class CpuCommunicator final : public LocalCommunicator<Transfer> {
 public:
  using LocalCommunicator::LocalCommunicator;

  double begin_step() override {
    posted_.clear();
    open_.clear();
    return LocalCommunicator::begin_step();
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
  struct Posted : Part {
    at::ScalarType dtype = at::kFloat;
    std::uint32_t next = 0;  // all_reduce: parties me+1 … next−1 (modulo their number) have given their chunk
    bool ready = false, done = false;
    Completion when{};
  };

  Ticket post(const Part& part, std::span<const at::Tensor> reads, std::span<const at::Tensor> writes) override {
    Transfer::Party& me = part.transfer->parties[part.me];
    for (const auto& [blocks, tensors] : {std::pair(&me.reads, reads), {&me.writes, writes}}) {
      blocks->clear();
      for (const at::Tensor& tensor : tensors)
        blocks->push_back({static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    }
    me.joined_s = now_s();
    me.joined = step();
    const auto ticket = static_cast<Ticket>(posted_.size());
    posted_.push_back({part, (reads.empty() ? writes : reads)[0].scalar_type(), part.me + 1});
    const bool sends = part.tag && part.me == 0, receives = part.tag && part.me == 1;
    if (!receives) ring_others(part);     // a sender waits for the copy, not for who will make it
    if (!sends) open_.push_back(ticket);  // there is nothing to do for a sender
    return ticket;
  }

  /// Does what this rank can do for a transfer now. True if that was anything.
  bool advance(Posted& posted) {
    if (posted.done || !is_ready(posted)) return false;
    switch (posted.kind) {
      case sim::CollectiveKind::all_reduce:
        return all_reduce(posted);
      case sim::CollectiveKind::broadcast:
        return broadcast(posted);
      case sim::CollectiveKind::reduce:
      case sim::CollectiveKind::all_gather:
      case sim::CollectiveKind::reduce_scatter:
      case sim::CollectiveKind::all_to_all:
      case sim::CollectiveKind::scatter:
      case sim::CollectiveKind::gather:
        return get(posted);
    }
    throw sim::InternalError("collective kind {}", static_cast<int>(posted.kind));
  }

  bool is_ready(Posted& posted) {
    if (posted.ready) return true;
    const auto& [ranks, parties] = *posted.transfer;
    for (std::size_t p = 0; p < parties.size(); ++p) {
      if (parties[p].joined != step()) return false;
      posted.when.start_s = std::max(posted.when.start_s, parties[p].joined_s);
    }
    const auto check = [&](std::uint32_t from, const Block& given, const Block& wanted) {
      sim::check_internal(given.bytes == wanted.bytes, "rank {} gives {} bytes, rank {} expects {}", ranks[from],
                          given.bytes, rank(), wanted.bytes);
    };
    each_own_move(posted, [&](const sim::Move& move) {
      for (std::uint32_t from = 0; from < parties.size(); ++from)
        if (move.is_from(from))
          check(from, parties[from].reads.at(move.from_block), parties[posted.me].writes.at(move.block));
    });
    return posted.ready = true;
  }

  /// What this rank gets.
  template <class Visit>
  static void each_own_move(const Posted& posted, const Visit& visit) {
    sim::for_each_move(posted.kind, static_cast<std::uint32_t>(posted.transfer->parties.size()), posted.root,
                       [&](const sim::Move& move) {
                         if (move.to == posted.me) visit(move);
                       });
  }

  bool broadcast(Posted& posted) {
    Parties& parties = posted.transfer->parties;
    Transfer::Party& me = parties[posted.me];
    if (posted.me != posted.root) {
      std::memcpy(me.writes[0].data, parties[posted.root].reads[0].data, me.writes[0].bytes);
      leave(posted);
      return end(posted, me.finished_s);
    }
    me.finished = step();
    if (!all_finished(parties)) return false;  // the root's memory is read until the last one has it
    return end(posted, posted.tag ? parties[1].finished_s : now_s());
  }

  /// Each party reduces its chunk of everyone, then copies the other chunks from those who reduced them: 2(n−1)/n of
  /// the bytes are read from others, as in a ring, in two steps.
  bool all_reduce(Posted& posted) {
    Parties& parties = posted.transfer->parties;
    Transfer::Party& me = parties[posted.me];
    const auto n = static_cast<std::uint32_t>(parties.size());
    const std::size_t width = c10::elementSize(posted.dtype), elements = me.writes[0].bytes / width;
    const auto begin = [&](std::uint32_t chunk) { return elements * chunk / n; };
    bool moved = false;
    if (me.reduced != step()) {
      AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, posted.dtype, "all_reduce", [&] {
        reduce(parties, 0, posted.reduction, reinterpret_cast<scalar_t*>(me.writes[0].data), begin(posted.me),
               begin(posted.me + 1));
      });
      me.reduced = step();
      ring_others(posted);
      moved = true;
    }
    for (; posted.next < posted.me + n; ++posted.next) {
      const std::uint32_t k = posted.next % n;
      if (parties[k].reduced != step()) return moved;
      const std::size_t offset = begin(k) * width;
      std::memcpy(me.writes[0].data + offset, parties[k].writes[0].data + offset, begin(k + 1) * width - offset);
      moved = true;
    }
    if (me.finished != step()) {
      leave(posted);
      moved = true;
    }
    if (!all_finished(parties)) return moved;  // until then, someone may still read this rank's chunk
    return end(posted, now_s());
  }

  /// Every other collective: each party copies, or reduces, what it gets.
  bool get(Posted& posted) {
    Parties& parties = posted.transfer->parties;
    Transfer::Party& me = parties[posted.me];
    const auto moves = [&](std::size_t p) { return sim::is_mover(posted.kind, p == posted.root); };
    bool moved = false;
    if (me.finished != step()) {
      each_own_move(posted, [&](const sim::Move& move) { play(posted, move); });
      leave(posted);
      moved = true;
      // Nobody reads its memory.
      if (sim::has_root(posted.kind) && moves(posted.me)) return end(posted, me.finished_s);
    }
    for (std::size_t p = 0; p < parties.size(); ++p)
      if (moves(p) && parties[p].finished != step()) return moved;
    return end(posted, now_s());
  }

  void play(const Posted& posted, const sim::Move& move) const {
    const Parties& parties = posted.transfer->parties;
    const Block& to = parties[posted.me].writes[move.block];
    if (move.from != sim::kEveryone) {
      const Block& from = parties[move.from].reads[move.from_block];
      if (to.data != from.data) std::memcpy(to.data, from.data, to.bytes);  // its own may be there already
      return;
    }
    AT_DISPATCH_ALL_TYPES_AND2(at::kHalf, at::kBFloat16, posted.dtype, "reduce", [&] {
      reduce(parties, move.from_block, posted.reduction, reinterpret_cast<scalar_t*>(to.data), 0,
             to.bytes / sizeof(scalar_t));
    });
  }

  [[nodiscard]] bool all_finished(const Parties& parties) const {
    return std::ranges::all_of(parties, [&](const Transfer::Party& party) { return party.finished == step(); });
  }

  void leave(const Posted& posted) {
    Transfer::Party& me = posted.transfer->parties[posted.me];
    me.finished_s = now_s();
    me.finished = step();
    ring_others(posted);
  }

  static bool end(Posted& posted, double end_s) {
    posted.when.end_s = end_s;
    return posted.done = true;
  }

  void ring_others(const Part& part) {
    for (const std::uint32_t other : part.transfer->ranks)
      if (other != rank()) ring(other);
  }

  std::string missing(const Posted& posted) const {
    const auto& [ranks, parties] = *posted.transfer;
    if (posted.tag)
      return posted.me == 0 ? fmt::format("rank {} hasn't received tag {} of rank {}", ranks[1], *posted.tag, rank())
                            : fmt::format("rank {} hasn't sent tag {} to rank {}", ranks[0], *posted.tag, rank());
    const std::string_view name = to_string(posted.kind);
    for (std::size_t p = 0; p < parties.size(); ++p)
      if (parties[p].joined != step()) return fmt::format("rank {} hasn't joined the {}", ranks[p], name);
    for (std::size_t p = 0; p < parties.size(); ++p)
      if (parties[p].finished != step() && sim::is_mover(posted.kind, p == posted.root))
        return fmt::format("rank {} hasn't finished the {}", ranks[p], name);
    throw sim::InternalError("a {} that everyone has finished is waited for", name);
  }

  std::vector<Posted> posted_;  // by ticket
  std::vector<Ticket> open_;    // what isn't done, but for sends
};

}  // namespace

World make_local_world(const SessionOptions& options) {
  if (options.device != "cpu") return make_local_device_world(options);
  return local_world<CpuCommunicator, Transfer>(options);
}

}  // namespace backend
