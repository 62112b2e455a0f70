#include "sim/cluster/cluster.hpp"

#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <fstream>

#include "sim/cluster/read.hpp"
#include "sim/error.hpp"

namespace sim {
namespace {

constexpr std::int64_t kMostDevices = 1 << 20;

/// The first is the default.
template <class Value>
Value choice(JsonObject& json, std::string_view key, const std::array<std::pair<std::string_view, Value>, 2>& known) {
  const std::string name = json.text(key, std::string(known[0].first));
  for (const auto& [text, value] : known)
    if (name == text) return value;
  throw ConfigError("{}: unknown {} '{}'; known: {}, {}", json.where(), key, name, known[0].first, known[1].first);
}

Link read_link(JsonObject json) {
  Link link;
  link.latency = read_time_us(json, "latency_us");
  link.bandwidth = gigabytes_per_second(read_rate(json, "bandwidth_GBps"));
  link.core_share = read_share(json, "core_share", 0);
  link.shared = json.boolean("shared", false);
  link.engine = choice<TransferEngine>(
      json, "engine", {{{"background", TransferEngine::background}, {"receiver", TransferEngine::receiver}}});
  link.transport = choice<Transport>(json, "transport", {{{"none", Transport::none}, {"notify", Transport::notify}}});
  static_cast<void>(json.text("source", ""));
  json.finish();
  return link;
}

}  // namespace

Cluster with_accelerator(const Cluster& cluster, const std::string& driver_name, Bytes memory) {
  Cluster own = cluster;
  if (const std::optional<Device> known = find_device(driver_name)) {
    own.device = *known;
  } else {
    own.device.name = own.device.driver_name = driver_name;
    own.device.source = fmt::format("no data sheet of '{}': the rates are {}'s", driver_name, cluster.device.name);
  }
  own.device.memory_capacity = memory;
  return own;
}

Host this_host() {
  Host host;
  host.memory = bytes(static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; host.cpu.empty() && std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      host.cpu = line.substr(line.find(": ") + 2);
  return host;
}

Cluster load_cluster(std::string_view name, std::uint32_t ranks, std::uint32_t devices_per_node) {
  JsonObject file = read_json_file(catalog_file("clusters", "cluster", name));
  check_format(file, "paragauge-cluster", 1, "write it as those of sim/catalog/clusters are");
  Cluster cluster;
  cluster.name = file.text("name");
  static_cast<void>(file.text("description", ""));
  cluster.world = file.text("world");
  cluster.device = load_device(file.text("device"));
  const std::int64_t nodes = file.integer("nodes", 1), listed = file.integer("devices_per_node", 0);
  if (listed < 0 || listed > kMostDevices || nodes < 1 || nodes > kMostDevices)
    throw ConfigError("{}: nodes and devices_per_node must be from 1 to {}", file.where(), kMostDevices);
  cluster.nodes = static_cast<std::uint32_t>(nodes);
  if (listed == 0 && devices_per_node == 0)
    throw ConfigError("{}: devices_per_node is left open; say how many (--devices)", file.where());
  cluster.devices_per_node = devices_per_node != 0 ? devices_per_node : static_cast<std::uint32_t>(listed);
  if (listed == 0 && !cluster.device.asynchronous) cluster.host = this_host();
  cluster.link = read_link(file.object("link"));
  cluster.inter_node = file.has("inter_node") ? read_link(file.object("inter_node")) : cluster.link;
  cluster.one_host_thread = file.boolean("one_host_thread", false);
  cluster.scheduling = choice<Scheduling>(
      file, "scheduling", {{{"fair", Scheduling::fair}, {"run_until_wait", Scheduling::run_until_wait}}});
  file.finish();
  if (ranks == 0) throw ConfigError("cluster '{}': at least 1 rank", cluster.name);
  const std::int64_t all = nodes * cluster.devices_per_node;
  if (all > kMostDevices)
    throw ConfigError("cluster '{}': {} nodes of {} devices; at most {} devices in all", cluster.name, nodes,
                      cluster.devices_per_node, kMostDevices);
  const auto devices = static_cast<std::uint32_t>(all);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t device = rank % devices;
    cluster.place.push_back({device, device / cluster.devices_per_node});
  }
  return cluster;
}

Cluster with_network(const Cluster& cluster, const std::string& rate) {
  constexpr std::pair<std::string_view, double> kUnits[] = {{"kbit", 1e3}, {"mbit", 1e6}, {"gbit", 1e9}};
  double number = 0, bytes_per_s = 0;
  const char* end = rate.data() + rate.size();
  const auto [rest, error] = std::from_chars(rate.data(), end, number, std::chars_format::fixed);
  if (error == std::errc() && number > 0 && std::isfinite(number))
    for (const auto& [unit, bits_per_s] : kUnits)
      if (unit == std::string_view(rest, end)) bytes_per_s = number * bits_per_s / 8;
  constexpr double kMost = 1e12;  // 8000gbit
  if ((bytes_per_s == 0 && rate != "unlimited") || bytes_per_s > kMost)
    throw ConfigError(
        "network={} must be a number with kbit, mbit or gbit (100mbit, 1gbit, 2.5gbit) up to 8000gbit, or unlimited",
        rate);
  Cluster behind = cluster;
  behind.world += "@" + rate;
  const BytesPerSecond bandwidth = gigabytes_per_second(bytes_per_s * 1e-9);
  if (bytes_per_s > 0 && bandwidth < cluster.link.bandwidth) {
    behind.link.bandwidth = bandwidth;
    behind.link.shared = false;  // a full-duplex cable to each rank, no common bus
    behind.inter_node = behind.link;
  }
  return behind;
}

}  // namespace sim
