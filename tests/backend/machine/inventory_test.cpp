#include "backend/machine/inventory.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "backend/machine/arithmetic.hpp"
#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"
#include "tests/sim/testing.hpp"

namespace backend {
namespace {

using sim::testing::TemporaryFolder;

// As nvidia-smi prints it.
TEST(Inventory, GpusAsTheDriverDescribesThem) {
  const std::vector<sim::FoundGpu> gpus = gpus_of(
      "NVIDIA A100-SXM4-80GB, 81920 MiB, 4, 16\nTesla T4, [N/A], [N/A], [N/A]\n",
      "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-1)\n\t Link 0: 25 GB/s\n\t Link 1: 25.781 GB/s\n\t Link 2: <inactive>\n"
      "GPU 1: Tesla T4 (UUID: GPU-2)\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
      "GPU 7: another\n\t Link 0: 25 GB/s\n");
  ASSERT_EQ(gpus.size(), 2U);
  EXPECT_EQ(gpus[0].name, "NVIDIA A100-SXM4-80GB");
  EXPECT_EQ(gpus[0].memory_GiB, 80);
  EXPECT_EQ(gpus[0].pcie_gen, 4U);
  EXPECT_EQ(gpus[0].pcie_lanes, 16U);
  EXPECT_NEAR(gpus[0].nvlink_GBps, 50.781, 1e-9);
  EXPECT_EQ(gpus[1].name, "Tesla T4");
  EXPECT_EQ(gpus[1].memory_GiB, 0);
  EXPECT_EQ(gpus[1].pcie_gen, 0U);
  EXPECT_EQ(gpus[1].nvlink_GBps, 0);
  EXPECT_TRUE(gpus_of("", "").empty());
}

// As Linux shows them: a card that is up, one that is down, one that doesn't say its rate, a bridge without a device, a
// port of InfiniBand, and one of RoCE, which is a network interface, too.
TEST(Inventory, CardsThatAreUp) {
  const TemporaryFolder system;
  const auto link = [&](const std::string& card, const std::string& device) {
    std::filesystem::create_directories(system / ("devices/" + device));
    std::filesystem::create_directory_symlink(system / ("devices/" + device), system / (card + "/device"));
  };
  const auto net = [&](const std::string& name, const std::string& state, const std::string& speed) {
    static_cast<void>(system.file("class/net/" + name + "/operstate", state + "\n"));
    static_cast<void>(system.file("class/net/" + name + "/speed", speed + "\n"));
  };
  const auto port = [&](const std::string& card, const std::string& state, const std::string& rate) {
    static_cast<void>(system.file("class/infiniband/" + card + "/ports/1/state", state + "\n"));
    static_cast<void>(system.file("class/infiniband/" + card + "/ports/1/rate", rate + "\n"));
  };
  net("eth0", "up", "10000"), link("class/net/eth0", "a");
  net("eth1", "down", "-1"), link("class/net/eth1", "b");
  net("eth2", "up", "-1"), link("class/net/eth2", "c");
  net("veth0", "up", "10000");
  net("roce0", "up", "100000"), link("class/net/roce0", "d");
  port("mlx5_0", "4: ACTIVE", "200 Gb/sec (4X HDR)"), link("class/infiniband/mlx5_0", "e");
  port("mlx5_1", "4: ACTIVE", "100 Gb/sec (4X EDR)"), link("class/infiniband/mlx5_1", "d");
  port("mlx5_2", "1: DOWN", "10 Gb/sec (4X SDR)"), link("class/infiniband/mlx5_2", "f");
  const auto texts = [&](const char* meets_over) {
    std::vector<std::string> list;
    for (const sim::FoundNic& nic : network_cards(system / "", meets_over))
      list.push_back(fmt::format("{} {:g}{}", nic.name, nic.gigabits, nic.has_verbs ? " verbs" : ""));
    return list;
  };
  EXPECT_EQ(texts(""), (std::vector<std::string>{"mlx5_0 200 verbs", "mlx5_1 100 verbs", "eth0 10", "eth2 0"}));
  EXPECT_EQ(texts("veth0"),
            (std::vector<std::string>{"mlx5_0 200 verbs", "mlx5_1 100 verbs", "eth0 10", "eth2 0", "veth0 10"}));
}

TEST(Inventory, OfThisHost) {
  const sim::FoundHost host = inventory();
  EXPECT_FALSE(host.name.empty());
  EXPECT_EQ(host.cores, sim::usable_cores());
  EXPECT_GE(host.sockets, 1U);
  EXPECT_NEAR(host.memory_GiB, sim::this_host().memory.base() / 1073741824, 1e-6);
  EXPECT_EQ(to_json(host_from_json(to_json(host))), to_json(host));
}

// What no core reaches, and what even one that others use does; which of two rates is higher depends on those.
TEST(Inventory, CoresAreMeasured) {
  const sim::FoundCore core = measure_cores();
  EXPECT_GT(core.f32_GFLOPps, 1);
  EXPECT_LT(core.f32_GFLOPps, 1000);
  EXPECT_GT(core.f64_GFLOPps, 0.2 * core.f32_GFLOPps);
  EXPECT_LT(core.f64_GFLOPps, 1000);
  EXPECT_GT(core.memory_GBps, 0.5);
  EXPECT_LT(core.memory_GBps, 1000);
  EXPECT_EQ(core.bf16_GFLOPps > 0, cpu_multiplies(sim::Dtype::bf16));
}

}  // namespace
}  // namespace backend
