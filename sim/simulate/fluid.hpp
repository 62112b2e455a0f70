// Time in which resources are shared: at each moment everyone active gets the max-min fair share of what it needs, and
// rates change when someone begins or ends.
//
//   Fluid fluid;
//   const Fluid::Resource core = fluid.add_resource();             // capacity 1
//   fluid.begin(1.0, {{core}}, [&] { seen.push_back(1); });        // 1 s if alone: both run at half the rate, …
//   fluid.begin(3.0, {{core}}, [&] { seen.push_back(2); });        // … this one alone after 2 s, until 4 s
//   while (fluid.advance()) continue;                              // to the next end; calls back what has ended
//
// An activity *uses* resources, all at its own rate (at most 1) times a weight (what it needs of the resource at rate
// 1), or *takes* a share of them. What is taken goes first: takers are slowed down by takers only, all alike where they
// want more than there is. The rest is divided by progressive filling: all rates grow together until a resource is full,
// its users stay at that rate, the others go on growing (D. Bertsekas and R. Gallager, Data Networks, 1992, section
// 6.5.2). A resource is never taken whole: its users keep kLeast of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace sim {

class Fluid {
 public:
  using Resource = std::uint32_t;
  using Activity = std::uint32_t;
  static constexpr double kLeast = 0.02;

  struct Demand {
    Resource resource = 0;
    double taken = 0;   // 0: uses it
    double weight = 1;  // then
  };

  Resource add_resource(double capacity = 1);

  /// `seconds` at rate 1. `at_end` may begin others.
  Activity begin(double seconds, std::span<const Demand> demands, std::function<void()> at_end);
  Activity begin(double seconds, std::initializer_list<Demand> demands, std::function<void()> at_end) {
    return begin(seconds, std::span(demands.begin(), demands.size()), std::move(at_end));
  }
  /// Adds a demand, from now on; of one that ends at this moment none.
  void demand(Activity activity, const Demand& demand);
  /// Progress per second at rate 1: less than 1 where something that isn't a resource slows it down.
  void set_speed(Activity activity, double speed);

  [[nodiscard]] double now_s() const { return now_s_; }
  /// Progress per second now.
  [[nodiscard]] double rate(Activity activity);
  /// Goes on to the next moment when something ends. False: nothing is active.
  bool advance();

 private:
  struct Running {
    double remaining_s = 0, speed = 1;
    double share = 1;  // rate without the speed
    bool fixed = false;
    bool is_over = false;  // its demands are removed
    std::vector<Demand> demands;
    std::function<void()> at_end;

    [[nodiscard]] double rate() const { return share * speed; }
  };
  /// What is demanded of a resource now.
  struct Load {
    double capacity = 1, taken = 0, weight = 0;
    std::uint32_t takers = 0, users = 0;
    double left = 0, growing_weight = 0;  // while rates are set: of the users whose rate still grows
    std::uint32_t growing = 0;

    [[nodiscard]] double for_users() const { return std::max(kLeast * capacity, capacity - taken); }
    [[nodiscard]] bool is_enough() const { return taken <= capacity && (users == 0 || weight <= for_users()); }
  };

  /// Counts the demand with its resource. False where not all of the resource's users have rate 1 now.
  bool add(const Demand& demand);
  void remove(const Demand& demand);
  void set_rates();
  [[nodiscard]] double level_of_fullest() const;
  void fix_users_of_full(double level);

  double now_s_ = 0;
  bool rates_hold_ = true;
  bool nobody_waits_ = true;        // where rates hold: all have what they need
  std::vector<Load> loads_;         // by resource
  std::vector<Resource> demanded_;  // those with users when rates were set last
  std::vector<Running> running_;    // by activity
  std::vector<Activity> active_, free_;
  std::vector<Activity> ended_, full_;  // of advance and fix_users_of_full: their room is kept
};

}  // namespace sim
