// A cluster file of machines that are there, by what was found of them.
//
//   FoundCluster found = cluster_of_found({{.name = "a", .gpus = {{.name = "NVIDIA H200"}}, .nics = {{"eth0", 10}}}}, "nccl", "box");
//   write_text_file("box.json", found.text);           // load_cluster reads it, unless something is missing
//   for (const std::string& what : found.missing) fmt::print("{}\n", what);
//
// Nothing is invented: what nobody knows is missing, and every number's origin stands beside it (`source`): a data
// sheet's of sim/catalog/devices, what was measured, what a driver says, or a guess from what another machine reached.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace sim {

/// A GPU as its driver describes it. 0: it doesn't say.
struct FoundGpu {
  std::string name;       // "NVIDIA H200"
  double memory_GiB = 0;  // in all
  std::uint32_t pcie_gen = 0, pcie_lanes = 0;
  double nvlink_GBps = 0;  // of all its links, each direction; 0: it has none
};

/// A network card.
struct FoundNic {
  std::string name;
  double gigabits = 0;     // each direction; 0: its driver doesn't say
  bool has_verbs = false;  // InfiniBand or RoCE, which NCCL uses rather than TCP
};

/// A core as it was measured with all others at work. 0: it wasn't.
struct FoundCore {
  double f32_GFLOPps = 0, f64_GFLOPps = 0, bf16_GFLOPps = 0;  // of large matrix products
  double memory_GBps = 0;                                     // read and written by a copy that no cache holds
};

struct FoundHost {
  std::string name, cpu;
  std::uint32_t cores = 1, sockets = 1;  // cores that a program may use
  double memory_GiB = 0;
  FoundCore core;
  std::vector<FoundGpu> gpus;
  std::vector<FoundNic> nics;  // that are up
  std::string meets_over;      // the one through which TCP reaches the other hosts; empty: not known
};

struct FoundCluster {
  std::string text;                  // JSON: a cluster file
  std::vector<std::string> origins;  // "guess: …", for people: what is in it and how it is known
  std::vector<std::string> missing;  // what somebody must add before it can be read; else empty
};

/// World `nccl` of their GPUs, or `gloo` of their CPU cores. Of hosts with different numbers of devices, each is listed
/// with the least. `name`: the cluster's. ConfigError for another world, no hosts, and for a host without a GPU.
FoundCluster cluster_of_found(const std::vector<FoundHost>& hosts, std::string_view world, std::string_view name);

}  // namespace sim
