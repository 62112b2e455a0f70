#include "bench/search.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <limits>
#include <set>
#include <utility>

#include "bench/commands.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/fold.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/what_if.hpp"

namespace bench {
namespace {

bool knows_workspaces(const Options& options) {
  return sim::cost_model_table().at(options.cost_models.at(0)).needs_profile;
}

struct Placed {
  sim::Program program;
  sim::Cluster cluster;
};
Placed place(const sim::Model& model, const sim::Strategy& strategy, const Priced& priced) {
  sim::Program program = sim::lower(model, strategy);
  sim::Cluster cluster = priced.of(program);
  program = sim::fold_many(std::move(program), cluster);
  return {std::move(program), std::move(cluster)};
}

/// Nothing where there is no such step.
std::optional<sim::MicrobatchUse> use_of(const sim::Model& model, const sim::OneMicrobatch& one, const Priced& priced,
                                         const Options& options) try {
  const auto [program, cluster] = place(one.of(model), one.strategy, priced);
  if (program.is_periodic()) return std::nullopt;
  const sim::CostModel& cost_model = *priced.cost_models.at(options.cost_models.at(0));
  sim::Costs costs = scaled(costs_of(program, cost_model, cluster), program, cluster, sim::parse_scale(options.scale));
  if (!knows_workspaces(options)) costs.workspace_bytes.clear();
  return sim::MicrobatchUse(program, costs, cluster);
} catch (const sim::ConfigError&) {  // its forecast says why
  return std::nullopt;
}

}  // namespace

Choice choice_of(const sim::Model& model, const sim::Strategy& strategy, const Priced& priced, const Options& options,
                 bool of_transfers) {
  const auto [program, cluster] = place(model, strategy, priced);
  const std::string& cost_model = options.cost_models.at(0);
  const sim::Forecast f = sim::forecast(program, cluster, *priced.cost_models.at(cost_model),
                                        sim::parse_scale(options.scale), of_transfers);
  Choice choice;
  sim::Result one;
  sim::Cell& cell = one.cell(program, where_is(cluster, options));
  sim::Round round;
  round.add_forecast(cost_model, f);
  cell.spreads[cost_model] = f.spreads;
  sim::place(cell, program, cluster,
             knows_workspaces(options) ? std::span<const double>(f.costs.workspace_bytes) : std::span<const double>());
  cell.rounds.push_back(round);
  choice.cell = std::move(cell);
  choice.step_s = f.step.step_s;
  return choice;
}

Search::Search(const Options& options, const sim::Model& model, const Priced& priced)
    : options_(options), model_(model), priced_(priced), progress_("plan"), begin_s_(steady_s()) {}

const Choice& Search::Found::value() const {
  if (failure) std::rethrow_exception(failure);
  return choice.value();
}

template <class Work>
void Search::on_all_cores(std::size_t count, Work work) {
  constexpr double kPatience_s = 4;
  std::atomic<std::size_t> next = 0;
  const auto go_on = [&](bool says) {
    for (std::size_t k = next++; k < count; k = next++) {
      work(k);
      if (!says || steady_s() - begin_s_ < kPatience_s) continue;
      if (!silent_) progress_.begin(fmt::format("{} candidates", all_), 0, 1);
      silent_ = silent_.value_or(done_ + k);
      progress_.at(fmt::to_string(done_ + k + 1), static_cast<double>(done_ + k - *silent_),
                   static_cast<double>(all_ - *silent_));
    }
  };
  std::vector<std::future<void>> helpers;
  for (std::size_t t = 1; t < std::min<std::size_t>(sim::usable_cores(), count); ++t)
    helpers.push_back(std::async(std::launch::async, go_on, false));
  go_on(true);
  for (std::future<void>& helper : helpers) helper.get();
  done_ += count;
}

void Search::find_out(Entry& entry) const {
  try {
    entry.found.choice = choice_of(model_, entry.strategy, priced_, options_, /*of_transfers=*/false);
  } catch (...) {
    entry.found.failure = std::current_exception();
  }
}

const Choice& Search::forecast(const sim::Strategy& strategy) {
  Entry& entry = found_.try_emplace(strategy.text(), Entry{strategy, {}}).first->second;
  if (!entry.found.choice && !entry.found.failure) find_out(entry);
  return entry.found.value();
}

void Search::find_bounds(const std::vector<Entry*>& entries) {
  std::vector<std::pair<sim::OneMicrobatch, std::optional<sim::MicrobatchUse>*>> open;
  std::map<const Entry*, const std::optional<sim::MicrobatchUse>*> use;
  for (const Entry* entry : entries)
    if (std::optional<sim::OneMicrobatch> one = sim::one_microbatch(model_, entry->strategy)) {
      const auto [known, is_new] = uses_.try_emplace(one->key);
      use[entry] = &known->second;
      if (is_new) open.emplace_back(std::move(*one), &known->second);
    }
  all_ += open.size();
  on_all_cores(open.size(), [&](std::size_t k) { *open[k].second = use_of(model_, open[k].first, priced_, options_); });
  for (Entry* entry : entries)
    if (const auto known = use.find(entry); known != use.end() && *known->second)
      entry->found.bound = (*known->second)->bound(entry->strategy);
}

/// Of so many of those that fit as are to be shown, each with another forecast.
double Search::slowest_to_show() const {
  std::set<std::pair<double, std::int64_t>> fitting;
  for (const auto& [text, entry] : found_)
    if (entry.found.choice && entry.found.choice->fits())
      fitting.insert({entry.found.choice->step_s, entry.found.choice->needed()});
  const std::size_t shown = std::max<std::size_t>(options_.top, options_.measure);
  return fitting.size() < shown ? std::numeric_limits<double>::infinity()
                                : std::next(fitting.begin(), shown - 1)->first;
}

void Search::look_at(const std::vector<sim::Strategy>& strategies) {
  constexpr std::size_t kAtOnce = 32;  // whatever the number of cores, so that all find the same
  std::vector<Entry*> open;
  for (const sim::Strategy& strategy : strategies)
    if (const auto [known, is_new] = found_.try_emplace(strategy.text(), Entry{strategy, {}}); is_new)
      open.push_back(&known->second);
  all_ += open.size();
  find_bounds(open);
  std::ranges::stable_sort(open, {}, [](const Entry* e) { return e->found.bound ? e->found.bound->step_s : 0; });
  for (auto begin = open.begin(); begin != open.end();) {
    const double slowest = slowest_to_show();
    std::vector<Entry*> next;
    for (; begin != open.end() && next.size() < kAtOnce; ++begin) {
      const std::optional<sim::StepBound>& bound = (*begin)->found.bound;
      if (bound && (bound->step_s > slowest || !bound->may_fit()))
        ++done_;
      else
        next.push_back(*begin);
    }
    on_all_cores(next.size(), [&](std::size_t k) { find_out(*next[k]); });
  }
}

std::vector<sim::Strategy> Search::smaller(const std::vector<sim::Strategy>& strategies, Smaller other_of) {
  std::vector<const sim::Strategy*> too_large;
  for (const sim::Strategy& strategy : strategies)
    if (other_of != nullptr && of(strategy).is_too_large()) too_large.push_back(&strategy);
  std::vector<std::optional<sim::Strategy>> others(too_large.size());
  all_ += others.size();
  on_all_cores(others.size(), [&](std::size_t k) { others[k] = other_of(model_, *too_large[k]); });
  std::vector<sim::Strategy> found;
  for (std::optional<sim::Strategy>& other : others)
    if (other) found.push_back(std::move(*other));
  return found;
}

void Search::find_smallest() {
  std::vector<Entry*> open;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (auto& [text, entry] : found_) {
    const Found& found = entry.found;
    if (found.choice && !found.choice->fits()) least = std::min(least, found.choice->needed());
    if (!found.choice && !found.failure && found.is_too_large()) open.push_back(&entry);
  }
  std::ranges::stable_sort(open, {}, [](const Entry* e) { return e->found.bound->needed_bytes; });
  for (Entry* entry : open) {
    if (entry->found.bound->needed_bytes >= least) break;
    find_out(*entry);
    if (entry->found.choice) least = std::min(least, entry->found.choice->needed());
  }
}

}  // namespace bench
