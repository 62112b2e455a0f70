// What `plan` knows of strategies on one cluster: each is forecast once, on all cores; but none of which one microbatch
// says (sim/plan/bound.hpp) that it isn't among those to be shown.
//
//   const std::vector<Priced> clusters = priced_clusters(options, /*most_ranks=*/8);
//   Search search(options, model, clusters.front());
//   search.look_at({strategy});
//   if (const auto& choice = search.of(strategy).choice) use({choice->step_s});
#pragma once

#include <cstddef>
#include <exception>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "bench/forecasts.hpp"
#include "bench/progress.hpp"
#include "sim/plan/bound.hpp"
#include "sim/plan/method.hpp"
#include "sim/report/result.hpp"

namespace bench {

/// A strategy on a cluster, with its forecast; while it is looked for, without what transfers may be off by.
struct Choice {
  sim::Cell cell;
  double step_s = 0;

  /// Where that isn't known, it is taken to fit.
  [[nodiscard]] bool fits() const { return cell.memory.fits().value_or(true); }
  /// Bytes of the fullest memory.
  [[nodiscard]] std::int64_t needed() const { return cell.memory.needed().value_or(0); }
  /// What a method chooses by, and what the table is sorted by: the forecast itself.
  [[nodiscard]] sim::PlanEstimate estimate() const {
    return {.fits = fits(), .step_s = step_s, .needed_bytes = needed()};
  }
};
/// ConfigError where it can't be played, or priced. `of_transfers`: as sim::forecast's.
Choice choice_of(const sim::Model& model, const sim::Strategy& strategy, const Priced& priced, const Options& options,
                 bool of_transfers = true);

class Search {
 public:
  /// These must outlive it.
  Search(const Options& options, const sim::Model& model, const Priced& priced);

  /// What is known of a strategy.
  struct Found {
    std::optional<Choice> choice;
    std::exception_ptr failure;           // why there is none
    std::optional<sim::StepBound> bound;  // neither: not forecast

    /// The failure is thrown.
    [[nodiscard]] const Choice& value() const;
    /// Whether it is known not to.
    [[nodiscard]] bool is_too_large() const { return choice ? !choice->fits() : bound && !bound->may_fit(); }
  };
  /// Its forecast.
  const Choice& forecast(const sim::Strategy& strategy);
  /// Forecasts all that may be among the fastest that fit, so many as are to be shown or measured.
  void look_at(const std::vector<sim::Strategy>& strategies);
  /// What to try in place of those that are too large, by Method::smaller (nullptr: nothing).
  using Smaller = std::optional<sim::Strategy> (*)(const sim::Model&, const sim::Strategy&);
  std::vector<sim::Strategy> smaller(const std::vector<sim::Strategy>& strategies, Smaller other_of);
  /// Forecasts, of those that are too large, what may need least.
  void find_smallest();
  [[nodiscard]] const Found& of(const sim::Strategy& strategy) const { return found_.at(strategy.text()).found; }

 private:
  struct Entry {
    sim::Strategy strategy;
    Found found;
  };
  void find_out(Entry& entry) const;
  void find_bounds(const std::vector<Entry*>& entries);
  [[nodiscard]] double slowest_to_show() const;
  /// Calls `work` with 0 to count - 1. Where all takes longer than a person waits without a word, it says so. What `work`
  /// throws comes out once all cores have come to an end.
  template <class Work>
  void on_all_cores(std::size_t count, Work work);

  const Options& options_;
  const sim::Model& model_;
  const Priced& priced_;
  std::map<std::string, Entry> found_;  // by text
  std::map<std::string, std::optional<sim::MicrobatchUse>>
      uses_;  // by OneMicrobatch::key; nothing: there is no such step
  Progress progress_;
  double begin_s_;
  std::optional<std::size_t> silent_;  // so many were done before it said anything
  std::size_t done_ = 0, all_ = 0;
};

}  // namespace bench
