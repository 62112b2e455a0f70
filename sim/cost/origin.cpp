#include "sim/cost/origin.hpp"

#include <algorithm>
#include <cstdlib>

#include "sim/cluster/world.hpp"
#include "sim/error.hpp"

namespace sim {
namespace {

std::string text_at(const nlohmann::json& environment, const char* pointer) {
  const nlohmann::json::json_pointer path(pointer);
  return environment.contains(path) && environment.at(path).is_string() ? environment.at(path).get<std::string>() : "";
}

/// Whether it is a CPU, by LibTorch's name of the device.
bool is_cpu(const Profile& profile) { return profile.device == "cpu"; }
bool is_accelerator(const Profile& profile) { return profile.device == "cuda" || profile.device == "privateuseone"; }

/// Empty: the cluster doesn't say.
const std::string& device_here(const Cluster& cluster) {
  return cluster.host && !cluster.device.asynchronous ? cluster.host->cpu : cluster.device.driver_name;
}

/// "L2 Unified of 1024K": what a core has of its own in one and not in the other. CPUs
/// of several generations have one name.
std::string other_caches(const Profile& profile, const Host& host) {
  for (const auto& [name, size] : host.caches) {
    const std::string measured = text_at(profile.environment, ("/environment/cpu/caches/" + name).c_str());
    if (!name.starts_with("L3") && !measured.empty() && measured != size)
      return fmt::format("{} of {} there, {} here", name, measured, size);
  }
  return "";
}

void check_device(const Profile& profile, const Cluster& cluster, Origin& origin) {
  const std::string measured = measured_device(profile), &here = device_here(cluster);
  for (const Device& other : cluster.other_kinds)
    if (other.sheet != cluster.device.sheet)
      throw ConfigError(
          "the profile is of one device, '{}', and those of cluster '{}' are of several kinds ({}), each of which "
          "needs "
          "a profile of its own: leave --profile and --cost-model out: the data sheets are used",
          measured.empty() ? profile.device : measured, cluster.name, cluster.device_name());
  const bool on_cpu = !cluster.device.asynchronous;
  const std::string_view word = on_cpu ? "CPU" : "accelerator";
  const bool other_kind = on_cpu ? is_accelerator(profile) : is_cpu(profile);
  const bool is_another = on_cpu ? is_another_cpu(measured, here) : measured != here;
  if (other_kind || (!measured.empty() && !here.empty() && is_another))
    throw ConfigError(
        "the profile was measured on '{}', and cluster '{}' has '{}': calibrate there, or leave --profile and "
        "--cost-model out: the data sheet is used",
        measured.empty() ? profile.device : measured, cluster.name, here.empty() ? cluster.device.name : here);
  std::string doubt;
  if (measured.empty())
    doubt = fmt::format("The profile doesn't say which {} it was measured on", word);
  else if (here.empty())
    doubt = fmt::format(
        "Cluster '{}' doesn't say which {} its '{}' is (driver_name in the device's file), the profile "
        "is of '{}'",
        cluster.name, word, cluster.device.name, measured);
  else if (const std::string caches = cluster.host && on_cpu ? other_caches(profile, *cluster.host) : "";
           !caches.empty())
    doubt = fmt::format("The profile was measured on '{}' with other caches ({})", measured, caches);
  if (doubt.empty()) return;
  origin.sd = kOtherDeviceSd;
  origin.remarks.push_back(doubt + ": it may be another one, and the intervals allow for that.");
}

}  // namespace

std::string measured_device(const Profile& profile) {
  const std::string named = text_at(profile.environment, "/device_name");
  if (!named.empty()) return named;
  if (is_cpu(profile)) return text_at(profile.environment, "/environment/cpu/model");
  return is_accelerator(profile) ? text_at(profile.environment, "/environment/gpus/0/name") : "";
}

Cluster with_measured_accelerator(const Cluster& cluster, const Profile& profile) {
  const std::string name = measured_device(profile);
  if (!cluster.is_this_machine || !cluster.device.asynchronous || !is_accelerator(profile) || name.empty())
    return cluster;
  const std::optional<Device> known = find_device(name);
  Bytes memory = known ? known->memory_capacity : cluster.device.memory_capacity;
  const std::string total = text_at(profile.environment, "/environment/gpus/0/memory.total");  // "81559 MiB"
  if (const double total_MiB = std::atof(total.c_str()); total_MiB > 0 && total.ends_with(" MiB"))
    memory = bytes(total_MiB * 1048576);
  return with_accelerator(cluster, name, memory);
}

Origin check_origin(const Profile& profile, const Cluster& cluster) {
  Origin origin{.has_links = cluster.is_this_machine, .sd = 0, .remarks = {}};
  check_device(profile, cluster, origin);
  if (cluster.place.size() < 2) return origin;
  const bool knows_world = std::ranges::any_of(
      profile.links(), [&](const auto& link) { return is_same_world(link.first.world, cluster.world); });
  const bool knows_network = std::ranges::any_of(profile.links(), [&](const auto& link) {
    return is_same_world(link.first.world, cluster.world) && !link.first.spread.empty();
  });
  if (!origin.has_links)
    origin.remarks.push_back(
        fmt::format("Transfers are forecast from the links that the file of cluster '{}' states: the profile's were "
                    "measured between ranks of one machine, by --world.",
                    cluster.name));
  else if (!knows_world)
    origin.remarks.push_back(
        fmt::format("The profile has no links of world '{}': transfers are forecast from the links that the file of "
                    "cluster '{}' states.",
                    cluster.world, cluster.name));
  else if (cluster.levels.size() > 1 && !knows_network)
    origin.remarks.push_back(
        fmt::format("Transfers over '{}' are forecast from the links that the file of cluster '{}' states: the profile "
                    "has those within '{}'.",
                    cluster.levels.back().name, cluster.name, cluster.levels.front().name));
  return origin;
}

}  // namespace sim
