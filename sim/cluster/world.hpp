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

/// Names of sim/cost/collective's algorithms by kind; where there are several, blanks between them, the world takes the
/// fastest for the size.
struct WorldCollectives {
  std::string_view all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, scatter, gather;
};

struct WorldKind {
  std::string_view name;
  std::string_view description;  // one line
  std::string_view limits;
  bool processes = false;  // a rank is a process, not a thread
  /// What moves the bytes runs on the devices: it has buffers there, and takes one rank of each.
  bool on_devices = false;
  std::string_view cpu_cluster, accelerator_cluster;  // files of catalog/clusters for this machine; empty: none
  WorldCollectives collectives;
};

const Table<WorldKind>& world_table();

/// The kind of a world by its label, which names a network behind an '@'. ConfigError for an unknown one.
const WorldKind& world_kind(std::string_view label);

/// Whether what moves between ranks is the same but for how many hosts there are: "gloo@2hosts" and "gloo@4hosts", or
/// "gloo@2hosts@1gbit" and "gloo@4hosts@1gbit".
bool is_same_world(std::string_view label, std::string_view other);

/// ConfigError where no step can run there: NCCL takes one rank of a GPU.
void check_ranks(const Cluster& cluster);

/// ConfigError unless it is "cpu", "cuda" or "privateuseone": LibTorch's name for a device that a library brings.
void check_device(std::string_view device);

/// This machine as the cluster of a world: `device` as above, of which there are `cores` if it is "cpu". In one process
/// all ranks share the first accelerator; processes have one each. A `network` of some rate lies between ranks that are
/// processes. ConfigError for an unknown world, device or rate, and for a device that the world hasn't.
Cluster machine_cluster(std::string_view world, std::string_view device, const std::string& network,
                        std::uint32_t ranks, std::uint32_t cores);
/// ConfigError unless there is none, or a world that it can be for.
void check_network(const std::string& network, const std::vector<std::string>& worlds);

}  // namespace sim
