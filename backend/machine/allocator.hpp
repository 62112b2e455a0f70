// ATen's CPU allocator: counts the bytes that the tensors of each rank hold, and keeps large freed blocks for the next
// step.
//
//   install_counting_allocator();            // once per process, before the tensors that are to be counted
//   AllocationOwner owner(rank);             // this thread now allocates for `rank`
//   reset_peak(rank);                        // then a step
//   rank_bytes(rank).peak                    // all tensor memory, the ops' own workspace included
//
// Counted are the bytes asked for. A block remembers its owner, so a free from another thread counts right. A block of
// kCachedFrom bytes or more is not given back to the system but reused for the next request of its size and owner: else
// every step would fault its pages in again. Not seen: what oneDNN and MKL allocate for themselves, and threads of an
// op (OpenMP) that allocate on their own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "sim/program/memory.hpp"

namespace backend {

constexpr std::size_t kCachedFrom = sim::kReusedFrom;

/// Again is harmless. Not thread-safe against running ATen calls.
void install_counting_allocator();

struct RankBytes {
  std::int64_t live = 0, peak = 0;
};
RankBytes rank_bytes(std::uint32_t rank);
/// The peak starts again at what is live.
void reset_peak(std::uint32_t rank);

/// Blocks that wait for reuse, of all ranks.
std::int64_t cached_bytes();
/// Gives up the blocks that wait for reuse, between programs, when the ranks hold no tensors: those of the next program
/// may have other sizes. Their memory stays with the process while the machine has plenty.
void recycle_cached();
/// What is there from earlier programs and this one hasn't used, of all ranks.
std::int64_t idle_bytes();
/// Like recycle_cached, and all memory goes back to the system.
void release_cached();
/// Gives back to the system what the C library keeps of this thread's own freed memory (up to 64 MB).
void release_heap();

/// While it lives, allocations of this thread belong to `rank`. Without one they belong to nobody and are not reported.
class AllocationOwner {
 public:
  explicit AllocationOwner(std::uint32_t rank);
  ~AllocationOwner();
  AllocationOwner(const AllocationOwner&) = delete;
  AllocationOwner& operator=(const AllocationOwner&) = delete;

 private:
  void* previous_;
};

}  // namespace backend
