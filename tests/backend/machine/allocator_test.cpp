#include "backend/machine/allocator.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace backend {
namespace {

constexpr std::int64_t kSmall = 100, kLarge = 3 * static_cast<std::int64_t>(kCachedFrom) + 1;

at::Tensor bytes(std::int64_t count) { return at::empty(count, at::kByte); }

/// Ranks of their own per test, so that no test sees another's bytes.
class AllocatorTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void SetUp() override { release_cached(); }
  void TearDown() override { EXPECT_EQ(rank_bytes(rank_).live, 0); }

  const std::uint32_t rank_ = next_rank_++;
  static inline std::uint32_t next_rank_ = 1000;
};

TEST_F(AllocatorTest, CountsTheBytesThatWereAskedFor) {
  const AllocationOwner owner(rank_);
  for (const std::int64_t size : {std::int64_t{1}, kSmall, kLarge}) {
    const at::Tensor tensor = bytes(size);
    EXPECT_EQ(rank_bytes(rank_).live, size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 64, 0U);
  }
  EXPECT_EQ(rank_bytes(rank_).live, 0);
  EXPECT_EQ(bytes(0).numel(), 0);
}

TEST_F(AllocatorTest, PeakIsTheMostThatLivedAtOnceSinceReset) {
  const AllocationOwner owner(rank_);
  const at::Tensor stays = bytes(kSmall);
  { const at::Tensor goes = bytes(kLarge); }
  { const at::Tensor smaller = bytes(kLarge / 2); }
  EXPECT_EQ(rank_bytes(rank_).peak, kSmall + kLarge);
  reset_peak(rank_);
  EXPECT_EQ(rank_bytes(rank_).peak, kSmall);
  { const at::Tensor again = bytes(7); }
  EXPECT_EQ(rank_bytes(rank_).peak, kSmall + 7);
}

TEST_F(AllocatorTest, OwnersNestAndOthersAreNotCounted) {
  const std::uint32_t other = next_rank_++;
  std::vector<at::Tensor> tensors{bytes(kSmall)};
  {
    const AllocationOwner owner(rank_);
    {
      const AllocationOwner inner(other);
      tensors.push_back(bytes(kLarge));
    }
    tensors.push_back(bytes(1));
  }
  tensors.push_back(bytes(kLarge));
  EXPECT_EQ(rank_bytes(rank_).live, 1);
  EXPECT_EQ(rank_bytes(other).live, kLarge);
  tensors.clear();
  EXPECT_EQ(rank_bytes(other).live, 0);
}

TEST_F(AllocatorTest, AFreeFromAnotherThreadGoesToTheOwner) {
  const std::uint32_t other = next_rank_++;
  at::Tensor large = (AllocationOwner(rank_), bytes(kLarge)), small = (AllocationOwner(rank_), bytes(kSmall));
  std::thread([&] {
    const AllocationOwner owner(other);
    large.reset();
    small.reset();
  }).join();
  EXPECT_EQ(rank_bytes(rank_).live, 0);
  EXPECT_EQ(rank_bytes(other).live, 0);
  EXPECT_EQ(rank_bytes(other).peak, 0);
}

TEST_F(AllocatorTest, LargeBlocksAreReusedForTheSameSizeAndOwner) {
  const AllocationOwner owner(rank_);
  EXPECT_EQ(cached_bytes(), 0);
  const void* block = bytes(kLarge).data_ptr();
  const std::int64_t cached = cached_bytes();
  EXPECT_GE(cached, kLarge);
  EXPECT_LT(cached, kLarge + 256);
  {
    const at::Tensor larger = bytes(2 * kLarge), same = bytes(kLarge);
    EXPECT_NE(larger.data_ptr(), block);
    EXPECT_EQ(same.data_ptr(), block);
    EXPECT_EQ(cached_bytes(), 0);
    const AllocationOwner other(next_rank_++);
    EXPECT_NE(bytes(kLarge).data_ptr(), block);
  }
  EXPECT_GT(cached_bytes(), 3 * kLarge);
  release_cached();
  EXPECT_EQ(cached_bytes(), 0);
}

TEST_F(AllocatorTest, TheNextProgramFindsTheMemoryOfTheLast) {
  const AllocationOwner owner(rank_);
  const void* first = nullptr;
  {
    const at::Tensor a = bytes(kLarge), b = bytes(2 * kLarge);
    first = a.data_ptr();
    std::memset(a.data_ptr(), 1, kLarge);
  }
  recycle_cached();
  EXPECT_EQ(cached_bytes(), 0);
  const std::int64_t idle = idle_bytes();
  EXPECT_GE(idle, 3 * kLarge);
  {
    const at::Tensor other_size = bytes(kLarge + 1000);
    EXPECT_EQ(other_size.data_ptr(), first);
    EXPECT_EQ(static_cast<char*>(other_size.data_ptr())[kLarge - 1], 1);  // the page is still there
    EXPECT_LE(idle_bytes(), idle - kLarge - 1000);
  }
  release_cached();
  EXPECT_EQ(idle_bytes(), 0);
  EXPECT_EQ(static_cast<char*>(bytes(kLarge).data_ptr())[kLarge - 1], 0);  // a new one
}

TEST_F(AllocatorTest, WhatOutlivesItsProgramKeepsItsBytes) {
  const AllocationOwner owner(rank_);
  at::Tensor stays = bytes(kLarge);
  stays.fill_(7);
  recycle_cached();
  const at::Tensor next = bytes(kLarge);
  EXPECT_NE(next.data_ptr(), stays.data_ptr());
  static_cast<char*>(next.data_ptr())[0] = 1;
  EXPECT_EQ(static_cast<char*>(stays.data_ptr())[0], 7);
  stays.reset();
  EXPECT_EQ(cached_bytes(), 0);
}

/// Of whole pages inside of these blocks, which may be freed: whatever else the process holds.
std::int64_t resident_bytes_of(const std::vector<void*>& blocks, std::int64_t size) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  std::int64_t resident = 0;
  for (void* block : blocks)
    for (std::uintptr_t at = (reinterpret_cast<std::uintptr_t>(block) + page - 1) / page * page;
         at + page <= reinterpret_cast<std::uintptr_t>(block) + static_cast<std::uintptr_t>(size); at += page) {
      unsigned char here = 0;  // an error: nothing is mapped there any more
      if (::mincore(reinterpret_cast<void*>(at), page, &here) == 0 && (here & 1U) != 0)
        resident += static_cast<std::int64_t>(page);
    }
  return resident;
}

TEST_F(AllocatorTest, WhatAThreadFreedGoesBackToTheSystem) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer has its own heap";
#endif
  constexpr std::int64_t kMiB = 1 << 20;
  { const at::Tensor larger = bytes(24 * kMiB); }
  release_cached();  // the C library keeps up to twice that at the end of a heap from now on
  std::thread([] {
    std::vector<void*> blocks(40);
    for (void*& block : blocks) block = std::memset(std::malloc(kMiB), 1, kMiB);
    for (void* block : blocks) std::free(block);
    release_cached();
    EXPECT_GT(resident_bytes_of(blocks, kMiB), 32 * kMiB);
    release_heap();
    EXPECT_LT(resident_bytes_of(blocks, kMiB), 8 * kMiB);
  }).join();
}

TEST_F(AllocatorTest, SmallBlocksAreNotCached) {
  { const at::Tensor tensor = bytes(kSmall); }
  EXPECT_EQ(cached_bytes(), 0);
}

TEST_F(AllocatorTest, RawInterfaceAndCloneWork) {
  const AllocationOwner owner(rank_);
  c10::Allocator& allocator = *c10::GetCPUAllocator();
  auto* raw = static_cast<char*>(allocator.raw_allocate(kSmall));
  raw[0] = 'x';
  EXPECT_EQ(rank_bytes(rank_).live, kSmall);
  {
    const c10::DataPtr copy = allocator.clone(raw, kSmall);
    EXPECT_EQ(*static_cast<char*>(copy.get()), 'x');
    EXPECT_EQ(rank_bytes(rank_).live, 2 * kSmall);
  }
  allocator.raw_deallocate(raw);
}

TEST_F(AllocatorTest, ThreadsMayAllocateForOneRankAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      const AllocationOwner owner(rank_);
      for (int i = 0; i < 1000; ++i) {
        const at::Tensor a = bytes(kLarge + 64 * (i % 3)), b = bytes(kSmall);
        static_cast<char*>(a.data_ptr())[i] = 1;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(rank_bytes(rank_).peak, 4 * (kLarge + 128 + kSmall));
  EXPECT_GE(rank_bytes(rank_).peak, kLarge + kSmall);
}

}  // namespace
}  // namespace backend
