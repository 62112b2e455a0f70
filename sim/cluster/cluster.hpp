// On what: devices, the levels of the network between them, and which rank sits where.
//
//   Cluster cluster = load_cluster("dgx_a100_pair", 16);   // catalog/clusters/dgx_a100_pair.json, 16 ranks
//   cluster.place[9].device                                // the device instance of rank 9
//   cluster.level_between(0, 9)                            // 1: they meet on the second level, between the nodes
//
// The network is a tree. Devices are the leaves; a group of a level consists of `size` units of the level below
// (devices, on the innermost level), which its link connects, each by as many ports as leave it (a device: by one). A
// message between two devices goes out through the ports of every unit that it leaves and in through those of every
// unit that it enters; what goes through the same ports at the same time shares them. A shared link is a bus instead:
// all that moves inside a group goes over it.
//
// Several ranks may share a device instance (a core, a GPU): they share its time; each has a port of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/cluster/device.hpp"
#include "sim/cluster/nccl.hpp"
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
  /// Instead, where so many units of a group take part: NVLinks that aren't a switch make
  /// other rings among 2 than among 8.
  std::map<std::uint32_t, BytesPerSecond> bandwidth_among = {};
  TransferEngine engine = TransferEngine::background;
  Transport transport = Transport::none;
  /// Share of each end's core that a running transfer takes from compute (0: hardware moves the bytes, 1: a whole
  /// core).
  double core_share = 0;
  /// A bus, a loopback: all that moves inside a group of the level goes over this one link, in whatever direction. Else
  /// every unit has full-duplex ports of this bandwidth.
  bool shared = false;
  /// World nccl, the innermost level: sums and gathers inside a group take these times instead.
  std::optional<NcclTimes> nccl = {};

  [[nodiscard]] BytesPerSecond among(std::uint32_t units) const {
    const auto found = bandwidth_among.find(units);
    return found == bandwidth_among.end() ? bandwidth : found->second;
  }
};

/// The devices under a host bridge, the bridges of a node, the nodes of a rack, …
struct Level {
  std::string name;         // "node"
  std::uint32_t size = 1;   // units of the level below (devices, on the innermost level) in a group of this one
  Link link;                // between them: of one port
  std::uint32_t ports = 1;  // that leave the group, to the level above: the NICs of a node
};

struct RankPlace {
  std::uint32_t device = 0;  // instance: ranks with the same number share it; of a rank with more cores the first
};

/// The machine this program runs on.
struct Host {
  std::string cpu;                            // cpu_name()
  Bytes memory;                               // physical, or what this process may have; 0: its devices have their own
  std::map<std::string, std::string> caches;  // of a core, as the system calls them: "L2 Unified": "512K"
};
Host this_host();
/// "AMD EPYC, family 25, model 17", since several generations have one name; empty: not known.
std::string cpu_name();
/// Whether it is another CPU than this one of cpu_name(), of which an older file has the name alone.
bool is_another_cpu(const std::string& measured, const std::string& here);

/// What a training loop's host does beside launching: the `loop` of a file. Else nothing of it takes time.
struct TrainingLoop {
  /// To get a sample ready (decode, normalise, put into the batch), by the thread that trains: a DataLoader without
  /// workers.
  Seconds sample;
  BytesPerSecond host_to_device;  // of tensors in pageable memory; 0: not known
  /// The optimizer goes from parameter to parameter with several ops for each, as PyTorch's did before 2.0
  /// (foreach=False); else all are updated together.
  bool updates_each = false;
};

struct Cluster {
  std::string name;
  std::string world;                   // "local", "gloo", "nccl"
  Device device;                       // of all, or of several kinds the first one's
  std::vector<Device> other_kinds;     // kinds 1, 2, …, each once
  std::vector<std::uint32_t> kinds;    // by device instance, 0: `device`; empty: all are of one kind
  std::vector<Level> levels{Level()};  // the innermost first; one at least
  std::uint32_t node_level = 0;        // whose groups are hosts: the one that is named "node", else the innermost
  /// Asynchronous devices: one process of a node issues for all of its ranks (several GPUs in one Python process): their
  /// launches take turns, but for those of the backward (HostLanes). Else every rank has a thread of its own.
  bool one_host_thread = false;
  TrainingLoop loop;
  /// What a communicator holds of a device where its buffers lie there (WorldKind::on_devices); unless the file says,
  /// by the link (sim/program/memory.hpp).
  std::optional<Bytes> communicator;
  /// The collective algorithm of every all_reduce (sim/cost/collective), or "nvls"; empty: the fastest of the world's.
  std::string all_reduce;
  bool one_launch = false;  // asynchronous devices: a rank's step is launched at once, not instruction by instruction
  Scheduling scheduling = Scheduling::fair;
  std::vector<RankPlace> place;  // per rank
  /// Set where the devices are cores of this very machine (a file that leaves their number open): its ranks share the
  /// physical memory. Elsewhere every device has memory of its own.
  std::optional<Host> host;
  /// The ranks run on this very machine: cores of it, or the accelerators of a world's own cluster
  /// (sim/cluster/world.hpp). What is measured of its links is theirs.
  bool is_this_machine = false;
  std::vector<std::string> remarks;  // what was taken for granted where the file doesn't say, for people

  [[nodiscard]] const Link& link() const { return levels.front().link; }  // of the innermost level
  [[nodiscard]] std::uint32_t devices() const;
  [[nodiscard]] std::uint32_t nodes() const { return devices() / devices_per_node(); }
  [[nodiscard]] std::uint32_t devices_per_node() const { return devices_in_group(node_level); }
  [[nodiscard]] std::uint32_t devices_in_group(std::size_t level) const;
  /// The group of the level that a device is in, numbered over the whole cluster.
  [[nodiscard]] std::uint32_t group_of(std::uint32_t instance, std::size_t level) const {
    return instance / devices_in_group(level);
  }
  [[nodiscard]] std::uint32_t node_of(std::uint32_t rank) const { return group_of(place[rank].device, node_level); }
  /// The innermost level on which two ranks are in one group.
  [[nodiscard]] std::size_t level_between(std::uint32_t rank, std::uint32_t other) const;
  /// How the members of a collective, or the two ends of a message, lie: by level, from the innermost to the one on
  /// which all are in one group, the most units in one group that have members. {8, 2}: eight on each of two nodes.
  [[nodiscard]] std::vector<std::uint32_t> spread(std::span<const std::uint32_t> ranks) const;

  [[nodiscard]] bool is_mixed() const { return !other_kinds.empty(); }
  [[nodiscard]] const Device& kind(std::uint32_t number) const {
    return number == 0 ? device : other_kinds.at(number - 1);
  }
  [[nodiscard]] Device& kind(std::uint32_t number) { return number == 0 ? device : other_kinds.at(number - 1); }
  /// The kind that a rank sits on.
  [[nodiscard]] std::uint32_t kind_of(std::uint32_t rank) const {
    return kinds.empty() ? 0 : kinds.at(place.at(rank).device);
  }
  [[nodiscard]] const Device& device_of(std::uint32_t rank) const { return kind(kind_of(rank)); }
  /// The kinds that have ranks, ascending.
  [[nodiscard]] std::vector<std::uint32_t> kinds_in_use() const;

  /// What a measurement on such a device is good for: the name of the GPU, or of this machine's CPU. Of several kinds
  /// those that have ranks: "a100-sxm-80g, v100-sxm2-32g".
  [[nodiscard]] std::string device_name() const;
};

/// Rank r sits on device r modulo the number of devices. `devices` is how many there are in a group of the innermost
/// level where the file leaves that open (a file for "this machine", a workstation), or instead of what it says;
/// `open_devices` only where the file leaves it open; 0: not given. Files of version 1 (`nodes`, `devices_per_node`,
/// `link`, `inter_node`) are two levels with one port per node, and sum in rings. ConfigError when the file doesn't
/// describe a cluster.
Cluster load_cluster(std::string_view name, std::uint32_t ranks, std::uint32_t devices = 0,
                     std::uint32_t open_devices = 0);

/// The cluster with ranks of so many threads, each with a core for itself: rank r has `threads` cores from core r ·
/// threads on, all of one node, and its place is the first of them. ConfigError, about the `strategy`, where the
/// cluster hasn't as many cores, and for more than one thread where its devices are no cores.
Cluster with_threads(const Cluster& cluster, std::uint32_t threads, std::string_view strategy);

/// The cluster with a network of this rate ("100mbit", "2.5gbit", "unlimited": tc's units) between its ranks; its world
/// gets a name of its own ("gloo@1gbit"), so that measurements of the two are never mixed up. A rate above the link's
/// own changes nothing else. ConfigError for other texts.
Cluster with_network(const Cluster& cluster, const std::string& rate);
/// So many hosts, each like the `host`, a cluster of one node with the first of the ranks: rank r is where rank
/// r modulo their number is on its host, and `between` connects them, at most at this rate (as with_network's) where one
/// is given. Its world gets a name of its own ("gloo@2hosts", "gloo@2hosts@1gbit"). ConfigError where more ranks than
/// they have places are asked for.
Cluster with_hosts(const Cluster& host, std::uint32_t hosts, std::uint32_t ranks, const Link& between,
                   const std::string& rate = "");
/// This machine's accelerator in place of the cluster's: by what its driver calls it and the memory that it has. Rates
/// are the catalog's for that name; for one that it doesn't know, the cluster's own stay and `source` says so.
Cluster with_accelerator(const Cluster& cluster, const std::string& driver_name, Bytes memory);

}  // namespace sim
