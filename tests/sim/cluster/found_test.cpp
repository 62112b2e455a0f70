#include "sim/cluster/found.hpp"

#include "sim/cluster/cluster.hpp"
#include "sim/program/by_kind.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

FoundHost dgx(const std::string& name) {
  FoundHost host{.name = name, .cpu = "AMD EPYC 7742", .cores = 128, .sockets = 2, .memory_GiB = 2015};
  host.gpus.assign(
      8, {.name = "NVIDIA A100-SXM4-80GB", .memory_GiB = 80, .pcie_gen = 4, .pcie_lanes = 16, .nvlink_GBps = 300});
  host.nics = {{"mlx5_0", 200, true}, {"mlx5_1", 200, true}, {"mlx5_2", 100, true}, {"eth0", 10}};
  host.meets_over = "eth0";
  return host;
}

FoundHost pc(const std::string& name) {
  FoundHost host{.name = name, .cpu = "A CPU", .cores = 4, .memory_GiB = 16};
  host.core = {.f32_GFLOPps = 50, .f64_GFLOPps = 25, .memory_GBps = 8};
  host.nics = {{"eth0", 1}, {"eth1", 10}};
  host.meets_over = "eth0";
  return host;
}

Cluster read_back(const FoundCluster& found, std::uint32_t ranks) {
  EXPECT_TRUE(found.missing.empty()) << found.missing.at(0);
  const testing::TemporaryFolder folder;
  return load_cluster(folder.file("box.json", found.text), ranks);
}

bool says(const std::vector<std::string>& texts, const std::string& part) {
  return std::ranges::any_of(texts, [&](const std::string& text) { return text.find(part) != std::string::npos; });
}

TEST(Found, GpusByTheirDataSheet) {
  const FoundCluster found = cluster_of_found({dgx("a"), dgx("b")}, "nccl", "box");
  const Cluster cluster = read_back(found, 16);
  EXPECT_EQ(cluster.name, "box");
  EXPECT_EQ(cluster.world, "nccl");
  EXPECT_EQ(cluster.device.name, "a100_sxm_80g");
  EXPECT_EQ(cluster.nodes(), 2U);
  EXPECT_EQ(cluster.devices_per_node(), 8U);
  // 230 of 300 GB/s in a DGX A100; two cards of 200 Gbit/s, not the slower one or Ethernet.
  EXPECT_NEAR(cluster.levels[0].link.bandwidth.base(), 0.77 * 300e9, 1e9);
  EXPECT_EQ(cluster.levels[0].ports, 2U);
  EXPECT_NEAR(cluster.levels[1].link.bandwidth.base(), 24e9, 1e6);
  EXPECT_TRUE(says(found.origins, "data sheet: NVIDIA A100-SXM4-80GB (sim/catalog/devices/a100_sxm_80g.json)"));
  EXPECT_TRUE(says(found.origins, "guess: between the hosts, a port 24 GB/s, 14 us: 96 % of 200 Gbit/s"));
  EXPECT_FALSE(says(found.origins, "measured"));
  EXPECT_NE(found.text.find("a: AMD EPYC 7742, 128 cores in 2 sockets, 2015 GiB; GPUs: NVIDIA A100-SXM4-80GB, "),
            std::string::npos);
}

TEST(Found, GpusOnPcieAndOfSeveralKinds) {
  FoundHost host = dgx("a");
  host.gpus.resize(3);
  for (FoundGpu& gpu : host.gpus) gpu.nvlink_GBps = 0;
  host.gpus[1].name = host.gpus[2].name = "Tesla T4";
  host.gpus[2].pcie_gen = 3;
  const FoundCluster found = cluster_of_found({host}, "nccl", "box");
  const Cluster cluster = read_back(found, 3);
  EXPECT_EQ(cluster.levels.size(), 1U);
  EXPECT_EQ(cluster.kinds, (std::vector<std::uint32_t>{0, 1, 1}));
  EXPECT_EQ(cluster.device_of(2).name, "t4");
  EXPECT_NEAR(cluster.link().bandwidth.base(), 19e9 / 31.5 * 8 * 16 / 8 * 128 / 130, 1e8);  // of the slowest: PCIe 3.0
  EXPECT_TRUE(says(found.origins, "note: Tesla T4's driver says 80.0 GiB, its data sheet"));
  // One has nobody to talk to.
  host.gpus.resize(1);
  EXPECT_EQ(read_back(cluster_of_found({host}, "nccl", "box"), 1).devices(), 1U);
}

TEST(Found, AnUnknownGpuIsntInvented) {
  FoundHost host = dgx("a");
  for (FoundGpu& gpu : host.gpus) gpu.name = "NVIDIA X1";
  const FoundCluster found = cluster_of_found({host}, "nccl", "box");
  ASSERT_EQ(found.missing.size(), 1U);
  EXPECT_TRUE(
      found.missing[0].starts_with("NVIDIA X1 isn't in sim/catalog/devices: to its 'device' add peak_f32_TFLOPps and "
                                   "memory_bandwidth_GBps, and where"));
  EXPECT_EQ(found.text.find("TFLOPps"), std::string::npos);
  const testing::TemporaryFolder folder;
  const std::string message = message_of([&] { (void)load_cluster(folder.file("box.json", found.text), 8); });
  EXPECT_NE(message.find("box.json: device: 'peak_f32_TFLOPps' is missing"), std::string::npos) << message;
  // With what it asks for, it is read.
  const std::string filled =
      testing::replaced(found.text, "\"asynchronous\": true,",
                        R"("asynchronous": true, "peak_f32_TFLOPps": 20, "memory_bandwidth_GBps": 900,)");
  const Cluster cluster = load_cluster(folder.file("filled.json", filled), 8);
  EXPECT_EQ(cluster.device.driver_name, "NVIDIA X1");
  EXPECT_NEAR(cluster.device.memory_capacity.base(), gibibytes(80).base(), 1);
}

TEST(Found, WhatConnectsThemMayBeMissing) {
  FoundHost host = dgx("a");
  for (FoundGpu& gpu : host.gpus) gpu.nvlink_GBps = 0, gpu.pcie_gen = 0;
  for (FoundNic& nic : host.nics) nic.gigabits = 0;
  const FoundCluster found = cluster_of_found({host, host}, "nccl", "box");
  ASSERT_EQ(found.missing.size(), 2U);
  EXPECT_TRUE(found.missing[0].starts_with("what connects the GPUs of a host isn't known: to level 'node' add a link"));
  EXPECT_TRUE(found.missing[1].starts_with(
      "how fast the network between the hosts is, no driver says (a mlx5_0 (speed not known)"));
}

TEST(Found, CoresAsTheyWereMeasured) {
  FoundHost slow = pc("b");
  slow.nics[0].gigabits = 0.1;
  const FoundCluster found = cluster_of_found({pc("a"), slow}, "gloo", "box");
  const Cluster cluster = read_back(found, 8);
  EXPECT_EQ(cluster.world, "gloo");
  EXPECT_FALSE(cluster.is_mixed());
  EXPECT_EQ(cluster.devices_per_node(), 4U);
  EXPECT_NEAR(cluster.device.matmul_rate(Arithmetic::f32).base(), 50e9, 1);
  EXPECT_NEAR(cluster.device.matmul_rate(Arithmetic::f64).base(), 25e9, 1);
  EXPECT_FALSE(cluster.device.has(Arithmetic::bf16));
  EXPECT_NEAR(cluster.device.memory_bandwidth.base(), 8e9, 1);
  EXPECT_EQ(cluster.device.memory_efficiency, 1);
  EXPECT_EQ(cluster.device.memory_capacity, gibibytes(4));
  // As gloo's of this machine, but for the wire: the slower host's, over the card by which they meet.
  const Link within = load_cluster("cpu_gloo", 1, 1).link();
  EXPECT_EQ(cluster.levels[0].link.bandwidth, within.bandwidth);
  EXPECT_EQ(cluster.levels[0].link.transport, Transport::notify);
  EXPECT_TRUE(cluster.levels[0].link.shared);
  EXPECT_NEAR(cluster.levels[1].link.bandwidth.base(), 0.1e9 / 8 * 1448 / 1538, 1e5);
  EXPECT_EQ(cluster.levels[1].link.transport, Transport::notify);
  EXPECT_FALSE(cluster.levels[1].link.shared);
  EXPECT_TRUE(says(found.origins, "measured: a core of A CPU: 50 GFLOP/s f32, 8 GB/s of the memory"));
}

TEST(Found, HostsThatDiffer) {
  FoundHost other = pc("b");
  other.cpu = "Another";
  other.cores = 6;
  other.core.f32_GFLOPps = 20;
  const FoundCluster found = cluster_of_found({pc("a"), other}, "gloo", "box");
  const Cluster cluster = read_back(found, 8);
  EXPECT_EQ(cluster.kinds, (std::vector<std::uint32_t>{0, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(cluster.device_of(4).name, "a core of Another");
  EXPECT_NE(found.text.find("4 of its 6 devices are listed, as many as each host has"), std::string::npos);
  other.core = {};
  EXPECT_TRUE(says(cluster_of_found({pc("a"), other}, "gloo", "box").missing,
                   "what a core of Another computes wasn't measured: to its 'device' add peak_f32_TFLOPps, "));
}

TEST(Found, RefusesWhatItCantSay) {
  EXPECT_EQ(message_of([] { (void)cluster_of_found({pc("a")}, "local", "box"); }),
            "world 'local': a machine's file is of nccl (GPUs) or gloo (CPU cores)");
  EXPECT_EQ(message_of([] {
              (void)cluster_of_found({dgx("a"), pc("b")}, "nccl", "box");
            }),
            "b has no GPU that its driver lists (nvidia-smi); --world gloo is about CPU cores");
}

}  // namespace
}  // namespace sim
