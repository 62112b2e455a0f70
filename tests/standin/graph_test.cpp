// Graphs of the stand-in accelerator: what is captured runs at each replay, on the same memory; what CUDA refuses while it
// captures is refused here; and a wait that a captured step lacks is found.
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "backend/machine/graph.hpp"
#include "tests/standin/device.hpp"

namespace standin {
namespace {

const c10::Device kDevice(kType, 0);
constexpr std::int64_t kElements = 1000;

/// Whether all elements are.
bool is_all(const at::Tensor& tensor, double value) { return tensor.to(at::kCPU).eq(value).all().item<bool>(); }

class StandinGraph : public testing::TestWithParam<Mode> {
 protected:
  StandinGraph()
      : compute_(guard_.getStreamFromGlobalPool(kDevice)),
        copy_(guard_.getStreamFromGlobalPool(kDevice)),
        on_compute_(compute_) {
    at::set_num_threads(1);
    configure({.mode = GetParam(), .seed = 1, .delay_us = 20});
  }

  const at::AutoDispatchBelowADInplaceOrView no_autograd_;
  const c10::impl::VirtualGuardImpl guard_{kType};
  const c10::Stream compute_, copy_;
  const c10::StreamGuard on_compute_;
  std::unique_ptr<backend::Graph> graph_ = backend::make_graph(kDevice);
};
INSTANTIATE_TEST_SUITE_P(Standin, StandinGraph, testing::Values(Mode::threads, Mode::drawn),
                         [](const auto& test) { return std::string(test.param == Mode::drawn ? "drawn" : "threads"); });

TEST_P(StandinGraph, AReplayDoesWhatWasCapturedAndTheCaptureNothing) {
  at::Tensor x = at::ones({kElements}).to(kDevice), y;
  graph_->capture([&] {
    const at::Tensor twice = at::mul(x, 2);
    y = at::add(twice, 1);
    x.add_(1);
  });
  EXPECT_TRUE(is_all(x, 1));
  const void* const place = y.const_data_ptr();
  for (int replay = 1; replay <= 3; ++replay) {
    graph_->replay();
    EXPECT_TRUE(is_all(y, 2 * replay + 1));
    EXPECT_TRUE(is_all(x, replay + 1));
  }
  EXPECT_EQ(y.const_data_ptr(), place);
  EXPECT_TRUE(take_races().empty());
}

TEST_P(StandinGraph, WhatAReplayUsesIsNobodyElsesAsLongAsTheGraphLives) {
  const at::Tensor x = at::ones({kElements}).to(kDevice);
  at::Tensor y;
  const void* freed = nullptr;
  graph_->capture([&] {
    const at::Tensor inside = at::add(x, 1);
    freed = inside.const_data_ptr();
    y = at::add(inside, 1);
  });
  const auto others = [](int count) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < count; ++i)
      tensors.push_back(at::full({kElements}, 7, at::TensorOptions(kDevice).dtype(at::kFloat)));
    return tensors;
  };
  const auto have_it = [&](const std::vector<at::Tensor>& tensors) {
    return std::ranges::any_of(tensors, [&](const at::Tensor& tensor) { return tensor.const_data_ptr() == freed; });
  };
  {
    const std::vector<at::Tensor> tensors = others(20);
    EXPECT_FALSE(have_it(tensors));
    for (int replay = 0; replay < 2; ++replay) {
      graph_->replay();
      EXPECT_TRUE(is_all(y, 3));
    }
    for (const at::Tensor& tensor : tensors) EXPECT_TRUE(is_all(tensor, 7));
  }
  compute_.synchronize();
  graph_.reset();
  EXPECT_TRUE(have_it(others(21)));  // the 20 from before are given out first
  EXPECT_TRUE(is_all(y, 3)) << "it outlives the graph";
  EXPECT_TRUE(take_races().empty());
}

TEST_P(StandinGraph, WhatIsFreedMeanwhileButWasAllocatedBeforeIsNotTheGraphs) {
  at::Tensor before = at::ones({kElements}).to(kDevice);
  const at::Tensor x = at::ones({kElements}).to(kDevice);
  graph_->capture([&] {
    before.reset();
    x.add_(1);
  });
  const at::Tensor others = at::full({kElements}, 7, at::TensorOptions(kDevice).dtype(at::kFloat));  // in its place
  graph_->replay();
  EXPECT_TRUE(is_all(others, 7));
  EXPECT_TRUE(is_all(x, 2));
}

TEST_P(StandinGraph, RefusesWhatCudaDoes) {
  const at::Tensor x = at::ones({kElements}).to(kDevice);
  c10::Event outside(kType), inside(kType);
  outside.record(copy_);
  const auto join = [&] {
    x.add_(1);
    inside.record(compute_);
    inside.block(copy_);
  };
  const std::map<std::string, std::function<void()>> forbidden{
      {"waits for the stream", [&] { compute_.synchronize(); }},
      {"asks the stream", [&] { static_cast<void>(compute_.query()); }},
      {"waits for the device", [&] { guard_.synchronizeDevice(0); }},
      {"waits for an event", [&] { join(), inside.synchronize(); }},
      {"asks an event", [&] { join(), static_cast<void>(inside.query()); }},
      {"waits for a stream that has joined", [&] { join(), copy_.synchronize(); }},
      {"reads a value", [&] { static_cast<void>(x.sum().item<double>()); }},
      {"copies to the host", [&] { static_cast<void>(x.to(at::kCPU)); }},
      {"copies from the host", [&] { static_cast<void>(at::ones({3}).to(kDevice)); }},
      {"waits for an event from outside", [&] { outside.block(compute_); }},
      {"leaves a stream unjoined", [&] { join(); }},
      {"captures in a capture", [&] { backend::make_graph(kDevice)->capture([] {}); }}};
  for (const auto& [what, action] : forbidden) {
    EXPECT_THROW(backend::make_graph(kDevice)->capture(action), std::exception) << what;
    EXPECT_NO_THROW(compute_.synchronize()) << what;
    EXPECT_NO_THROW(copy_.synchronize()) << what;
  }
  graph_->capture([&] { join(), inside.record(copy_), inside.block(compute_); });
  EXPECT_THROW(static_cast<void>(inside.query()), std::runtime_error) << "an event of a capture never comes";
  EXPECT_THROW(inside.block(compute_), std::runtime_error) << "and nobody outside waits for it";
  EXPECT_TRUE(is_all(x, 1));
}

TEST_P(StandinGraph, WhatAReplayThrowsTheNextSynchroniseDoes) {
  c10::Event ready(kType), end(kType);
  graph_->capture([&] {
    ready.record(compute_);
    ready.block(copy_);
    {
      const c10::StreamGuard on_copy(copy_);
      enqueue(current_stream(), "fails", {}, []() -> bool { throw std::runtime_error("no"); });
    }
    end.record(copy_);
    end.block(compute_);
  });
  for (int replay = 0; replay < 2; ++replay) {
    graph_->replay();
    EXPECT_THROW(compute_.synchronize(), std::runtime_error);
  }
}

// ---- A producer on one stream, a copy on another and a consumer on the first, all captured

enum class Found : std::uint8_t { nothing, race, refused };
struct CapturedMistake {
  const char* name;
  Found found = Found::nothing;
  bool waits_before = true, waits_after = true, ready_early = false, end_early = false, frees_early = false,
       records_use = false;
};

class StandinGraphWaits : public testing::TestWithParam<std::tuple<Mode, CapturedMistake>> {};

TEST_P(StandinGraphWaits, EveryMissingWaitIsFound) {
  const auto& [mode, mistake] = GetParam();
  at::set_num_threads(1);
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const c10::impl::VirtualGuardImpl guard(kType);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    configure({.mode = mode, .seed = seed});
    const c10::Stream compute = guard.getStreamFromGlobalPool(kDevice), copy = guard.getStreamFromGlobalPool(kDevice);
    c10::Event ready(kType), end(kType);
    const c10::StreamGuard on_compute(compute);
    const at::Tensor x = at::ones({kElements}).to(kDevice), y = at::empty({kElements}, kDevice);
    at::Tensor sum;
    const std::unique_ptr<backend::Graph> graph = backend::make_graph(kDevice);
    const auto step = [&] {
      if (mistake.ready_early) ready.record(compute);
      at::Tensor made = at::mul(x, 3);
      if (!mistake.ready_early) ready.record(compute);
      {
        const c10::StreamGuard on_copy(copy);
        if (mistake.waits_before) ready.block(copy);
        if (mistake.end_early) end.record(copy);
        y.copy_(made, /*non_blocking=*/true);
        if (!mistake.end_early) end.record(copy);
      }
      if (mistake.records_use) guard.recordDataPtrOnStream(made.storage().data_ptr(), copy);
      if (mistake.frees_early) made.reset();
      if (mistake.waits_after) end.block(compute);
      sum = at::add(y, 1);
    };
    if (mistake.found == Found::refused) {
      EXPECT_THROW(graph->capture(step), std::runtime_error);
      for (const c10::Stream& stream : {compute, copy}) stream.synchronize();
      continue;
    }
    graph->capture(step);
    for (int replay = 0; replay < 2; ++replay) {
      graph->replay();
      compute.synchronize();
    }
    EXPECT_TRUE(mistake.found != Found::nothing || is_all(sum, 4)) << "seed " << seed;
    EXPECT_EQ(!take_races().empty(), mistake.found == Found::race) << "seed " << seed;
  }
}

constexpr CapturedMistake kCapturedMistakes[] = {
    {.name = "none"},
    {.name = "no_wait_before", .found = Found::refused, .waits_before = false},
    {.name = "no_wait_after", .found = Found::refused, .waits_after = false},
    {.name = "ready_early", .found = Found::race, .ready_early = true},
    {.name = "end_early", .found = Found::refused, .end_early = true},
    {.name = "freed_early", .found = Found::race, .frees_early = true},
    {.name = "freed_early_but_recorded", .frees_early = true, .records_use = true}};
INSTANTIATE_TEST_SUITE_P(Standin, StandinGraphWaits,
                         testing::Combine(testing::Values(Mode::threads, Mode::drawn),
                                          testing::ValuesIn(kCapturedMistakes)),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == Mode::drawn ? "drawn_" : "threads_") +
                                  std::get<1>(test.param).name;
                         });

}  // namespace
}  // namespace standin
