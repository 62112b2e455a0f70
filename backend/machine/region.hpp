// Memory that stays with the process from one program to the next.
//
//   Region region;                     // addresses for as many bytes as the machine has; no memory yet
//   void* block = region.take(bytes);  // behind the last one
//   region.freed();                    // … of each block
//   region.start_over();               // the next program begins at the first address, where the pages are still there
//
// Pages that go back to the system must be faulted in again (here 0.6 s per GB), and a virtual machine tells its host
// of them for some ten seconds, in which it may stop for hundreds of ms.
#pragma once

#include <cstddef>
#include <cstdint>

namespace backend {

/// Not thread-safe.
class Region {
 public:
  Region();
  ~Region();
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  /// Aligned like `bytes`, which the caller keeps a multiple of its alignment. nullptr: no room.
  void* take(std::size_t bytes);
  /// Counts the blocks in use: a block was freed, or a freed one is used again.
  void freed() { --in_use_; }
  void used_again() { ++in_use_; }
  [[nodiscard]] bool in_use() const { return in_use_ > 0; }

  /// Only while it isn't in use.
  void start_over() { top_ = 0; }
  /// All pages go back to the system; only after start_over.
  void give_back();
  /// Bytes of pages that were used before the last start_over and not since.
  [[nodiscard]] std::int64_t idle_bytes() const { return static_cast<std::int64_t>(touched_ - top_); }

 private:
  char* begin_ = nullptr;
  std::size_t size_ = 0, top_ = 0, touched_ = 0;
  std::int64_t in_use_ = 0;
};

}  // namespace backend
