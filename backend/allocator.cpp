#include "backend/allocator.hpp"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "sim/error.hpp"

namespace backend {
namespace {

constexpr std::size_t kAlignment = 64;  // as c10's own allocator: a cache line, an AVX-512 register

struct Arena {
  std::mutex mutex;
  RankBytes bytes;
  std::int64_t cached = 0;
  std::unordered_map<std::size_t, std::vector<void*>> free;  // capacity → blocks, the last freed last
};

/// Stands in front of the bytes of a block.
struct alignas(kAlignment) Header {
  Arena* owner;
  std::size_t bytes;     // asked for
  std::size_t capacity;  // of the block, this header included
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

void* take_cached(Arena& arena, std::size_t capacity) {
  const std::lock_guard lock(arena.mutex);
  const auto found = arena.free.find(capacity);
  if (found == arena.free.end() || found->second.empty()) return nullptr;
  void* block = found->second.back();
  found->second.pop_back();
  arena.cached -= static_cast<std::int64_t>(capacity);
  return block;
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
    if (header->capacity >= kCachedFrom) {
      arena.cached += static_cast<std::int64_t>(header->capacity);
      arena.free[header->capacity].push_back(header);
      return;
    }
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
    void* block = capacity >= kCachedFrom ? take_cached(arena, capacity) : nullptr;
    if (block == nullptr) block = take_new(capacity);
    void* data = new (block) Header{&arena, bytes, capacity} + 1;
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

void release_cached() {
  arenas().each([](Arena& arena) {
    for (const auto& [capacity, blocks] : arena.free)
      for (void* block : blocks) std::free(block);
    arena.free.clear();
    arena.cached = 0;
  });
  malloc_trim(0);  // the C library would keep them for itself
}

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
