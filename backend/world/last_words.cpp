#include "backend/world/last_words.hpp"

#include <algorithm>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "backend/world/processes.hpp"

namespace backend {
namespace {

constexpr double kPatience_s = 1;  // the others' connections to who leaves break within a round trip
constexpr const char *kFailed = "failed", *kSpeakers = "failed/speakers", *kHeard = "failed/heard";

std::string key_of(std::uint32_t rank) { return fmt::format("failed/{}", rank); }

}  // namespace

/// The thread is made before memory can run out, and nobody waits for its end: a store whose host is gone may never
/// answer.
struct LastWords::Shared {
  const c10::intrusive_ptr<c10d::Store> store;
  const std::uint32_t rank, ranks;
  std::promise<std::optional<Failure>> own{};  // none: this rank ends well
  std::promise<void> said{}, left{};
  std::promise<Failures> heard{};

  void tell() {
    const std::optional<Failure> failure = own.get_future().get();
    if (!failure) return;
    try {
      say(*failure);
    } catch (const std::exception&) {  // the store is gone
      said.set_value();
      heard.set_value({});
      return;
    }
    said.set_value();
    left.get_future().wait();
    Failures failures;
    try {
      failures = listen();
      failures.is_speaker = speaks_for(failures.said);
      // The store may be rank 0's.
      if (rank == 0)
        linger(*store, kHeard, failures.said.size() - 1, kPatience_s);
      else
        store->add(kHeard, 1);
    } catch (const std::exception&) {  // it is gone now; what has been heard stays
    }
    heard.set_value(failures);
  }

  void say(const Failure& failure) const {
    const nlohmann::json its{{"order", store->add(kFailed, 1)}, {"status", failure.status}, {"why", failure.text}};
    store->set(key_of(rank), nlohmann::json::to_cbor(its));
  }

  /// Until all ranks have failed, or rank 0 has, which tells the user then. Not for long.
  [[nodiscard]] Failures listen() const {
    std::map<std::int64_t, Failures::Said> by_order;
    std::vector<std::uint32_t> silent;
    for (const double end_s = now_s() + kPatience_s; now_s() < end_s;
         sleep_until(now_s() + 0.05, /*precisely=*/false)) {
      by_order.clear();
      silent.clear();
      for (std::uint32_t of = 0; of < ranks; ++of) {
        if (!store->check({key_of(of)})) {
          silent.push_back(of);
          continue;
        }
        const nlohmann::json its = nlohmann::json::from_cbor(store->get(key_of(of)));
        by_order[its.at("order")] = {of, {.status = its.at("status"), .text = its.at("why")}};
      }
      if (silent.empty() || (rank != 0 && silent.front() != 0)) break;
    }
    Failures failures{.silent = silent};
    for (const auto& [order, its] : by_order) failures.said.push_back(its);
    return failures;
  }

  /// The lowest of the ranks that have failed tells the user; none does whose failure comes after that.
  [[nodiscard]] bool speaks_for(const std::vector<Failures::Said>& failures) const {
    const auto by_rank = [](const Failures::Said& a, const Failures::Said& b) { return a.rank < b.rank; };
    return std::ranges::min_element(failures, by_rank)->rank == rank && store->add(kSpeakers, 1) == 1;
  }
};

LastWords::LastWords(c10::intrusive_ptr<c10d::Store> store, std::uint32_t rank, std::uint32_t ranks)
    : shared_(new Shared{std::move(store), rank, ranks}), thread_([shared = shared_] { shared->tell(); }) {}

LastWords::~LastWords() {
  if (!thread_.joinable()) return;
  shared_->own.set_value({});
  thread_.join();
}

Failures LastWords::exchange(const std::exception& own, const std::function<void()>& leave) {
  const auto wait = [](const auto& future, double patience_s) {
    return future.wait_for(std::chrono::duration<double>(patience_s)) == std::future_status::ready;
  };
  try {
    shared_->own.set_value(Failure{.status = sim::exit_status(own), .text = own.what()});
    thread_.detach();
    wait(shared_->said.get_future(), kPatience_s);
  } catch (const std::exception&) {  // no memory is left to say it
    leave();
    return {};
  }
  leave();
  shared_->left.set_value();
  std::future<Failures> heard = shared_->heard.get_future();
  return wait(heard, 3 * kPatience_s) ? heard.get() : Failures();
}

}  // namespace backend
