// Time in which resources are shared: at each moment everyone active gets the max-min fair share of what it needs, and
// rates change when someone begins or ends.
//
//   Fluid fluid;
//   const Fluid::Resource core = fluid.add_resource();             // capacity 1
//   fluid.begin(1.0, {{core}}, [&] { seen.push_back(1); });        // 1 s if alone: both run at half the rate, …
//   fluid.begin(3.0, {{core}}, [&] { seen.push_back(2); });        // … this one alone after 2 s, until 4 s
//   while (fluid.advance()) continue;                              // to the next end; calls back what has ended
//
// An activity *uses* resources, all at its own rate (at most 1) times a weight (what it needs of the resource at rate 1), or
// *takes* a fixed share of them. What is taken goes first, and is never slowed down; the rest is divided by progressive
// filling: all rates grow together until a resource is full, its users stay at that rate, the others go on growing
// (D. Bertsekas and R. Gallager, Data Networks, 1992, section 6.5.2). A resource is never taken whole: its users keep kLeast of it.
#pragma once

#include <cstdint>
#include <functional>
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
  Activity begin(double seconds, std::vector<Demand> demands, std::function<void()> at_end);
  /// From now on it demands this, too.
  void demand(Activity activity, const Demand& demand);
  /// Progress per second at rate 1: less than 1 where something that isn't a resource slows it down.
  void set_speed(Activity activity, double speed);

  [[nodiscard]] double now_s() const { return now_s_; }
  /// Progress per second now.
  [[nodiscard]] double rate(Activity activity);
  /// To the next moment when something ends. False: nothing is active.
  bool advance();

 private:
  struct Running {
    double remaining_s = 0, rate = 1, speed = 1;
    bool fixed = false;
    std::vector<Demand> demands;
    std::function<void()> at_end;
  };
  struct Load {
    double capacity = 1, taken = 0, left = 0;
    double weight = 0;  // of the users that are still growing
    std::uint32_t users = 0;
  };

  void set_rates();
  void add_up_demands();
  [[nodiscard]] double level_of_fullest() const;
  void fix_users_of_full(double level);

  double now_s_ = 0;
  bool rates_hold_ = true;
  std::vector<Load> loads_;         // by resource
  std::vector<Resource> demanded_;  // by anyone now
  std::vector<Running> running_;    // by activity
  std::vector<Activity> active_, free_;
};

}  // namespace sim
