#include "sim/cluster/world.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "sim/cost/collective/collective.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

TEST(World, EveryRowNamesWhatThereIs) {
  for (const WorldKind& world : world_table()) {
    SCOPED_TRACE(world.name);
    EXPECT_FALSE(world.description.empty());
    EXPECT_FALSE(world.limits.empty());
    for (const CollectiveKind kind : kCollectiveKinds)
      EXPECT_TRUE(collective_algorithm(world.name, kind).is_for(kind)) << to_string(kind);
  }
}

TEST(World, ThisMachineIsAClusterOfEachOfItsWorlds) {
  for (const WorldKind& world : world_table())
    for (const bool is_cpu : {true, false}) {
      if ((is_cpu ? world.cpu_cluster : world.accelerator_cluster).empty()) continue;
      const char* device = is_cpu ? "cpu" : "cuda";
      SCOPED_TRACE(fmt::format("{} {}", world.name, device));
      const Cluster cluster = machine_cluster(world.name, device, "", 3, 2);
      EXPECT_EQ(cluster.world, world.name);
      EXPECT_EQ(cluster.place.size(), 3U);
      EXPECT_EQ(cluster.devices_per_node(), is_cpu ? 2U : world.processes ? 3U : 1U);
      EXPECT_EQ(cluster.device.asynchronous, !is_cpu);
      EXPECT_EQ(cluster.host.has_value(), is_cpu);
      EXPECT_EQ(machine_cluster(world.name, device, "1gbit", 2, 2).world,
                std::string(world.name) + (world.processes ? "@1gbit" : ""));
    }
}

TEST(World, ALabelMayNameANetwork) {
  EXPECT_EQ(world_kind("gloo@1gbit").name, "gloo");
  EXPECT_EQ(world_kind("nccl").name, "nccl");
}

TEST(World, NcclTakesOneRankOfAGpu) {
  const auto message = [](const Cluster& cluster) { return testing::message_of([&] { check_ranks(cluster); }); };
  EXPECT_EQ(message(load_cluster("dgx_a100", 16)),
            "NCCL takes one rank of a GPU (\"Duplicate GPU detected\"): 16 ranks, but 'dgx_a100' has 8 GPUs");
  EXPECT_EQ(message(load_cluster("dgx_a100", 2, 1)),
            "NCCL takes one rank of a GPU (\"Duplicate GPU detected\"): 2 ranks, but 'dgx_a100' has 1 GPU");
  EXPECT_EQ(message(load_cluster("dgx_a100", 8)), "no error");
  EXPECT_EQ(message(load_cluster("h200_local", 8)), "no error");  // streams of one GPU
  EXPECT_EQ(message(load_cluster("cpu_gloo", 8, 2)), "no error");
}

TEST(World, TellsWhatIsWrong) {
  const auto starts_with = [](const std::string& text, std::string_view begin) {
    EXPECT_EQ(text.substr(0, begin.size()), begin);
  };
  starts_with(testing::message_of([] { machine_cluster("mpi", "cpu", "", 1, 1); }),
              "unknown world 'mpi'; known: local, gloo, nccl");
  starts_with(testing::message_of([] { machine_cluster("nccl", "cpu", "", 1, 1); }),
              "world 'nccl' needs an accelerator for each rank: device=cuda");
  starts_with(testing::message_of([] { machine_cluster("local", "tpu", "", 1, 1); }),
              "unknown device 'tpu'; known: cpu, cuda, privateuseone");
  EXPECT_EQ(testing::message_of([] { machine_cluster("gloo", "cuda", "", 1, 1); }),
            "world 'gloo' moves CPU tensors only; device=cuda needs world=local or nccl");
  EXPECT_EQ(testing::message_of([] { check_network("1gbit", {"local"}); }),
            "network=1gbit is for ranks that are processes: world=gloo");
  EXPECT_NO_THROW(check_network("1gbit", {"local", "gloo"}));
  EXPECT_NO_THROW(check_network("", {"local"}));
}

}  // namespace
}  // namespace sim
