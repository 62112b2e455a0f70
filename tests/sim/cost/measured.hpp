// The profiles of bench/results, and the machines that they were measured on: not the one that the tests run on.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "sim/cluster/world.hpp"
#include "sim/cost/origin.hpp"
#include "sim/cost/profile.hpp"
#include "tests/sim/testing.hpp"

namespace sim::testing {

inline Profile committed_profile(const std::string& name) {
  return load_profile(tests_folder() / ".." / "bench" / "results" / (name + ".json"));
}

/// All committed profiles, by file name.
inline std::map<std::string, Profile> committed_profiles() {
  std::map<std::string, Profile> profiles;
  for (const auto& entry : std::filesystem::directory_iterator(tests_folder() / ".." / "bench" / "results"))
    if (const std::string name = entry.path().filename().string(); name.ends_with("profile.json"))
      profiles.emplace(name, load_profile(entry.path()));
  return profiles;
}
/// Those of CPU cores.
inline std::map<std::string, Profile> profiles_of_cores() {
  std::map<std::string, Profile> profiles = committed_profiles();
  std::erase_if(profiles, [](const auto& entry) { return entry.second.device != "cpu"; });
  return profiles;
}

/// All times of an op in a profile's file by a factor.
inline void scale_op(nlohmann::json& op, double factor) {
  for (auto& [world, levels] : op["times"].items())
    for (auto& [busy, times] : levels.items())
      for (const int mean_or_median : {1, 2}) times[mean_or_median] = factor * times[mean_or_median].get<double>();
}

/// The two cores of the profile's machine, in a world; or its GPU.
inline Cluster measured_cluster(const std::string& world, std::uint32_t ranks, const Profile& profile) {
  if (profile.device != "cpu") {
    const Cluster here = machine_cluster(world, profile.device, "", ranks, /*cores=*/1);
    const std::string gpu = profile.environment.at("device_name");
    return with_accelerator(here, gpu, find_device(gpu).value().memory_capacity);
  }
  Cluster cluster = load_cluster("cpu_" + world, ranks, 2);
  cluster.host->cpu = measured_device(profile);
  cluster.host->caches.clear();  // not compared then
  return cluster;
}

}  // namespace sim::testing
