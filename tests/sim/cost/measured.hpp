// The profiles of bench/results, and the machines that they were measured on: not the one that the tests run on.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "sim/cost/origin.hpp"
#include "sim/cost/profile.hpp"
#include "tests/sim/testing.hpp"

namespace sim::testing {

inline Profile committed_profile(const std::string& name) {
  return load_profile(tests_folder() / ".." / "bench" / "results" / (name + ".json"));
}

/// All times of an op in a profile's file by a factor.
inline void scale_op(nlohmann::json& op, double factor) {
  for (auto& [world, levels] : op["times"].items())
    for (auto& [busy, times] : levels.items())
      for (const int mean_or_median : {1, 2}) times[mean_or_median] = factor * times[mean_or_median].get<double>();
}

/// The two cores of the profile's machine, in a world.
inline Cluster measured_cluster(const std::string& world, std::uint32_t ranks, const Profile& profile) {
  Cluster cluster = load_cluster("cpu_" + world, ranks, 2);
  cluster.host->cpu = measured_device(profile);
  cluster.host->caches.clear();  // not compared then
  return cluster;
}

}  // namespace sim::testing
