#include "sim/simulate/what_if.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/cost/roofline.hpp"
#include "sim/error.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

struct Resource {
  std::string_view name;
  double Scale::*factor;
  double twice_as_good;  // the factor then
};
constexpr std::array<Resource, 5> kResources{{{"flops", &Scale::flops, 2},
                                              {"memory_bandwidth", &Scale::memory_bandwidth, 2},
                                              {"bandwidth", &Scale::bandwidth, 2},
                                              {"latency", &Scale::latency, 0.5},
                                              {"launch", &Scale::launch, 0.5}}};

/// How much longer a work takes: the roofline's time on the device that is scaled once more over that on the device as it
/// was scaled before.
double compute_factor(const Work& work, const Device& device, const Scale& scale, const Scale& before) {
  double now = 0, then = 0;
  for (const KernelTime& kernel : kernels_of(work, device)) {
    now += kernel.seconds(before.flops, before.memory_bandwidth);
    then += kernel.seconds(scale.flops * before.flops, scale.memory_bandwidth * before.memory_bandwidth);
  }
  return now > 0 ? then / now : 1;
}

}  // namespace

Scale parse_scale(std::string_view given) {
  constexpr double kLeast = 1e-6, kMost = 1e6;
  const SpecText text(given, "scale");
  std::vector<std::string_view> names;
  Scale scale;
  for (const Resource& resource : kResources) {
    names.push_back(resource.name);
    scale.*resource.factor = text.number(resource.name, 1, kLeast, kMost);
  }
  if (!text.head().empty())
    throw ConfigError("scale '{}': '{}' is no key=factor; known: {}", given, text.head(),
                      fmt::to_string(fmt::join(names, ", ")));
  text.finish(names);
  return scale;
}

Costs scaled(const Costs& costs, const Program& program, const Cluster& cluster, const Scale& scale,
             const Scale& before) {
  Costs result = costs;
  for (std::size_t work = 0; work < program.works.size(); ++work) {
    const Device& device = cluster.kind(program.works[work].kind);
    const double factor =
        is_on_host(program.works[work], device) ? 1 : compute_factor(program.works[work], device, scale, before);
    for (std::size_t level = 0; level < costs.busy_levels; ++level)
      result.work_s[work * costs.busy_levels + level] *= factor;
  }
  for (TransferCost& transfer : result.transfers) {
    for (double* latency_s :
         {&transfer.latency_s, &transfer.rendezvous.latency_s, &transfer.rendezvous.delivery_s, &transfer.rewriting_s})
      *latency_s *= scale.latency;
    for (double* wire_s : {&transfer.wire_s, &transfer.rendezvous.wire_s}) *wire_s /= scale.bandwidth;
    for (double* host_s : {&transfer.send_overhead_s, &transfer.recv_overhead_s, &transfer.rendezvous.send_overhead_s,
                           &transfer.rendezvous.notification_s})
      *host_s *= scale.launch;
  }
  result.launch_s *= scale.launch;
  for (double& launch_s : result.launch_of_kind) launch_s *= scale.launch;
  for (double& issue_s : result.issue_s) issue_s *= scale.launch;
  return result;
}

std::vector<Sensitivity> sensitivities(const Program& program, const Costs& costs, const Cluster& cluster,
                                       const Scale& scale) {
  const PlacedProgram placed(program, cluster);
  const double base_s = step_time(program, simulate(placed, costs)).step_s;
  std::vector<Sensitivity> result;
  for (const Resource& resource : kResources) {
    Scale once_more;
    once_more.*resource.factor = resource.twice_as_good;
    const Timeline better = simulate(placed, scaled(costs, program, cluster, once_more, scale));
    result.push_back({std::string(resource.name), step_time(program, better).step_s / base_s - 1});
  }
  std::ranges::stable_sort(result, std::greater<>(),
                           [](const Sensitivity& s) { return std::abs(s.change_when_doubled); });
  return result;
}

std::vector<KindLimit> kind_limits(const Program& program, const Cluster& cluster, std::string_view cost_model,
                                   const Profile* profile, const Scale& scale) {
  const std::vector<std::uint32_t> kinds = cluster.kinds_in_use();
  if (kinds.size() < 2) return {};
  const auto step_on = [&](const Cluster& other) {
    const Costs costs = costs_of(program, *make_cost_model(cost_model, other, profile), other);
    return step_time(program, simulate(program, scaled(costs, program, other, scale), other)).step_s;
  };
  const double base_s = step_on(cluster);
  std::uint32_t fastest = kinds.front();
  double least_s = 0;
  for (const std::uint32_t kind : kinds) {
    Cluster all = cluster;
    for (const std::uint32_t other : kinds) all.kind(other) = cluster.kind(kind);
    const double step_s = step_on(all);
    if (kind != kinds.front() && step_s >= least_s) continue;
    fastest = kind, least_s = step_s;
  }
  std::vector<KindLimit> limits;
  for (const std::uint32_t kind : kinds) {
    if (kind == fastest) continue;
    Cluster replaced = cluster;
    replaced.kind(kind) = cluster.kind(fastest);
    KindLimit& limit = limits.emplace_back(KindLimit{cluster.kind(kind).name, cluster.kind(fastest).name});
    for (std::uint32_t rank = 0; rank < program.ranks(); ++rank)
      if (cluster.kind_of(rank) == kind) ++limit.ranks;
    limit.change = step_on(replaced) / base_s - 1;
  }
  std::ranges::stable_sort(limits, {}, &KindLimit::change);
  return limits;
}

}  // namespace sim
