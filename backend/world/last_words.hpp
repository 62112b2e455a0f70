// What ranks that nobody watches say to each other when they fail, in the store where they have met: each says why, and
// one of them tells the user, for all. Made early, since memory may run out.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "backend/world/world.hpp"

namespace backend {

class LastWords {
 public:
  LastWords(c10::intrusive_ptr<c10d::Store> store, std::uint32_t rank, std::uint32_t ranks);
  ~LastWords();
  LastWords(const LastWords&) = delete;

  /// Control::exchange_failures, at most once. Throws only what `leave` throws.
  Failures exchange(const std::exception& own, const std::function<void()>& leave);

 private:
  struct Shared;
  const std::shared_ptr<Shared> shared_;  // with the thread, which may outlive this
  std::thread thread_;
};

}  // namespace backend
