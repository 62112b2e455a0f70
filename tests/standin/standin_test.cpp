// The stand-in accelerator itself: that it finds what it is there to find, and nothing else.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "tests/standin/device.hpp"

namespace standin {
namespace {

const c10::Device kDevice(kType, 0);

// ---- The race detector by itself: accesses of one array by two streams ----

class RaceDetectorTest : public testing::Test {
 protected:
  void reads(std::size_t stream) { races_.enqueued(stream, "read", {{bytes_, bytes_ + 8, false}}); }
  void writes(std::size_t stream) { races_.enqueued(stream, "write", {{bytes_, bytes_ + 8, true}}); }
  void expect(const std::vector<std::string>& found) { EXPECT_EQ(races_.take(), found); }

  char bytes_[16] = {};
  RaceDetector races_{3};
};

TEST_F(RaceDetectorTest, WhatNothingOrdersIsARace) {
  writes(0);
  reads(1);
  expect({"read on stream 1 reads what write on stream 0 writes"});
  writes(2);
  expect({"write on stream 2 writes what write on stream 0 writes",
          "write on stream 2 writes what read on stream 1 reads"});
}

TEST_F(RaceDetectorTest, ReadsAndOneStreamsOwnAreNone) {
  writes(0), writes(0), reads(0);
  expect({});
  races_.host_waited(races_.clock(0));
  reads(1), reads(2);
  expect({});
}

TEST_F(RaceDetectorTest, EventsOrderAlsoThroughOtherStreams) {
  writes(0);
  races_.merge(1, Clock(races_.clock(0)));
  races_.merge(2, Clock(races_.clock(1)));
  reads(2);
  expect({});
  writes(0);  // after the event
  expect({"write on stream 0 writes what read on stream 2 reads"});
}

TEST_F(RaceDetectorTest, OtherBytesAreNoRace) {
  writes(0);
  races_.enqueued(1, "write", {{bytes_ + 8, bytes_ + 16, true}});
  expect({});
  races_.enqueued(2, "write", {{bytes_ + 7, bytes_ + 9, true}});
  EXPECT_EQ(races_.take().size(), 2U);
}

// ---- A producer on one stream, a consumer on another, in both modes ----

struct Mistake {
  const char* name;
  bool waits_before = true, waits_after = true, frees_early = false, records_use = false;
  bool is_race = true;
};

class Synchronisation : public testing::TestWithParam<std::tuple<Mode, Mistake>> {};

/// x is made on `compute`, copied to y on `copy`, and y is read on `compute`. Whether what is read is right.
bool play(const Mistake& mistake) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::impl::VirtualGuardImpl guard(kType);
  const c10::Stream compute = guard.getStreamFromGlobalPool(kDevice), copy = guard.getStreamFromGlobalPool(kDevice);
  c10::Event ready(kType), end(kType);
  const c10::StreamGuard on_compute(compute);
  at::Tensor x = at::ones({1000}).to(kDevice);
  x.mul_(3);
  const at::Tensor y = at::empty({1000}, kDevice);
  ready.record(compute);
  {
    const c10::StreamGuard on_copy(copy);
    if (mistake.waits_before) ready.block(copy);
    y.copy_(x, /*non_blocking=*/true);
  }
  end.record(copy);
  if (mistake.records_use) guard.recordDataPtrOnStream(x.storage().data_ptr(), copy);
  if (mistake.frees_early) x.reset();
  if (mistake.waits_after) end.block(compute);
  const at::Tensor sum = at::add(y, 1).to(at::kCPU);
  copy.synchronize();
  return at::equal(sum, at::ones({1000}).mul_(4));
}

TEST_P(Synchronisation, EveryMissingWaitIsFound) {
  const auto& [mode, mistake] = GetParam();
  at::set_num_threads(1);
  constexpr int kSeeds = 10;
  for (int seed = 0; seed < kSeeds; ++seed) {
    configure({.mode = mode, .seed = static_cast<std::uint64_t>(seed)});
    const bool is_right = play(mistake);
    EXPECT_EQ(take_races().empty(), !mistake.is_race) << "seed " << seed;
    if (!mistake.is_race) {
      EXPECT_TRUE(is_right) << "seed " << seed;
    }
  }
}

constexpr Mistake kMistakes[] = {
    {.name = "none", .is_race = false},
    {.name = "no_wait_before", .waits_before = false},
    {.name = "no_wait_after", .waits_after = false},
    {.name = "no_wait", .waits_before = false, .waits_after = false},
    {.name = "freed_early", .frees_early = true},
    {.name = "freed_early_but_recorded", .frees_early = true, .records_use = true, .is_race = false}};
INSTANTIATE_TEST_SUITE_P(Standin, Synchronisation,
                         testing::Combine(testing::Values(Mode::threads, Mode::drawn), testing::ValuesIn(kMistakes)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == Mode::drawn ? "drawn_" : "threads_") +
                                  std::get<1>(test.param).name;
                         });

// ---- Memory and errors ----

class StandinDevice : public testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    configure({.mode = Mode::drawn, .seed = 1});
  }
  const at::AutoDispatchBelowADInplaceOrView no_autograd_;
};

TEST_F(StandinDevice, FreshMemoryIsPoisoned) {
  EXPECT_TRUE(at::isnan(at::empty({100}, kDevice).to(at::kCPU)).all().item<bool>());
  { const at::Tensor used = at::ones({100}).to(kDevice); }
  EXPECT_TRUE(at::isnan(at::empty({100}, kDevice).to(at::kCPU)).all().item<bool>()) << "freed and given out again";
}

TEST_F(StandinDevice, CountsWhatIsAllocated) {
  c10::DeviceAllocator* allocator = c10::getDeviceAllocator(kType);
  const std::int64_t before = allocator->getDeviceStats(0).allocated_bytes[0].current;
  {
    const at::Tensor tensor = at::empty({1024}, kDevice);
    EXPECT_EQ(allocator->getDeviceStats(0).allocated_bytes[0].current, before + 4096);
  }
  const c10::CachingDeviceAllocator::Stat after = allocator->getDeviceStats(0).allocated_bytes[0];
  EXPECT_EQ(after.current, before);
  EXPECT_GE(after.peak, before + 4096);
}

TEST_F(StandinDevice, RefusesShapesThatDependOnData) {
  const at::Tensor tensor = at::ones({4}).to(kDevice);
  EXPECT_THROW(at::nonzero(tensor), c10::NotImplementedError);
}

TEST_F(StandinDevice, WhatAnItemThrowsTheNextSynchroniseDoes) {
  enqueue(current_stream(), "fails", {}, []() -> bool { throw std::runtime_error("no"); });
  EXPECT_THROW(synchronize(current_stream()), std::runtime_error);
  EXPECT_NO_THROW(synchronize(current_stream()));
}

TEST_F(StandinDevice, OneHostThreadAlwaysDrawsTheSame) {
  const auto order = [](std::uint64_t seed) {
    configure({.mode = Mode::drawn, .seed = seed});
    std::vector<int> done;
    for (int i = 0; i < 20; ++i)
      enqueue(static_cast<std::size_t>(1 + i % 4), "item", {}, [&done, i] {
        done.push_back(i);
        return true;
      });
    for (std::size_t stream = 1; stream <= 4; ++stream) synchronize(stream);
    return done;
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

}  // namespace
}  // namespace standin
