#include "sim/cluster/found.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "sim/cluster/device.hpp"
#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using OrderedJson = nlohmann::ordered_json;

// What others reached of what a link could carry; sim/catalog/clusters has the sources.
constexpr double kOfNvlink = 0.77;       // dgx_a100: 230 of 300 GB/s, among 8 A100
constexpr double kOfPcie = 19 / 31.5;    // pcie_workstation: from GPU to GPU through the host, PCIe 4.0 x16
constexpr double kOfVerbs = 24. / 25;    // dgx_a100_pair: of a port of InfiniBand
constexpr double kOfTcp = 1448. / 1538;  // two_pcs_1gbe: the data of a full frame on Ethernet
constexpr double kNvlink_us = 3.1, kPcie_us = 5.7, kVerbs_us = 14, kTcp_us = 50;  // the same files

/// GB/s of a link, each direction: transfers per second and lane, less the line code's share (PCI-SIG).
double pcie_GBps(const FoundGpu& gpu) {
  constexpr double kGigatransfers[] = {0, 2.5, 5, 8, 16, 32, 64};
  if (gpu.pcie_gen == 0 || gpu.pcie_gen >= std::size(kGigatransfers)) return 0;
  const double code = gpu.pcie_gen < 3 ? 8. / 10 : gpu.pcie_gen < 6 ? 128. / 130 : 242. / 256;
  return kGigatransfers[gpu.pcie_gen] * code * gpu.pcie_lanes / 8;
}

/// Three digits: more would be no knowledge.
OrderedJson number(double value) { return OrderedJson::parse(fmt::format("{:.3g}", value)); }

std::string nic_text(const FoundNic& nic) {
  return nic.gigabits > 0 ? fmt::format("{} ({:g} Gbit/s)", nic.name, nic.gigabits) : nic.name + " (speed not known)";
}

class Writer {
 public:
  Writer(const std::vector<FoundHost>& hosts, bool on_gpus) : hosts_(hosts), on_gpus_(on_gpus) {
    each_ = devices_of(hosts.front());
    for (const FoundHost& host : hosts) each_ = std::min(each_, devices_of(host));
  }

  FoundCluster write(std::string_view name) && {
    OrderedJson file{{"format", "paragauge-cluster-2"},
                     {"name", name},
                     {"description", description()},
                     {"source", "found by `paragauge machine`; each number says where it is from"},
                     {"world", on_gpus_ ? "nccl" : "gloo"},
                     {"device", devices()},
                     {"levels", levels()}};
    if (!on_gpus_) file["scheduling"] = "run_until_wait";  // as ranks get it where that is permitted
    found_.text = file.dump(2) + "\n";
    return std::move(found_);
  }

 private:
  [[nodiscard]] std::size_t devices_of(const FoundHost& host) const { return on_gpus_ ? host.gpus.size() : host.cores; }
  void known(std::string_view how, const std::string& what) {
    found_.origins.push_back(fmt::format("{}: {}", how, what));
  }

  [[nodiscard]] std::string description() const {
    std::vector<std::string> texts;
    for (const FoundHost& host : hosts_) {
      std::vector<std::string> gpus, nics;
      for (const FoundGpu& gpu : host.gpus) gpus.push_back(gpu.name);
      for (const FoundNic& nic : host.nics) nics.push_back(nic_text(nic));
      std::string text = fmt::format("{}: {}, {} core{} in {} socket{}, {:.0f} GiB", host.name,
                                     host.cpu.empty() ? "a CPU" : host.cpu, host.cores, host.cores == 1 ? "" : "s",
                                     host.sockets, host.sockets == 1 ? "" : "s", host.memory_GiB);
      if (!gpus.empty()) text += fmt::format("; GPUs: {}", fmt::join(gpus, ", "));
      if (!nics.empty()) text += fmt::format("; NICs: {}", fmt::join(nics, ", "));
      if (devices_of(host) > each_)
        text += fmt::format("; {} of its {} devices are listed, as many as each host has", each_, devices_of(host));
      texts.push_back(text);
    }
    return fmt::format("{}.", fmt::join(texts, ". "));
  }

  // ---- Devices

  OrderedJson gpu(const FoundGpu& gpu) {
    if (const std::optional<Device> sheet = find_device(gpu.name)) {
      known("data sheet", fmt::format("{} (sim/catalog/devices/{}.json)", gpu.name, sheet->name));
      constexpr double kGiB = 1073741824, kNear = 0.03;  // the driver's own share of it
      const double listed_GiB = sheet->memory_capacity.base() / kGiB;
      if (gpu.memory_GiB > 0 && std::abs(gpu.memory_GiB / listed_GiB - 1) > kNear)
        known("note",
              fmt::format("{}'s driver says {:.1f} GiB, its data sheet {:.1f}", gpu.name, gpu.memory_GiB, listed_GiB));
      return sheet->name;
    }
    found_.missing.push_back(
        fmt::format("{} isn't in sim/catalog/devices: to its 'device' add peak_f32_TFLOPps and "
                    "memory_bandwidth_GBps{}, and where it has them "
                    "peak_tf32_TFLOPps, peak_bf16_TFLOPps, peak_f64_TFLOPps: its data sheet has them "
                    "(sim/catalog/README.md says how they are "
                    "quoted); what a large matrix product reaches, measured, as matmul_…_TFLOPps",
                    gpu.name, gpu.memory_GiB > 0 ? "" : " and memory_capacity_GiB"));
    OrderedJson device{{"name", gpu.name},
                       {"driver_name", gpu.name},
                       {"asynchronous", true},
                       {"source", "the driver says the name and the memory; the rates are missing"}};
    if (gpu.memory_GiB > 0) {
      device["memory_capacity_GiB"] = number(gpu.memory_GiB);
      known("driver", fmt::format("{:.1f} GiB of {}", gpu.memory_GiB, gpu.name));
    }
    return device;
  }

  OrderedJson core(const FoundHost& host) {
    const FoundCore& core = host.core;
    const std::string cpu = host.cpu.empty() ? "a CPU" : host.cpu;
    OrderedJson device{{"name", fmt::format("a core of {}", cpu)}};
    if (!(core.f32_GFLOPps > 0 && core.memory_GBps > 0 && host.memory_GiB > 0)) {
      found_.missing.push_back(
          fmt::format("what a core of {} computes wasn't measured: to its 'device' add peak_f32_TFLOPps, "
                      "memory_bandwidth_GBps and memory_capacity_GiB",
                      cpu));
      device["source"] = "not measured";
      return device;
    }
    device["source"] = fmt::format(
        "measured on {} with all {} cores at work: large matrix products (their rate stands for the peak, which isn't "
        "known), "
        "and a copy that no cache holds; memory: its part of the host's {:.0f} GiB",
        host.name, host.cores, host.memory_GiB);
    device["asynchronous"] = false;
    for (const auto& [format, GFLOPps] :
         {std::pair{"f32", core.f32_GFLOPps}, {"f64", core.f64_GFLOPps}, {"bf16", core.bf16_GFLOPps}})
      if (GFLOPps > 0)
        for (const char* key : {"peak", "matmul"})
          device[fmt::format("{}_{}_TFLOPps", key, format)] = number(GFLOPps * 1e-3);
    device["memory_bandwidth_GBps"] = number(core.memory_GBps);
    device["memory_efficiency"] = 1;
    device["memory_capacity_GiB"] = number(host.memory_GiB / host.cores);
    known("measured", fmt::format("a core of {}: {:.3g} GFLOP/s f32, {:.3g} GB/s of the memory", cpu, core.f32_GFLOPps,
                                  core.memory_GBps));
    return device;
  }

  /// One, or a list of {device, count}.
  OrderedJson devices() {
    std::vector<std::pair<std::string, OrderedJson>> kinds;  // by what they are called
    std::vector<std::pair<std::size_t, std::size_t>> runs;   // kind, count
    const auto add = [&](const std::string& what, std::size_t count, const auto& describe) {
      auto kind = static_cast<std::size_t>(std::ranges::find(kinds, what, &std::pair<std::string, OrderedJson>::first) -
                                           kinds.begin());
      if (kind == kinds.size()) kinds.emplace_back(what, describe());
      if (!runs.empty() && runs.back().first == kind)
        runs.back().second += count;
      else
        runs.emplace_back(kind, count);
    };
    for (const FoundHost& host : hosts_)
      if (!on_gpus_)
        add(host.cpu, each_, [&] { return core(host); });
      else
        for (std::size_t i = 0; i < each_; ++i) add(host.gpus[i].name, 1, [&] { return gpu(host.gpus[i]); });
    if (runs.size() == 1) return kinds[0].second;
    OrderedJson list = OrderedJson::array();
    for (const auto& [kind, count] : runs) list.push_back({{"device", kinds[kind].second}, {"count", count}});
    return list;
  }

  // ---- Levels

  OrderedJson link(const std::string& between, double latency_us, double GBps, const std::string& why) {
    OrderedJson link{{"latency_us", latency_us}, {"bandwidth_GBps", number(GBps)}, {"source", "a guess: " + why}};
    known("guess", fmt::format("{} {:.3g} GB/s, {:g} us: {}", between, GBps, latency_us, why));
    return link;
  }

  OrderedJson within_host() {
    if (!on_gpus_) {
      JsonObject file = read_json_file(catalog_file("clusters", "cluster", "cpu_gloo"));
      OrderedJson link = OrderedJson::parse(file.value("levels").at(0).at("link").dump());
      link["source"] = "a guess, of another machine's: " + link["source"].get<std::string>();
      known(
          "guess",
          "gloo between the cores of a host: as sim/catalog/clusters/cpu_gloo.json; `paragauge calibrate` measures it");
      return link;
    }
    const FoundGpu* slowest = nullptr;  // of the GPUs that are listed
    for (const FoundHost& host : hosts_)
      for (std::size_t i = 0; i < each_; ++i)
        if (const FoundGpu& gpu = host.gpus[i]; slowest == nullptr || rate(gpu) < rate(*slowest)) slowest = &gpu;
    const std::string between = "between the GPUs of a host";
    if (slowest->nvlink_GBps > 0)
      return link(
          between, kNvlink_us, kOfNvlink * slowest->nvlink_GBps,
          fmt::format(
              "{:.0f} % of the NVLinks' {:.4g} GB/s that the driver states, as 8 A100 reach on NVSwitch (dgx_a100)",
              100 * kOfNvlink, slowest->nvlink_GBps));
    if (pcie_GBps(*slowest) > 0)
      return link(between, kPcie_us, kOfPcie * pcie_GBps(*slowest),
                  fmt::format("{:.0f} % of PCIe {}.0 x{}, {:.3g} GB/s, as through the host's memory in a workstation "
                              "(pcie_workstation); "
                              "all GPUs are taken to be as far from each other",
                              100 * kOfPcie, slowest->pcie_gen, slowest->pcie_lanes, pcie_GBps(*slowest)));
    found_.missing.push_back(
        "what connects the GPUs of a host isn't known: to level 'node' add a link (latency_us, bandwidth_GBps; "
        "`nvidia-smi topo -m` shows what it is, nccl-tests' bus bandwidth what it reaches)");
    return {};
  }
  /// GB/s by which GPUs of a host are compared.
  static double rate(const FoundGpu& gpu) {
    return gpu.nvlink_GBps > 0 ? kOfNvlink * gpu.nvlink_GBps : kOfPcie * pcie_GBps(gpu);
  }

  /// The cards that a host's transfers go through: for NCCL those with verbs where there are any, else the one over which the
  /// hosts meet, or all that are as fast as the fastest.
  [[nodiscard]] std::vector<FoundNic> used_nics(const FoundHost& host) const {
    std::vector<FoundNic> used;
    const bool by_verbs = on_gpus_ && std::ranges::any_of(host.nics, &FoundNic::has_verbs);
    double most = 0;
    for (const FoundNic& nic : host.nics)
      if (nic.has_verbs == by_verbs) most = std::max(most, nic.gigabits);
    for (const FoundNic& nic : host.nics)
      if (nic.has_verbs == by_verbs && (by_verbs || host.meets_over.empty() || nic.name == host.meets_over) &&
          (nic.gigabits == most || nic.name == host.meets_over))
        used.push_back(nic);
    return used;
  }

  struct Between {
    std::size_t ports = 0;
    OrderedJson link;  // null: not known
  };
  Between between_hosts() {
    Between between;
    double gigabits = 0;
    bool by_verbs = false;
    std::vector<std::string> texts;
    for (const FoundHost& host : hosts_) {
      const std::vector<FoundNic> used = used_nics(host);
      const bool is_first = texts.empty();
      const double of_host = used.empty() ? 0 : used.front().gigabits;
      gigabits = is_first ? of_host : std::min(gigabits, of_host);
      by_verbs = (is_first || by_verbs) && !used.empty() && used.front().has_verbs;
      between.ports = is_first ? used.size() : std::min(between.ports, used.size());
      std::vector<std::string> nics;
      for (const FoundNic& nic : used) nics.push_back(nic_text(nic));
      texts.push_back(
          fmt::format("{} {}", host.name, nics.empty() ? "no NIC that is up" : fmt::to_string(fmt::join(nics, ", "))));
    }
    if (!(gigabits > 0)) {
      found_.missing.push_back(
          fmt::format("how fast the network between the hosts is, no driver says ({}): to level 'network' add a link "
                      "(latency_us, bandwidth_GBps, e.g. 0.94 of the cable's rate over TCP)",
                      fmt::join(texts, "; ")));
      return between;
    }
    const double share = by_verbs ? kOfVerbs : kOfTcp;
    between.link =
        link("between the hosts, a port", by_verbs ? kVerbs_us : kTcp_us, share * gigabits / 8,
             fmt::format(
                 "{:.0f} % of {:g} Gbit/s, which the NICs' drivers state ({}), as {}; the latency, too", 100 * share,
                 gigabits, fmt::join(texts, "; "),
                 by_verbs ? "InfiniBand reaches elsewhere (dgx_a100_pair)" : "TCP on Ethernet at best (two_pcs_1gbe)"));
    if (!on_gpus_) {  // gloo moves the bytes by the ranks' cores
      between.link["core_share"] = 1;
      between.link["transport"] = "notify";
    }
    return between;
  }

  OrderedJson levels() {
    OrderedJson node{{"name", "node"}, {"size", each_}};
    if (each_ > 1)
      if (OrderedJson link = within_host(); !link.is_null()) node["link"] = std::move(link);
    if (hosts_.size() == 1) return OrderedJson::array({node});
    Between between = between_hosts();
    if (between.ports > 1) node["ports"] = between.ports;
    OrderedJson network{{"name", "network"}, {"size", hosts_.size()}};
    if (!between.link.is_null()) network["link"] = std::move(between.link);
    return OrderedJson::array({node, network});
  }

  const std::vector<FoundHost>& hosts_;
  const bool on_gpus_;
  std::size_t each_ = 0;  // devices of a host
  FoundCluster found_;
};

}  // namespace

FoundCluster cluster_of_found(const std::vector<FoundHost>& hosts, std::string_view world, std::string_view name) {
  if (world != "nccl" && world != "gloo")
    throw ConfigError("world '{}': a machine's file is of nccl (GPUs) or gloo (CPU cores)", world);
  if (hosts.empty()) throw ConfigError("no host was found");
  for (const FoundHost& host : hosts) {
    if (world == "nccl" && host.gpus.empty())
      throw ConfigError("{} has no GPU that its driver lists (nvidia-smi); --world gloo is about CPU cores", host.name);
    if (host.cores == 0) throw ConfigError("{} has no cores", host.name);
  }
  return Writer(hosts, world == "nccl").write(name);
}

}  // namespace sim
