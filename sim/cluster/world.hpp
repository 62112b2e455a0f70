// Worlds: how the ranks of a cluster run and talk. This is the one list of them; backend/world/ makes the real ones.
//
//   const WorldKind& gloo = world_kind("gloo@1gbit");       // a label may name a network, too
//   machine_cluster("gloo", "cpu", "1gbit", 2, 2)           // this machine in that world, with 2 ranks on 2 cores
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/table.hpp"

namespace sim {

struct WorldKind {
  std::string_view name;
  std::string_view description;  // one line
  std::string_view limits;
  bool processes = false;                      // a rank is a process, not a thread
  std::string_view cpu_cluster, cuda_cluster;  // files of catalog/clusters that describe this machine; empty: none
  std::string_view all_reduce, broadcast;      // algorithms of collective_table()
};

const Table<WorldKind>& world_table();
/// Those that this machine can run, if it has what they need: what `--world` takes.
const Table<WorldKind>& machine_world_table();

/// The kind of a world by its label, which names a network behind an '@'. ConfigError for an unknown one.
const WorldKind& world_kind(std::string_view label);

/// This machine as the cluster of a world: `device` is "cpu" or "cuda", and there are `devices` of them. A `network` of
/// some rate lies between ranks that are processes. ConfigError for an unknown world, device or rate, and for a device
/// that the world hasn't.
Cluster machine_cluster(std::string_view world, std::string_view device, const std::string& network,
                        std::uint32_t ranks, std::uint32_t devices);
/// ConfigError unless there is none, or a world that it can be for.
void check_network(const std::string& network, const std::vector<std::string>& worlds);

}  // namespace sim
