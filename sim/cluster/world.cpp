#include "sim/cluster/world.hpp"

#include <array>

namespace sim {
namespace {

constexpr std::array kWorlds{
    WorldKind{.name = "local",
              .description = "one process, a pinned thread per rank; a transfer is a memory copy (CPU: by the receiver "
                             "while it waits; CUDA: on a copy stream)",
              .limits = "one host; on CUDA all ranks share the first GPU",
              .processes = false,
              .cpu_cluster = "cpu_local",
              .cuda_cluster = "h200_local",
              .all_reduce = "direct",
              .broadcast = "direct"},
    // The algorithms are the defaults of gloo/allreduce.cc and gloo/broadcast.cc.
    WorldKind{.name = "gloo",
              .description = "a process per rank (spawned, or torchrun's); c10d's ProcessGroupGloo over TCP",
              .limits = "CPU tensors; one host, because times are compared on its clock; when a send or recv was done "
                        "is known no sooner than its wait",
              .processes = true,
              .cpu_cluster = "cpu_gloo",
              .all_reduce = "ring",
              .broadcast = "tree"},
    // The algorithms are NCCL's choice inside a node for large arrays.
    WorldKind{.name = "nccl",
              .description = "a process per GPU; NCCL",
              .limits = "predicted only",
              .processes = true,
              .all_reduce = "ring",
              .broadcast = "ring"}};
constexpr std::size_t kOfMachine = 2;

}  // namespace

const Table<WorldKind>& world_table() {
  static constexpr Table<WorldKind> kTable("world", kWorlds);
  return kTable;
}

const Table<WorldKind>& machine_world_table() {
  static constexpr Table<WorldKind> kTable("world", std::span(kWorlds).first<kOfMachine>());
  return kTable;
}

const WorldKind& world_kind(std::string_view label) { return world_table().at(label.substr(0, label.find('@'))); }

Cluster machine_cluster(std::string_view world, std::string_view device, const std::string& network,
                        std::uint32_t ranks, std::uint32_t devices) {
  const WorldKind& kind = machine_world_table().at(world);
  if (device != "cpu" && device != "cuda")
    throw ConfigError("unknown device '{}'; known: cpu, cuda{}", device, did_you_mean(device, {"cpu", "cuda"}));
  const std::string_view file = device == "cpu" ? kind.cpu_cluster : kind.cuda_cluster;
  if (file.empty()) throw ConfigError("world '{}' moves CPU tensors only; device={} needs world=local", world, device);
  const Cluster cluster = load_cluster(file, ranks, devices);
  return kind.processes && !network.empty() ? with_network(cluster, network) : cluster;
}

void check_network(const std::string& network, const std::vector<std::string>& worlds) {
  bool processes = false;
  for (const std::string& world : worlds) processes |= machine_world_table().at(world).processes;
  if (!network.empty() && !processes)
    throw ConfigError("network={} is for ranks that are processes: world=gloo", network);
}

}  // namespace sim
