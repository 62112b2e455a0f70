#include "backend/world/last_words.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <future>

#include "backend/machine/clock.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

Failures exchange(LastWords& words, const char* why, std::promise<void>* has_left = nullptr) {
  return words.exchange(sim::RunError("{}", why), [&] {
    if (has_left != nullptr) has_left->set_value();
  });
}

std::string text(const Failures& failures) {
  std::string text = failures.is_speaker ? "speaks:" : "is silent:";
  for (const Failures::Said& said : failures.said)
    text += fmt::format(" {} ({}) {};", said.rank, said.failure.status, said.failure.text);
  for (const std::uint32_t rank : failures.silent) text += fmt::format(" no word from {}", rank);
  return text;
}

TEST(LastWords, RankZeroTellsWhatCameFirst) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  LastWords zero(store, 0, 3), one(store, 1, 3), two(store, 2, 3);
  std::promise<void> has_left;
  std::future<Failures> of_two = std::async(std::launch::async, [&] { return exchange(two, "no memory", &has_left); });
  has_left.get_future().wait();  // by which the others fail
  std::future<Failures> of_one = std::async(std::launch::async, [&] {
    sleep_until(now_s() + 0.2, /*precisely=*/false);
    return exchange(one, "has lost 2");
  });
  EXPECT_EQ(text(exchange(zero, "has lost 2")), "speaks: 2 (75) no memory; 0 (75) has lost 2; 1 (75) has lost 2;");
  EXPECT_FALSE(of_one.get().is_speaker);
  EXPECT_FALSE(of_two.get().is_speaker);
}

TEST(LastWords, WhoFailsAfterTheUserHasBeenToldIsSilent) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  LastWords zero(store, 0, 2), one(store, 1, 2);
  EXPECT_EQ(text(exchange(one, "no memory")), "speaks: 1 (75) no memory; no word from 0");
  EXPECT_EQ(text(exchange(zero, "has lost 1")), "is silent: 1 (75) no memory; 0 (75) has lost 1;");
}

TEST(LastWords, AreNotNeededWhereAllEndsWell) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  { const LastWords zero(store, 0, 2); }
  EXPECT_EQ(store->getNumKeys(), 0);
}

class Gone final : public c10d::HashStore {
  std::int64_t add(const std::string& /*key*/, std::int64_t /*value*/) override { throw std::runtime_error("gone"); }
};

TEST(LastWords, NobodyHearsThemWhereTheStoreIsGone) {
  LastWords zero(c10::make_intrusive<Gone>(), 0, 2);
  std::promise<void> has_left;
  const double begin_s = now_s();
  EXPECT_EQ(text(exchange(zero, "no memory", &has_left)), "is silent:");
  EXPECT_LT(now_s() - begin_s, 0.9);
  EXPECT_EQ(has_left.get_future().wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

}  // namespace
}  // namespace backend
