#include "sim/simulate/fluid.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace sim {

Fluid::Resource Fluid::add_resource(double capacity) {
  loads_.push_back({.capacity = capacity});
  return static_cast<Resource>(loads_.size() - 1);
}

Fluid::Activity Fluid::begin(double seconds, std::vector<Demand> demands, std::function<void()> at_end) {
  if (free_.empty()) {
    free_.push_back(static_cast<Activity>(running_.size()));
    running_.emplace_back();
  }
  const Activity activity = free_.back();
  free_.pop_back();
  running_[activity] = {.remaining_s = seconds, .demands = std::move(demands), .at_end = std::move(at_end)};
  active_.push_back(activity);
  rates_hold_ = false;
  return activity;
}

void Fluid::demand(Activity activity, const Demand& demand) {
  running_[activity].demands.push_back(demand);
  rates_hold_ = false;
}

void Fluid::set_speed(Activity activity, double speed) {
  running_[activity].speed = speed;
  rates_hold_ = false;
}

double Fluid::rate(Activity activity) {
  if (!rates_hold_) set_rates();
  return running_[activity].rate;
}

bool Fluid::advance() {
  if (active_.empty()) return false;
  if (!rates_hold_) set_rates();
  double step_s = std::numeric_limits<double>::infinity();
  for (const Activity activity : active_)
    step_s = std::min(step_s, running_[activity].remaining_s / running_[activity].rate);
  now_s_ += step_s;
  std::vector<Activity> ended;
  std::erase_if(active_, [&](Activity activity) {
    Running& running = running_[activity];
    const double left_s = running.remaining_s - step_s * running.rate;
    // What ends at the same moment but for rounding ends now.
    const bool over = left_s <= 1e-12 * (running.remaining_s + 1e-3);
    running.remaining_s = left_s;
    if (over) ended.push_back(activity);
    return over;
  });
  rates_hold_ = false;
  for (const Activity activity : ended) {
    const std::function<void()> at_end = std::move(running_[activity].at_end);
    free_.push_back(activity);
    at_end();
  }
  return true;
}

void Fluid::set_rates() {
  add_up_demands();
  // Nobody is faster than alone, whatever is left: rate 1.
  for (double level = level_of_fullest(); level < 1; level = level_of_fullest()) fix_users_of_full(level);
  for (const Activity activity : active_) running_[activity].rate *= running_[activity].speed;
  rates_hold_ = true;
}

void Fluid::add_up_demands() {
  for (const Resource resource : demanded_)
    loads_[resource].taken = loads_[resource].weight = 0, loads_[resource].users = 0;
  demanded_.clear();
  for (const Activity activity : active_) {
    Running& running = running_[activity];
    running.rate = 1;
    running.fixed = false;
    for (const Demand& demand : running.demands) {
      Load& load = loads_[demand.resource];
      if (load.taken == 0 && load.users == 0) demanded_.push_back(demand.resource);
      load.taken += demand.taken;
      if (demand.taken == 0) ++load.users, load.weight += demand.weight;
    }
  }
  for (const Resource resource : demanded_) {
    Load& load = loads_[resource];
    load.left = std::max(kLeast * load.capacity, load.capacity - load.taken);
  }
}

/// The rate that all who are still growing reach when the first resource is full.
double Fluid::level_of_fullest() const {
  double level = std::numeric_limits<double>::infinity();
  for (const Resource resource : demanded_)
    if (const Load& load = loads_[resource]; load.users > 0) level = std::min(level, load.left / load.weight);
  return level;
}

void Fluid::fix_users_of_full(double level) {
  constexpr double kRounding = 1e-12;
  const auto is_full = [&](const Demand& demand) {
    const Load& load = loads_[demand.resource];
    return demand.taken == 0 && load.left / load.weight <= level * (1 + kRounding);
  };
  std::vector<Activity> full;
  for (const Activity activity : active_)
    if (!running_[activity].fixed && std::ranges::any_of(running_[activity].demands, is_full)) full.push_back(activity);
  for (const Activity activity : full) {
    running_[activity].fixed = true;
    running_[activity].rate = level;
    for (const Demand& demand : running_[activity].demands)
      if (demand.taken == 0) {
        Load& load = loads_[demand.resource];
        load.left -= level * demand.weight;
        load.weight -= demand.weight;
        --load.users;
      }
  }
}

}  // namespace sim
