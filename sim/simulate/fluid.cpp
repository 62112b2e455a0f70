#include "sim/simulate/fluid.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace sim {

Fluid::Resource Fluid::add_resource(double capacity) {
  loads_.push_back({.capacity = capacity});
  return static_cast<Resource>(loads_.size() - 1);
}

Fluid::Activity Fluid::begin(double seconds, std::span<const Demand> demands, std::function<void()> at_end) {
  if (free_.empty()) {
    free_.push_back(static_cast<Activity>(running_.size()));
    running_.emplace_back();
  }
  const Activity activity = free_.back();
  free_.pop_back();
  Running& running = running_[activity];
  running.remaining_s = seconds, running.speed = running.share = 1, running.is_over = false;
  running.demands.assign(demands.begin(), demands.end());
  running.at_end = std::move(at_end);
  active_.push_back(activity);
  // Where everyone has what they need, another one changes nobody's rate while there is enough.
  for (const Demand& demand : demands)
    if (!add(demand)) rates_hold_ = false;
  if (!nobody_waits_) rates_hold_ = false;
  return activity;
}

void Fluid::demand(Activity activity, const Demand& demand) {
  if (running_[activity].is_over) return;
  running_[activity].demands.push_back(demand);
  if (!add(demand) || !nobody_waits_) rates_hold_ = false;
}

void Fluid::set_speed(Activity activity, double speed) { running_[activity].speed = speed; }

double Fluid::rate(Activity activity) {
  if (!rates_hold_) set_rates();
  return running_[activity].rate();
}

bool Fluid::advance() {
  if (active_.empty()) return false;
  if (!rates_hold_) set_rates();
  double step_s = std::numeric_limits<double>::infinity();
  for (const Activity activity : active_)
    step_s = std::min(step_s, running_[activity].remaining_s / running_[activity].rate());
  now_s_ += step_s;
  ended_.clear();
  std::erase_if(active_, [&](Activity activity) {
    Running& running = running_[activity];
    const double left_s = running.remaining_s - step_s * running.rate();
    // What ends at the same moment but for rounding ends now.
    const bool over = left_s <= 1e-12 * (running.remaining_s + 1e-3);
    running.remaining_s = left_s;
    if (over) ended_.push_back(activity);
    return over;
  });
  if (!nobody_waits_) rates_hold_ = false;
  for (const Activity activity : ended_) {
    for (const Demand& demand : running_[activity].demands) remove(demand);
    running_[activity].is_over = true;
  }
  for (const Activity activity : ended_) {
    const std::function<void()> at_end = std::move(running_[activity].at_end);
    free_.push_back(activity);
    at_end();
  }
  return true;
}

bool Fluid::add(const Demand& demand) {
  Load& load = loads_[demand.resource];
  if (demand.taken == 0)
    ++load.users, load.weight += demand.weight;
  else
    ++load.takers, load.taken += demand.taken;
  return load.is_enough();
}

void Fluid::remove(const Demand& demand) {
  Load& load = loads_[demand.resource];
  if (demand.taken == 0)
    load.weight = --load.users == 0 ? 0 : load.weight - demand.weight;
  else
    load.taken = --load.takers == 0 ? 0 : load.taken - demand.taken;
}

void Fluid::set_rates() {
  for (const Resource resource : demanded_) loads_[resource].growing = 0;
  demanded_.clear();
  nobody_waits_ = true;
  for (const Activity activity : active_) {
    Running& running = running_[activity];
    running.share = 1, running.fixed = false;
    for (const Demand& demand : running.demands) {
      Load& load = loads_[demand.resource];
      if (demand.taken > 0 && load.taken > load.capacity)
        running.share = std::min(running.share, load.capacity / load.taken), nobody_waits_ = false;
      if (load.growing > 0 || load.users == 0) continue;
      load.left = load.for_users(), load.growing = load.users, load.growing_weight = load.weight;
      demanded_.push_back(demand.resource);
    }
  }
  // Nobody is faster than alone, whatever is left: rate 1.
  for (double level = level_of_fullest(); level < 1; level = level_of_fullest()) {
    fix_users_of_full(level);
    nobody_waits_ = false;
  }
  rates_hold_ = true;
}

/// The rate that all who are still growing reach when the first resource is full.
double Fluid::level_of_fullest() const {
  double level = std::numeric_limits<double>::infinity();
  for (const Resource resource : demanded_)
    if (const Load& load = loads_[resource]; load.growing > 0) level = std::min(level, load.left / load.growing_weight);
  return level;
}

void Fluid::fix_users_of_full(double level) {
  constexpr double kRounding = 1e-12;
  const auto is_full = [&](const Demand& demand) {
    const Load& load = loads_[demand.resource];
    return demand.taken == 0 && load.left / load.growing_weight <= level * (1 + kRounding);
  };
  full_.clear();
  for (const Activity activity : active_)
    if (!running_[activity].fixed && std::ranges::any_of(running_[activity].demands, is_full))
      full_.push_back(activity);
  for (const Activity activity : full_) {
    running_[activity].fixed = true;
    running_[activity].share = std::min(running_[activity].share, level);
    for (const Demand& demand : running_[activity].demands)
      if (demand.taken == 0) {
        Load& load = loads_[demand.resource];
        load.left -= level * demand.weight;
        load.growing_weight -= demand.weight;
        --load.growing;
      }
  }
}

}  // namespace sim
