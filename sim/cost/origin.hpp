// Whether a profile was measured on what it is applied to: the devices, and the links between the ranks.
//
//   const Origin origin = check_origin(profile, cluster);                     // ConfigError: it is another device's
//   if (!origin.has_links) std::cout << origin.remarks.at(0);
//
// A profile's `environment` names its device: the CPU's model and caches, or the GPU as its driver calls it. A
// cluster's is this machine's CPU (Host), or what its device file has as driver_name. Links were measured between ranks
// of one host, so they are those of clusters that are this machine (Cluster::is_this_machine), on the innermost level.
#pragma once

#include <string>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/profile.hpp"

namespace sim {

/// How far times on one CPU are from another one's: standard deviation of ln(time / the other's time). Of 372 ops that
/// profiles of a Xeon and of an EPYC (Zen 5) had in common (until 30 November 2026 in bench/results); of that Xeon and the
/// EPYCs of today's profiles it is 0.35.
constexpr double kOtherDeviceSd = 0.67;

struct Origin {
  bool has_links = false;  // the profile's links are the cluster's, on the innermost level
  double sd = 0;           // of ln(true time / forecast), if it isn't known whether the device is the same one
  std::vector<std::string> remarks;  // what a reader of the forecasts must know; whole sentences
};

/// ConfigError when the profile is of another kind of device, another CPU, or another GPU.
Origin check_origin(const Profile& profile, const Cluster& cluster);

/// This machine's accelerators as the profile that was measured on them has them: what they are, only their driver
/// says. Other clusters stay as they are.
Cluster with_measured_accelerator(const Cluster& cluster, const Profile& profile);

/// The device as the system or the driver calls it; empty: the profile doesn't say.
std::string measured_device(const Profile& profile);

}  // namespace sim
