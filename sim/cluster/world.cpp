#include "sim/cluster/world.hpp"

#include <algorithm>
#include <array>
#include <set>

namespace sim {
namespace {

constexpr std::array kWorlds{
    WorldKind{.name = "local",
              .description = "one process, a pinned thread per rank; a transfer is a memory copy (CPU: by the receiver "
                             "while it waits; accelerator: on a copy stream)",
              .limits = "one host; all ranks share the first accelerator",
              .processes = false,
              .cpu_cluster = "cpu_local",
              .accelerator_cluster = "h200_local",
              .collectives = {.all_reduce = "direct",
                              .broadcast = "direct",
                              .reduce = "direct",
                              .all_gather = "direct",
                              .reduce_scatter = "direct",
                              .all_to_all = "direct",
                              .scatter = "direct",
                              .gather = "direct"}},
    // The algorithms are gloo's defaults, and alltoallv where it has none that takes parts of different sizes.
    WorldKind{.name = "gloo",
              .description = "a process per rank (spawned, or torchrun's, srun's, mpirun's); c10d's ProcessGroupGloo "
                             "over TCP",
              .limits =
                  "CPU tensors; several hosts' times are on rank 0's host's clock, within half a round trip; when "
                  "a send or recv was done is known no sooner than its wait",
              .processes = true,
              .cpu_cluster = "cpu_gloo",
              .collectives = {.all_reduce = "ring",
                              .broadcast = "tree",
                              .reduce = "ring_gather",
                              .all_gather = "ring",
                              .reduce_scatter = "pairwise",
                              .all_to_all = "pairwise",
                              .scatter = "pairwise",
                              .gather = "pairwise"}},
    // NCCL's tuner takes a ring or a tree for an all_reduce, by the size and the number of nodes.
    WorldKind{.name = "nccl",
              .description = "a process and an accelerator per rank (spawned, or torchrun's, srun's, mpirun's); NCCL",
              .limits =
                  "several hosts' times are on rank 0's host's clock, within half a round trip; messages from one rank "
                  "to another arrive in the order sent",
              .processes = true,
              .on_devices = true,
              .accelerator_cluster = "gpus_nccl",
              .collectives = {.all_reduce = "striped_ring double_tree",
                              .broadcast = "striped_ring",
                              .reduce = "striped_ring",
                              .all_gather = "striped_ring",
                              .reduce_scatter = "striped_ring",
                              .all_to_all = "pairwise",
                              .scatter = "pairwise",
                              .gather = "pairwise"}}};

}  // namespace

const Table<WorldKind>& world_table() {
  static constexpr Table<WorldKind> kTable("world", kWorlds);
  return kTable;
}

const WorldKind& world_kind(std::string_view label) { return world_table().at(label.substr(0, label.find('@'))); }

bool is_same_world(std::string_view label, std::string_view other) {
  const auto without_hosts = [](std::string_view text) {  // "gloo@1gbit" of "gloo@2hosts@1gbit"
    const std::size_t end = text.find("hosts"), begin = text.substr(0, end).rfind('@');
    return end == std::string_view::npos ? std::string(text)
                                         : fmt::format("{}{}", text.substr(0, begin), text.substr(end + 5));
  };
  return without_hosts(label) == without_hosts(other);
}

void check_ranks(const Cluster& cluster) {
  std::set<std::uint32_t> devices;
  for (const RankPlace& place : cluster.place) devices.insert(place.device);
  if (world_kind(cluster.world).on_devices && devices.size() < cluster.place.size())
    throw ConfigError("NCCL takes one rank of a GPU (\"Duplicate GPU detected\"): {} ranks, but '{}' has {} GPU{}",
                      cluster.place.size(), cluster.name, devices.size(), devices.size() == 1 ? "" : "s");
}

void check_device(std::string_view device) {
  static const std::vector<std::string_view> kKnown{"cpu", "cuda", "privateuseone"};
  if (std::ranges::find(kKnown, device) == kKnown.end())
    throw ConfigError("unknown device '{}'; known: {}{}", device, fmt::join(kKnown, ", "),
                      did_you_mean(device, kKnown));
}

Cluster machine_cluster(std::string_view world, std::string_view device, const std::string& network,
                        std::uint32_t ranks, std::uint32_t cores) {
  const WorldKind& kind = world_table().at(world);
  check_device(device);
  const bool is_cpu = device == "cpu";
  const std::string_view file = is_cpu ? kind.cpu_cluster : kind.accelerator_cluster;
  if (file.empty() && is_cpu) throw ConfigError("world '{}' needs an accelerator for each rank: device=cuda", world);
  if (file.empty())
    throw ConfigError("world '{}' moves CPU tensors only; device={} needs world=local or nccl", world, device);
  Cluster cluster = load_cluster(file, ranks, is_cpu ? cores : kind.processes ? ranks : 1);
  cluster.is_this_machine = true;
  return kind.processes && !network.empty() ? with_network(cluster, network) : cluster;
}

void check_network(const std::string& network, const std::vector<std::string>& worlds) {
  bool processes = false;
  for (const std::string& world : worlds) processes |= world_table().at(world).processes;
  if (!network.empty() && !processes)
    throw ConfigError("network={} is for ranks that are processes: world=gloo", network);
}

}  // namespace sim
