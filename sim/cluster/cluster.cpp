#include "sim/cluster/cluster.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <fstream>
#include <map>
#include <ranges>
#include <set>

#include "sim/cluster/allowance.hpp"
#include "sim/cluster/read.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"
#include "sim/text/system_file.hpp"

namespace sim {
namespace {

constexpr std::int64_t kMostDevices = 1 << 20;

/// The first is the default.
template <class Value, std::size_t count>
Value choice(JsonObject& json, std::string_view key, const std::pair<std::string_view, Value> (&known)[count]) {
  const std::string name = json.text(key, std::string(known[0].first));
  std::vector<std::string_view> names;
  for (const auto& [text, value] : known) {
    if (name == text) return value;
    names.push_back(text);
  }
  throw ConfigError("{}: unknown {} '{}'; known: {}", json.where(), key, name, fmt::join(names, ", "));
}

/// A key of what depends on the number of members.
std::uint32_t members_of(const JsonObject& json, const std::string& key) {
  std::uint32_t members = 0;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), members);
  if (error != std::errc() || end != key.data() + key.size() || members < 2)
    throw ConfigError("{}: '{}' is no number of members (2, 3, …)", json.where(), key);
  return members;
}

std::vector<NcclMeasurement> read_measured(JsonObject& nccl) {
  std::vector<NcclMeasurement> measured;
  for (JsonObject& among : nccl.objects("all_reduce")) {
    const std::int64_t members = among.integer("members");
    const std::vector<double> MiB = among.numbers("MiB"), us = among.numbers("us");
    if (MiB.size() != us.size()) throw ConfigError("{}: {} of MiB, but {} of us", among.where(), MiB.size(), us.size());
    if (members < 2 || members > kMostDevices)
      throw ConfigError("{}: members={} must be from 2 to {}", among.where(), members, kMostDevices);
    for (std::size_t i = 0; i < MiB.size(); ++i) {
      if (!(MiB[i] > 0 && MiB[i] <= kMostSize && us[i] > 0 && us[i] <= kLongest_us))
        throw ConfigError("{}: {} MiB in {} us: must be more than 0, and finite", among.where(), MiB[i], us[i]);
      measured.push_back({static_cast<std::uint32_t>(members), mebibytes(MiB[i]).base(), us[i] * 1e-6});
    }
    among.finish();
  }
  return measured;
}

/// In GB/s, at most so many: several times those of the fastest link that there is (NVLink 5: 1800 GB/s).
BytesPerSecond read_bandwidth(JsonObject& json, std::string_view key) {
  constexpr double kMost_GBps = 1e5;
  return gigabytes_per_second(read_rate_up_to(kMost_GBps, json, key));
}

NcclTimes read_nccl(JsonObject json, std::vector<std::string>& remarks) {
  std::map<std::uint32_t, std::uint32_t> rings;
  if (json.has("rings_among")) {
    JsonObject among = json.object("rings_among");
    for (const std::string& key : among.keys()) {
      const std::int64_t count = among.integer(key);
      if (count < 1 || count > kMostDevices)
        throw ConfigError("{}: {}={} must be from 1 to {}", among.where(), key, count, kMostDevices);
      rings[members_of(among, key)] = static_cast<std::uint32_t>(count);
    }
    among.finish();
  }
  NcclTimes times;
  if (json.has("all_reduce")) {
    const std::vector<NcclMeasurement> measured = read_measured(json);
    try {
      times = fit_nccl(measured, rings);
    } catch (const ConfigError& error) {
      throw ConfigError("{}: {}", json.where(), error.what());
    }
    std::set<std::uint32_t> members;
    for (const NcclMeasurement& m : measured) members.insert(m.members);
    remarks.push_back(
        fmt::format("NCCL's rings are fitted to {} published all_reduces among {} GPUs, from which the fit is {:.1f} % "
                    "off on average",
                    measured.size(), fmt::join(members, ", "), 100 * error_of(times, measured)));
  } else {
    times.rings = std::move(rings);
    times.base = read_time_us(json, "base_us");
    times.per_ring = read_bandwidth(json, "ring_GBps");
    if (json.has("local_GBps")) times.local = read_bandwidth(json, "local_GBps");
    JsonObject hops = json.object("hop_us");
    for (std::size_t p = 0; p < kNcclProtocols.size(); ++p)
      if (hops.has(kNcclProtocols[p].name)) times.hop[p] = read_time_us(hops, kNcclProtocols[p].name);
    if (hops.keys().empty()) throw ConfigError("{}: no protocol; known: ll, ll128, simple", hops.where());
    hops.finish();
  }
  if (json.has("nvls")) {
    JsonObject nvls = json.object("nvls");
    times.nvls = {.base = read_time_us(nvls, "base_us"), .bandwidth = read_bandwidth(nvls, "bandwidth_GBps")};
    nvls.finish();
  }
  static_cast<void>(json.text("source", ""));
  json.finish();
  return times;
}

Link read_link(JsonObject json, std::vector<std::string>& remarks) {
  Link link;
  link.latency = read_time_us(json, "latency_us");
  link.bandwidth = read_bandwidth(json, "bandwidth_GBps");
  if (json.has("bandwidth_among_GBps")) {
    JsonObject among = json.object("bandwidth_among_GBps");
    for (const std::string& key : among.keys())
      link.bandwidth_among[members_of(among, key)] = read_bandwidth(among, key);
    among.finish();
  }
  if (json.has("nccl")) link.nccl = read_nccl(json.object("nccl"), remarks);
  link.core_share = read_share(json, "core_share", 0);
  link.shared = json.boolean("shared", false);
  link.engine = choice<TransferEngine>(
      json, "engine", {{"background", TransferEngine::background}, {"receiver", TransferEngine::receiver}});
  link.transport = choice<Transport>(json, "transport", {{"none", Transport::none}, {"notify", Transport::notify}});
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

namespace {
constexpr const char* kFamily = ", family ";
}

std::string cpu_name() {
  const auto here = [](std::string_view key) { return field("/proc/cpuinfo", key); };
  const std::optional<std::string> name = here("model name"), family = here("cpu family"), model = here("model\t");
  if (!name || !family || !model) return name.value_or("");
  return fmt::format("{}{}{}, model {}", *name, kFamily, *family, *model);
}

bool is_another_cpu(const std::string& measured, const std::string& here) {
  return measured != here && !here.starts_with(measured + kFamily);
}

Host this_host() {
  Host host;
  host.memory = bytes(usable_memory());
  host.cpu = cpu_name();
  constexpr int kMostCaches = 5;
  for (int index = 0; index < kMostCaches; ++index) {
    const std::string folder = fmt::format("/sys/devices/system/cpu/cpu0/cache/index{}/", index);
    std::ifstream level_file(folder + "level"), type_file(folder + "type"), size_file(folder + "size");
    std::string level, type, size;
    if (level_file >> level && type_file >> type && size_file >> size)
      host.caches[fmt::format("L{} {}", level, type)] = size;
  }
  return host;
}

std::vector<std::uint32_t> Cluster::kinds_in_use() const {
  std::set<std::uint32_t> used;
  for (std::uint32_t rank = 0; rank < place.size(); ++rank) used.insert(kind_of(rank));
  return {used.begin(), used.end()};
}

std::string Cluster::device_name() const {
  if (host && !host->cpu.empty()) return host->cpu;
  if (!is_mixed()) return device.name;
  std::vector<std::string> names;
  for (const std::uint32_t number : kinds_in_use()) names.push_back(kind(number).name);
  return fmt::to_string(fmt::join(names, ", "));
}

std::uint32_t Cluster::devices() const { return devices_in_group(levels.size() - 1); }

std::uint32_t Cluster::devices_in_group(std::size_t level) const {
  std::uint32_t product = 1;
  for (std::size_t l = 0; l <= level; ++l) product *= levels[l].size;
  return product;
}

std::size_t Cluster::level_between(std::uint32_t rank, std::uint32_t other) const {
  std::uint32_t a = place[rank].device, b = place[other].device;
  std::size_t level = 0;
  for (; level + 1 < levels.size() && a / levels[level].size != b / levels[level].size; ++level)
    a /= levels[level].size, b /= levels[level].size;
  return level;
}

std::vector<std::uint32_t> Cluster::spread(std::span<const std::uint32_t> ranks) const {
  std::vector<std::uint32_t> most, units;  // units of the level below that have members
  for (const std::uint32_t rank : ranks) units.push_back(place[rank].device);
  for (const Level& level : levels) {
    std::map<std::uint32_t, std::uint32_t> in_group;
    for (const std::uint32_t unit : units) ++in_group[unit / level.size];
    most.push_back(std::ranges::max(in_group | std::views::values));
    units.clear();
    for (const auto& [group, count] : in_group) units.push_back(group);
    if (units.size() == 1) break;
  }
  return most;
}

namespace {

/// "node 8 x network 2".
std::string text_of(const std::vector<Level>& levels) {
  std::vector<std::string> sizes;
  for (const Level& level : levels) sizes.push_back(fmt::format("{} {}", level.name, level.size));
  return fmt::to_string(fmt::join(sizes, " x "));
}

/// ConfigError when there are too many devices to number.
void check_size(const Cluster& cluster) {
  std::uint64_t all = 1;
  for (const Level& level : cluster.levels) {
    all *= level.size;
    if (all > kMostDevices)
      throw ConfigError("cluster '{}': {}; at most {} devices in all", cluster.name, text_of(cluster.levels),
                        kMostDevices);
  }
}

std::uint32_t read_count(JsonObject& json, std::string_view key, std::int64_t otherwise) {
  const std::int64_t count = json.integer(key, otherwise);
  if (count < 1 || count > kMostDevices)
    throw ConfigError("{}: {}={} must be from 1 to {}", json.where(), key, count, kMostDevices);
  return static_cast<std::uint32_t>(count);
}

/// A device that a file names, which lies beside a cluster file where it is a path, or one in place.
Device device_of(JsonObject& json, const std::filesystem::path& path) {
  if (json.has("device") && json.value("device").is_object()) {
    JsonObject in_place = json.object("device");
    return read_device(in_place);
  }
  const std::string device = json.text("device");
  if (!device.ends_with(".json") || std::filesystem::path(device).is_absolute()) return load_device(device);
  const std::filesystem::path beside = path.parent_path() / device;
  if (!std::filesystem::exists(beside))
    throw ConfigError("{}: device '{}': there is no {} (a path in a cluster file is relative to that file)",
                      json.where(), device, beside.string());
  return load_device(beside.string());
}

/// `device`: one of all, or a list of {device, count, share}, in the order in which devices are numbered.
void read_devices(JsonObject& file, const std::filesystem::path& path, Cluster& cluster) {
  if (!file.has("device") || !file.value("device").is_array()) {
    cluster.device = device_of(file, path);
    return;
  }
  std::vector<std::pair<std::string, double>> known;  // by kind: sheet, share
  for (JsonObject& some : file.objects("device")) {
    Device device = device_of(some, path);
    device.share = read_share(some, "share", 1, kLeastShare);
    const std::pair key(device.sheet, device.share);
    const auto number = static_cast<std::size_t>(std::ranges::find(known, key) - known.begin());
    if (!some.has("count")) throw ConfigError("{}: count is missing: how many {} there are", some.where(), device.name);
    const std::uint32_t count = read_count(some, "count", 0);
    if (cluster.kinds.size() + count > kMostDevices)
      throw ConfigError("{}: device: at most {} in all", file.where(), kMostDevices);
    cluster.kinds.insert(cluster.kinds.end(), count, static_cast<std::uint32_t>(number));
    some.finish();
    if (number < known.size()) continue;
    known.push_back(key);
    if (device.share < 1) device.name = fmt::format("{:.4g} of {}", device.share, device.name);
    (number == 0 ? cluster.device : cluster.other_kinds.emplace_back()) = std::move(device);
    if (cluster.kind(static_cast<std::uint32_t>(number)).asynchronous != cluster.device.asynchronous)
      throw ConfigError("{}: a cluster has accelerators or CPU cores, not both; found {} and {}", some.where(),
                        cluster.device.name, cluster.other_kinds.back().name);
  }
  if (known.empty()) throw ConfigError("{}: device must not be an empty list", file.where());
}

/// NCCL's times are those of its innermost link.
void check_nccl(const JsonObject& file, const Cluster& cluster) {
  for (const Level& level : cluster.levels)
    if (level.link.nccl && (cluster.world != "nccl" || &level != &cluster.levels.front()))
      throw ConfigError("{}: link: nccl is for the innermost level of world nccl; found level '{}' of {}", file.where(),
                        level.name, cluster.world);
}

/// The levels must make as many devices as are listed.
void check_kinds(const JsonObject& file, Cluster& cluster) {
  if (cluster.kinds.empty()) return;
  if (cluster.kinds.size() != cluster.devices())
    throw ConfigError("{}: device lists {} devices, but the levels make {} ({})", file.where(), cluster.kinds.size(),
                      cluster.devices(), text_of(cluster.levels));
  if (!cluster.is_mixed()) {
    cluster.kinds.clear();
    return;
  }
  std::vector<std::string> counts;
  for (std::uint32_t number = 0; number <= cluster.other_kinds.size(); ++number)
    counts.push_back(fmt::format("{} {}", std::ranges::count(cluster.kinds, number), cluster.kind(number).name));
  cluster.remarks.push_back(
      fmt::format("Cluster '{}' has devices of several kinds ({}). Every rank gets an equal share of the batch and of "
                  "split layers, and stages are cut as if all devices were alike; whoever is slower, the others wait "
                  "for",
                  cluster.name, fmt::join(counts, ", ")));
}

/// How many devices a group of the innermost level has, instead of what the file says: always, or where it doesn't say.
struct GivenSize {
  std::uint32_t always = 0, where_open = 0;  // 0: not given

  [[nodiscard]] std::uint32_t of(bool is_open) const { return always != 0 || !is_open ? always : where_open; }
};

Level read_level(JsonObject json, bool is_innermost, std::uint32_t open_size, std::vector<std::string>& remarks) {
  Level level{.name = json.text("name")};
  if (!json.has("size") && is_innermost && open_size == 0)
    throw ConfigError("{}: size is left open; say how many devices there are (--devices)", json.where());
  if (!json.has("size") && !is_innermost) throw ConfigError("{}: size is missing", json.where());
  level.size = read_count(json, "size", open_size);
  if (is_innermost && open_size != 0) level.size = open_size;
  if (json.has("link"))
    level.link = read_link(json.object("link"), remarks);
  else if (level.size > 1)
    throw ConfigError("{}: link is missing: what connects the {} {} of level '{}' (latency_us, bandwidth_GBps)",
                      json.where(), level.size, is_innermost ? "devices" : "groups", level.name);
  level.ports = read_count(json, "ports", 1);
  json.finish();
  return level;
}

/// Whether the file leaves open how many devices there are.
bool read_levels(JsonObject& file, Cluster& cluster, GivenSize given) {
  cluster.levels.clear();
  std::vector<JsonObject> objects = file.objects("levels");
  if (objects.empty()) throw ConfigError("{}: levels must not be empty", file.where());
  const bool is_open = !objects.front().has("size");
  const std::uint32_t open_size = given.of(is_open);
  for (JsonObject& object : objects) {
    cluster.levels.push_back(read_level(object, cluster.levels.empty(), open_size, cluster.remarks));
    const Level& level = cluster.levels.back();
    const std::string& name = level.name;
    if (std::ranges::count(cluster.levels, name, &Level::name) > 1)
      throw ConfigError("{}: two levels are named '{}'", file.where(), name);
    if (name == "node") cluster.node_level = static_cast<std::uint32_t>(cluster.levels.size() - 1);
    if (object.has("ports") && cluster.levels.size() == objects.size())
      throw ConfigError("{}: ports={} lead nowhere: there is no level above '{}'", object.where(),
                        cluster.levels.back().ports, name);
  }
  check_size(cluster);
  const std::int64_t listed = file.integer("devices", 0);
  if (file.has("devices") && open_size == 0 && listed != std::int64_t{cluster.devices()})
    throw ConfigError("{}: devices={}, but the levels make {} ({})", file.where(), listed, cluster.devices(),
                      text_of(cluster.levels));
  return is_open;
}

/// Version 1: the devices of a node, and nodes. Whether the file leaves open how many devices a node has.
bool read_nodes(JsonObject& file, Cluster& cluster, GivenSize given) {
  const std::int64_t nodes = file.integer("nodes", 1), listed = file.integer("devices_per_node", 0);
  const std::uint32_t open_size = given.of(/*is_open=*/listed == 0);
  if (listed < 0 || listed > kMostDevices || nodes < 1 || nodes > kMostDevices)
    throw ConfigError("{}: nodes and devices_per_node must be from 1 to {}", file.where(), kMostDevices);
  if (listed == 0 && open_size == 0)
    throw ConfigError("{}: devices_per_node is left open; say how many (--devices)", file.where());
  cluster.levels = {{.name = "node",
                     .size = open_size != 0 ? open_size : static_cast<std::uint32_t>(listed),
                     .link = read_link(file.object("link"), cluster.remarks)}};
  if (nodes == 1 && !file.has("inter_node")) return listed == 0;
  cluster.levels.push_back(
      {.name = "network",
       .size = static_cast<std::uint32_t>(nodes),
       .link = file.has("inter_node") ? read_link(file.object("inter_node"), cluster.remarks) : cluster.link()});
  check_size(cluster);
  if (nodes > 1 && cluster.levels[0].size > 1)
    cluster.remarks.push_back(fmt::format(
        "{} doesn't say how many ports (NICs) leave a node; one is taken for granted (key 'ports' of a level){}",
        file.where(),
        cluster.world == "nccl" ? "; all_reduce goes in rings, as before NCCL 2.4 (key 'nccl_algo')" : ""));
  return listed == 0;
}

/// The all_reduce's algorithm, as NCCL_ALGO says. NCCL has had trees between nodes since 2.4; what files of version 1
/// meant is a ring.
std::string read_all_reduce(JsonObject& file, const Cluster& cluster, bool has_levels) {
  if (file.has("nccl_algo") && cluster.world != "nccl")
    throw ConfigError("{}: nccl_algo is for world nccl; found {}", file.where(), cluster.world);
  if (!file.has("nccl_algo")) return cluster.world == "nccl" && !has_levels ? "striped_ring" : "";
  const std::string all_reduce =
      choice<std::string>(file, "nccl_algo", {{"ring", "striped_ring"}, {"tree", "double_tree"}, {"nvls", "nvls"}});
  if (all_reduce == "nvls" && (cluster.levels.size() > 1 || !cluster.link().nccl || !cluster.link().nccl->nvls))
    throw ConfigError("{}: nccl_algo=nvls is for one node whose link has nccl.nvls", file.where());
  return all_reduce;
}

TrainingLoop read_loop(JsonObject& file, const Cluster& cluster) {
  TrainingLoop loop;
  if (!file.has("loop")) return loop;
  if (!cluster.device.asynchronous)
    throw ConfigError("{}: loop is of an accelerator's host; found device '{}'", file.where(), cluster.device.name);
  JsonObject json = file.object("loop");
  loop.sample = read_time_us(json, "sample_us", 0);
  if (json.has("host_to_device_GBps")) loop.host_to_device = read_bandwidth(json, "host_to_device_GBps");
  loop.updates_each = choice<bool>(json, "updates", {{"together", false}, {"each", true}});
  static_cast<void>(json.text("source", ""));
  json.finish();
  return loop;
}

}  // namespace

Cluster load_cluster(std::string_view name, std::uint32_t ranks, std::uint32_t devices, std::uint32_t open_devices) {
  const std::filesystem::path path = catalog_file("clusters", "cluster", name);
  JsonObject file = read_json_file(path);
  const bool has_levels = file.text("format", "") == "paragauge-cluster-2";
  if (!has_levels) check_format(file, "paragauge-cluster", 1, "write it as those of sim/catalog/clusters are");
  Cluster cluster;
  cluster.name = file.text("name");
  static_cast<void>(file.text("description", ""));
  static_cast<void>(file.text("source", ""));
  cluster.world = file.text("world");
  if (world_table().find(cluster.world) == nullptr)
    throw ConfigError("{}: unknown world '{}'; known: {}", file.where(), cluster.world, world_table().names());
  read_devices(file, path, cluster);
  const GivenSize given{.always = devices, .where_open = open_devices};
  const bool is_open = has_levels ? read_levels(file, cluster, given) : read_nodes(file, cluster, given);
  check_nccl(file, cluster);
  check_kinds(file, cluster);
  if (is_open && !cluster.device.asynchronous) cluster.host = this_host();
  cluster.is_this_machine = cluster.host.has_value();
  cluster.one_host_thread = file.boolean("one_host_thread", false);
  cluster.loop = read_loop(file, cluster);
  if (file.has("communicator_MiB")) cluster.communicator = read_size_MiB(file, "communicator_MiB", Bytes());
  cluster.all_reduce = read_all_reduce(file, cluster, has_levels);
  cluster.scheduling = choice<Scheduling>(file, "scheduling",
                                          {{"fair", Scheduling::fair}, {"run_until_wait", Scheduling::run_until_wait}});
  file.finish();
  if (ranks == 0) throw ConfigError("cluster '{}': at least 1 rank", cluster.name);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) cluster.place.push_back({rank % cluster.devices()});
  return cluster;
}

Cluster with_threads(const Cluster& cluster, std::uint32_t threads, std::string_view strategy) {
  if (threads == 1) return cluster;
  if (cluster.device.asynchronous)
    throw ConfigError("strategy '{}': threads={} is for ranks on CPU cores; '{}' computes on {}", strategy, threads,
                      cluster.name, cluster.device.name);
  const std::uint32_t cores = cluster.devices_per_node(), nodes = cluster.nodes(), of_node = cores / threads;
  const auto ranks = static_cast<std::uint32_t>(cluster.place.size());
  if (std::uint64_t{of_node} * nodes < ranks)
    throw ConfigError("strategy '{}': {} of {} threads need{} {} cores; {} has {}{}", strategy,
                      ranks == 1 ? "a rank" : fmt::format("{} ranks", ranks), threads, ranks == 1 ? "s" : "",
                      std::uint64_t{ranks} * threads, cluster.host ? "this machine" : fmt::format("'{}'", cluster.name),
                      nodes == 1 ? "" : fmt::format("{} nodes of ", nodes), cores);
  Cluster own = cluster;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    own.place[rank] = {rank / of_node * cores + rank % of_node * threads};
  for (std::uint32_t rank = 0; rank < ranks && own.is_mixed(); ++rank)
    for (std::uint32_t core = own.place[rank].device; core < own.place[rank].device + threads; ++core)
      if (own.kinds.at(core) != own.kind_of(rank))
        throw ConfigError("strategy '{}': the {} cores of rank {} are of several kinds ({}, {}) on '{}'", strategy,
                          threads, rank, own.device_of(rank).name, own.kind(own.kinds.at(core)).name, cluster.name);
  return own;
}

namespace {

/// Of "100mbit", "2.5gbit"; nothing of "unlimited". ConfigError for other texts.
std::optional<BytesPerSecond> bandwidth_of(const std::string& rate) {
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
  return bytes_per_s > 0 ? std::optional(gigabytes_per_second(bytes_per_s * 1e-9)) : std::nullopt;
}

/// At most so fast: a full-duplex cable to each end, no common bus.
void limit(Link& link, const std::optional<BytesPerSecond>& bandwidth) {
  if (!bandwidth || link.bandwidth < *bandwidth) return;
  link.bandwidth = *bandwidth;
  link.shared = false;
}

}  // namespace

Cluster with_hosts(const Cluster& host, std::uint32_t hosts, std::uint32_t ranks, const Link& between,
                   const std::string& rate) {
  check_internal(host.nodes() == 1, "cluster '{}' of {} nodes as a host", host.name, host.nodes());
  check_internal(!host.is_mixed(), "cluster '{}' of several kinds of devices as a host", host.name);
  const auto each = static_cast<std::uint32_t>(host.place.size());
  if (ranks > std::uint64_t{each} * hosts)
    throw ConfigError("{} ranks on {} hosts of {} ranks each", ranks, hosts, each);
  Cluster all = host;
  all.world += fmt::format("@{}hosts", hosts);
  all.levels.push_back({.name = "network", .size = hosts, .link = between});
  if (!rate.empty()) {
    all.world += "@" + rate;
    limit(all.levels.back().link, bandwidth_of(rate));
  }
  all.place.clear();
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    all.place.push_back({rank / each * host.devices() + host.place[rank % each].device});
  return all;
}

Cluster with_network(const Cluster& cluster, const std::string& rate) {
  Cluster behind = cluster;
  behind.world += "@" + rate;
  const std::optional<BytesPerSecond> bandwidth = bandwidth_of(rate);
  for (Level& level : behind.levels) limit(level.link, bandwidth);
  return behind;
}

}  // namespace sim
