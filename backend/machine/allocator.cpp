#include "backend/machine/allocator.hpp"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/cluster/allowance.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

constexpr std::size_t kAlignment = 64;  // as c10's own allocator: a cache line, an AVX-512 register
constexpr double kPlenty = 0.25;        // of the memory that this process may have, still available

/// Memory that stays with the process from one program to the next: addresses for as many bytes as the machine has,
/// given out one block behind the other. Pages that go back to the system must be faulted in again (here 0.6 s per GB),
/// and a virtual machine tells its host of them for some ten seconds, in which it may stop for hundreds of ms.
struct Region {
  Region() {
    const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
    const std::size_t all = pages * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    void* memory = mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return;  // then there is never room
    begin = static_cast<char*>(memory);
    size = all;
  }
  ~Region() {
    if (begin != nullptr) munmap(begin, size);
  }
  Region(const Region&) = delete;

  /// Aligned like `bytes`, which the caller keeps a multiple of its alignment. nullptr: no room.
  void* take(std::size_t bytes) {
    if (size - top < bytes) return nullptr;
    void* block = begin + top;
    top += bytes;
    touched = std::max(touched, top);
    ++in_use;
    return block;
  }
  /// The next program begins at the first address, where the pages are still there unless they are given back. Only
  /// while no block is in use.
  void start_over(bool give_back) {
    top = 0;
    if (!give_back) return;
    if (touched > 0) madvise(begin, touched, MADV_DONTNEED);
    touched = 0;
  }

  char* begin = nullptr;
  std::size_t size = 0, top = 0, touched = 0;  // touched: up to where pages were used since they were last given back
  std::int64_t in_use = 0;                     // blocks
};

struct Arena;

/// Stands in front of the bytes of a block.
struct alignas(kAlignment) Header {
  Arena* owner;
  Region* region;        // nullptr: the block is the C library's
  std::size_t bytes;     // asked for
  std::size_t capacity;  // of the block, this header included
};

struct Arena {
  std::mutex mutex;
  RankBytes bytes;
  std::int64_t cached = 0;
  std::unordered_map<std::size_t, std::vector<Header*>> free;  // by capacity, the last freed last
  std::unique_ptr<Region> region;                              // a rank's; made with its first block
  std::vector<std::unique_ptr<Region>> left;                   // still in use when their program had ended

  Header* take_cached(std::size_t capacity) {
    const auto found = free.find(capacity);
    if (found == free.end() || found->second.empty()) return nullptr;
    Header* block = found->second.back();
    found->second.pop_back();
    cached -= static_cast<std::int64_t>(capacity);
    if (block->region != nullptr) ++block->region->in_use;
    return block;
  }
  /// Whether the block waits for reuse from now on, or is gone with its region; else it's still to be freed.
  bool keep(Header* block) {
    if (Region* const from = block->region; from != nullptr) {
      --from->in_use;
      if (from != region.get()) {
        std::erase_if(left, [](const auto& old) { return old->in_use == 0; });  // and the block with it
        return true;
      }
    }
    if (block->capacity < kCachedFrom) return false;
    cached += static_cast<std::int64_t>(block->capacity);
    free[block->capacity].push_back(block);
    return true;
  }
  void start_over(bool give_back) {
    for (const auto& [capacity, blocks] : free)
      for (Header* block : blocks)
        if (block->region == nullptr) std::free(block);
    free.clear();
    cached = 0;
    if (region && region->in_use > 0) left.push_back(std::move(region));
    if (region) region->start_over(give_back);
  }
};

struct Arenas {
  std::mutex mutex;
  std::map<std::uint32_t, Arena> by_rank;
  Arena nobody;

  Arena& at(std::uint32_t rank) {
    const std::lock_guard lock(mutex);
    return by_rank[rank];
  }
  template <class Visit>
  void each(Visit visit) {
    const std::lock_guard lock(mutex);
    for (auto& [rank, arena] : by_rank) {
      const std::lock_guard arena_lock(arena.mutex);
      visit(arena);
    }
    const std::lock_guard arena_lock(nobody.mutex);
    visit(nobody);
  }
};

/// Never destroyed: tensors in static variables are freed later than any static of ours.
Arenas& arenas() {
  static Arenas& all = *new Arenas;
  return all;
}

thread_local Arena* current = nullptr;

struct Place {
  void* block = nullptr;
  Region* region = nullptr;  // that it's of
};

/// The place of a block of at least kCachedFrom bytes: a cached one, or of the rank's
/// region; none where neither has it.
Place take_kept(Arena& arena, std::size_t capacity) {
  const std::lock_guard lock(arena.mutex);
  if (Header* block = arena.take_cached(capacity)) return {block, block->region};
  // What belongs to nobody may live for ever, and would keep a region with it.
  if (&arena == &arenas().nobody) return {};
  if (!arena.region) arena.region = std::make_unique<Region>();
  return {arena.region->take(capacity), arena.region.get()};
}

void* take_new(std::size_t capacity) {
  void* block = nullptr;
  if (posix_memalign(&block, kAlignment, capacity) == 0) return block;
  release_cached();
  if (posix_memalign(&block, kAlignment, capacity) == 0) return block;
  throw sim::RunError("out of memory: the system refuses {} bytes for a tensor", capacity);
}

void free_bytes(void* bytes) {
  if (bytes == nullptr) return;
  Header* header = static_cast<Header*>(bytes) - 1;
  Arena& arena = *header->owner;
  {
    const std::lock_guard lock(arena.mutex);
    arena.bytes.live -= static_cast<std::int64_t>(header->bytes);
    if (arena.keep(header)) return;
  }
  std::free(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &free_bytes, cpu};
    Arena& arena = current != nullptr ? *current : arenas().nobody;
    const std::size_t capacity = (sizeof(Header) + bytes + kAlignment - 1) / kAlignment * kAlignment;
    Place place;
    if (capacity >= kCachedFrom) place = take_kept(arena, capacity);
    if (place.block == nullptr) place = {take_new(capacity), nullptr};
    void* data = new (place.block) Header{&arena, place.region, bytes, capacity} + 1;
    const std::lock_guard lock(arena.mutex);
    arena.bytes.live += static_cast<std::int64_t>(bytes);
    arena.bytes.peak = std::max(arena.bytes.peak, arena.bytes.live);
    return {data, data, &free_bytes, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_bytes; }
  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    default_copy_data(destination, source, bytes);
  }
};

void start_over(bool give_back) {
  arenas().each([&](Arena& arena) { arena.start_over(give_back); });
  malloc_trim(0);  // the C library would keep what it had
}

}  // namespace

void install_counting_allocator() {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
}

RankBytes rank_bytes(std::uint32_t rank) {
  Arena& arena = arenas().at(rank);
  const std::lock_guard lock(arena.mutex);
  return arena.bytes;
}

void reset_peak(std::uint32_t rank) {
  Arena& arena = arenas().at(rank);
  const std::lock_guard lock(arena.mutex);
  arena.bytes.peak = arena.bytes.live;
}

std::int64_t cached_bytes() {
  std::int64_t bytes = 0;
  arenas().each([&](const Arena& arena) { bytes += arena.cached; });
  return bytes;
}

void recycle_cached() { start_over(/*give_back=*/sim::free_share() < kPlenty); }

std::int64_t idle_bytes() {
  std::int64_t bytes = 0;
  arenas().each([&](const Arena& arena) {
    if (arena.region) bytes += static_cast<std::int64_t>(arena.region->touched - arena.region->top);
  });
  return bytes;
}

void release_cached() { start_over(/*give_back=*/true); }

void release_heap() {
  constexpr std::size_t kHeap = 64 << 20;   // glibc's HEAP_MAX_SIZE
  constexpr std::size_t kBlock = 64 << 10;  // less than any mmap threshold, so each comes from the heap
  // malloc_trim gives back free memory between blocks, but in a thread's heap not what lies behind the last one. So a
  // last block is put into the next heap; with it, that heap goes again.
  std::vector<void*> blocks(kHeap / kBlock + 1);
  for (void*& block : blocks) block = std::malloc(kBlock);
  void* last = blocks.back();
  blocks.pop_back();
  for (void* block : blocks) std::free(block);
  malloc_trim(0);
  std::free(last);
}

AllocationOwner::AllocationOwner(std::uint32_t rank) : previous_(current) { current = &arenas().at(rank); }
AllocationOwner::~AllocationOwner() { current = static_cast<Arena*>(previous_); }

}  // namespace backend
