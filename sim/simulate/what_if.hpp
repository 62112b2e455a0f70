// What if the machine were another one: faster arithmetic, memory, links, launches.
//
//   const Scale scale = parse_scale("bandwidth=2,latency=0.5,flops=4");
//   Timeline timeline = simulate(program, scaled(costs, program, cluster, scale), cluster);
//   for (const Sensitivity& s : sensitivities(program, costs, cluster))
//     fmt::print("{}: {:+.0f} %\n", s.resource, 100 * s.change_when_doubled);
//
// A measured duration is scaled as the roofline of the cluster's device says: an op that moves bytes for longer than it
// computes gets faster with memory bandwidth, not with FLOP/s; in between, until the other one limits it.
// Assumes: the efficiency of an op doesn't depend on the machine's speed; sharing and order stay as they are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/program/program.hpp"

namespace sim {

/// Factors, 1 = this machine. `flops`, `memory_bandwidth`, `bandwidth` are speeds (2: twice as fast); `latency` and
/// `launch` are times (2: twice as long).
struct Scale {
  double flops = 1, memory_bandwidth = 1;  // of every device
  double bandwidth = 1, latency = 1;       // of every link
  double launch = 1;                       // host time to issue an instruction

  [[nodiscard]] bool is_identity() const { return *this == Scale(); }
  friend bool operator==(const Scale&, const Scale&) = default;
};

/// "bandwidth=2,latency=0.5,flops=4". ConfigError for other keys and for factors outside 1e-6…1e6.
Scale parse_scale(std::string_view text);

/// `before`: what the costs have been scaled by already.
Costs scaled(const Costs& costs, const Program& program, const Cluster& cluster, const Scale& scale,
             const Scale& before = {});

struct Sensitivity {
  std::string resource;            // "flops", …: the keys of Scale
  double change_when_doubled = 0;  // of the step time, when the resource is twice as good: −0.14
};
/// Every resource by itself; the largest effect first. `scale`: what the costs have been scaled by.
std::vector<Sensitivity> sensitivities(const Program& program, const Costs& costs, const Cluster& cluster,
                                       const Scale& scale = {});

/// Of a cluster with devices of several kinds: what their difference costs a step.
struct KindLimit {
  std::string slower, faster;  // devices' names
  std::uint32_t ranks = 0;     // on the slower
  double change = 0;           // of the step time, with the faster kind in the slower one's places: −0.31
};
/// The kinds that the program's ranks sit on, but for the fastest: the one with which the step is shortest where all of
/// them have it. The one that costs most first; nothing where all are of one kind. `cost_model`, `profile`: as for
/// make_cost_model. Assumes: the links stay.
std::vector<KindLimit> kind_limits(const Program& program, const Cluster& cluster, std::string_view cost_model,
                                   const Profile* profile = nullptr, const Scale& scale = {});

}  // namespace sim
