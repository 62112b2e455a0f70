// Waits where nobody has said them: for what a transfer writes, before the first instruction that touches it; for what it
// reads, before the first that writes it; else at the end. So a transfer overlaps what stands behind its post.
//
//   before                                              after
//   5 collective t0 … node=fc1 : grad.fc1 -> grad.fc1   5 collective t0 … node=fc1 : grad.fc1 -> grad.fc1
//   6 compute w4 node=fc2 : … -> grad.fc2.weight        6 compute w4 node=fc2 : … -> grad.fc2.weight
//                                                       7 wait t0 node=fc1
//   7 compute w3 node=relu1 : grad.fc1 …                8 compute w3 node=relu1 : grad.fc1 …
#include <algorithm>
#include <utility>

#include "sim/lower/pass/pass.hpp"

namespace sim {
namespace {

/// Where a tensor lies; of a view by coordinate the whole storage.
struct Bytes {
  std::uint32_t storage;
  std::int64_t begin, end;

  [[nodiscard]] bool meets(const Bytes& other) const {
    return storage == other.storage && begin < other.end && other.begin < end;
  }
};

class Waits {
 public:
  Waits(Draft& draft, const std::vector<std::uint32_t>& elsewhere)
      : draft_(draft), is_waited_for_(draft.tickets, false), transfers_on_(draft.role.storages.size(), 0) {
    for (const std::uint32_t ticket : elsewhere) is_waited_for_[ticket] = true;
    for (const Instruction& instruction : draft.list)
      if (instruction.kind == InstructionKind::wait) is_waited_for_[instruction.ticket] = true;
  }

  void add() {
    std::vector<Instruction> list = std::exchange(draft_.list, {});
    draft_.list.reserve(list.size() + draft_.tickets);
    std::vector<std::uint32_t> places;  // by place in the list before
    for (Instruction& instruction : list) {
      if (!open_.empty() && is_near_open(instruction))
        wait_for([&](const Open& transfer) { return meets(transfer, instruction); });
      places.push_back(static_cast<std::uint32_t>(draft_.list.size()));
      draft_.list.push_back(std::move(instruction));
      if (const Instruction& moved = draft_.list.back(); is_posted(moved.kind) && !is_waited_for_[moved.ticket])
        open(moved);
    }
    wait_for([](const Open&) { return true; });
    for (auto& [tensor, until] : draft_.kept) until = places[until];
  }

 private:
  struct Open {
    std::uint32_t ticket, node;
    std::int32_t microbatch;
    std::vector<Bytes> reads, writes;
  };

  [[nodiscard]] Bytes bytes_of(std::uint32_t tensor) const {
    const Tensor& t = draft_.role.tensors[tensor];
    if (t.along != kNone) return {t.storage, 0, draft_.role.storages[t.storage].bytes};
    return {t.storage, t.offset_bytes, t.offset_bytes + t.spec.bytes()};
  }
  void open(const Instruction& post) {
    Open& transfer = open_.emplace_back(Open{post.ticket, post.node, post.microbatch, {}, {}});
    for (const std::uint32_t t : post.reads) transfer.reads.push_back(bytes_of(t));
    for (const std::uint32_t t : post.writes) transfer.writes.push_back(bytes_of(t));
    count(transfer, 1);
  }
  void count(const Open& transfer, int change) {
    for (const std::vector<Bytes>* all : {&transfer.reads, &transfer.writes})
      for (const Bytes& bytes : *all) transfers_on_[bytes.storage] += change;
  }
  /// Whether it touches a storage of which an open transfer uses some: most don't.
  [[nodiscard]] bool is_near_open(const Instruction& instruction) const {
    const auto is_near = [&](std::uint32_t t) { return transfers_on_[draft_.role.tensors[t].storage] > 0; };
    return std::ranges::any_of(instruction.reads, is_near) || std::ranges::any_of(instruction.writes, is_near);
  }
  [[nodiscard]] bool meets(const Open& transfer, const Instruction& instruction) const {
    const auto any = [&](const std::vector<std::uint32_t>& tensors, const std::vector<Bytes>& of) {
      return std::ranges::any_of(tensors, [&](std::uint32_t t) {
        const Bytes bytes = bytes_of(t);
        return std::ranges::any_of(of, [&](const Bytes& other) { return bytes.meets(other); });
      });
    };
    return any(instruction.reads, transfer.writes) || any(instruction.writes, transfer.writes) ||
           any(instruction.writes, transfer.reads);
  }
  /// In the order of the posts.
  template <class Which>
  void wait_for(const Which& which) {
    std::erase_if(open_, [&](const Open& transfer) {
      if (!which(transfer)) return false;
      count(transfer, -1);
      draft_.wait(transfer.ticket, transfer.node, transfer.microbatch);
      return true;
    });
  }

  Draft& draft_;
  std::vector<bool> is_waited_for_;  // by ticket
  std::vector<int> transfers_on_;    // by storage: reads and writes of those in open_
  std::vector<Open> open_;
};

}  // namespace

void add_waits(Draft& draft, const std::vector<std::uint32_t>& elsewhere) { Waits(draft, elsewhere).add(); }

}  // namespace sim
