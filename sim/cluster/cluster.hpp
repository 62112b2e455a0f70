// On what: devices, links, and which rank sits where.
//
//   Cluster cluster = load_cluster("cpu_gloo", 2);       // catalog/clusters/cpu_gloo.json, 2 ranks
//   cluster.place[1].device                              // the device instance of rank 1
//
// Several ranks may share a device instance (a core, a GPU): they share its time. Transfers that go through one port of
// the network at the same time share its bandwidth.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/cluster/device.hpp"
#include "sim/units.hpp"

namespace sim {

/// Who moves the bytes of a transfer.
enum class TransferEngine : std::uint8_t {
  receiver,    // the receiving rank's issuing thread copies when it waits (world `local` on CPU)
  background,  // other threads or hardware, while the ranks go on
};

/// What the two ends of a message do to each other beside moving its bytes (sim/simulate/step.hpp).
enum class Transport : std::uint8_t {
  none,
  notify,  // whoever posts first notifies the other end, whose core has to handle that (gloo over TCP)
};

/// How ranks that share a device share its time.
enum class Scheduling : std::uint8_t {
  fair,            // in equal parts (time slices; streams of a GPU)
  run_until_wait,  // one runs until it waits, then the one that has been ready for longest (real-time, SCHED_FIFO)
};

/// α–β: a message of s bytes takes latency + s / bandwidth when alone on the link.
struct Link {
  Seconds latency;
  BytesPerSecond bandwidth;
  TransferEngine engine = TransferEngine::background;
  Transport transport = Transport::none;
  /// Share of each end's core that a running transfer takes from compute (0: hardware moves the bytes, 1: a whole
  /// core).
  double core_share = 0;
  /// All transfers within a node (inter_node: between all nodes) go over this one link: a bus, a loopback. Else every
  /// rank has a full-duplex port of this bandwidth.
  bool shared = false;
};

struct RankPlace {
  std::uint32_t device = 0;  // device instance: ranks with the same number share it
  std::uint32_t node = 0;
};

/// The machine this program runs on.
struct Host {
  std::string cpu;  // "AMD EPYC", as the system calls it; may be empty
  Bytes memory;     // physical
};
Host this_host();

struct Cluster {
  std::string name;
  std::string world;  // "local", "gloo", "nccl"
  Device device;      // all are of one kind
  Link link;          // between any two ranks of a node
  Link inter_node;    // between nodes
  /// Asynchronous devices: one thread of a node issues for all of its ranks (several GPUs in one Python process), so
  /// that their launches take turns. Else every rank has a thread of its own.
  bool one_host_thread = false;
  bool one_launch = false;  // asynchronous devices: a rank's step is launched at once, not instruction by instruction
  Scheduling scheduling = Scheduling::fair;
  std::uint32_t nodes = 1, devices_per_node = 1;
  std::vector<RankPlace> place;  // per rank
  /// Set where the devices are cores of this very machine (a file that leaves devices_per_node open): its ranks share the
  /// physical memory. Elsewhere every device has memory of its own.
  std::optional<Host> host;

  /// What a measurement on such a device is good for: the name of the GPU, or of this machine's CPU.
  [[nodiscard]] const std::string& device_name() const { return host && !host->cpu.empty() ? host->cpu : device.name; }
};

/// Rank r sits on device r modulo the number of devices. `devices_per_node` 0 keeps the file's number (a file for "this
/// machine" leaves it open and takes what is given here). ConfigError when the file doesn't describe a cluster.
Cluster load_cluster(std::string_view name, std::uint32_t ranks, std::uint32_t devices_per_node = 0);

/// The cluster with a network of this rate ("100mbit", "2.5gbit", "unlimited": tc's units) between its ranks; its world
/// gets a name of its own ("gloo@1gbit"), so that measurements of the two are never mixed up. A rate above the link's
/// own changes nothing else. ConfigError for other texts.
Cluster with_network(const Cluster& cluster, const std::string& rate);
/// This machine's accelerator in place of the cluster's: by what its driver calls it and the memory that it has. Rates are
/// the catalog's for that name; for one that it doesn't know, the cluster's own stay and `source` says so.
Cluster with_accelerator(const Cluster& cluster, const std::string& driver_name, Bytes memory);

}  // namespace sim
