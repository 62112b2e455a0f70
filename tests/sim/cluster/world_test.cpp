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
    EXPECT_EQ(collective_algorithm(world.name, CollectiveKind::all_reduce).name, world.all_reduce);
    EXPECT_EQ(collective_algorithm(world.name, CollectiveKind::broadcast).name, world.broadcast);
  }
}

TEST(World, ThisMachineIsAClusterOfEachOfItsWorlds) {
  for (const WorldKind& world : machine_world_table()) {
    SCOPED_TRACE(world.name);
    const Cluster cluster = machine_cluster(world.name, "cpu", "", 3, 2);
    EXPECT_EQ(cluster.world, world.name);
    EXPECT_EQ(cluster.place.size(), 3U);
    EXPECT_EQ(cluster.devices_per_node, 2U);
    EXPECT_EQ(machine_cluster(world.name, "cpu", "1gbit", 2, 2).world,
              std::string(world.name) + (world.processes ? "@1gbit" : ""));
  }
  EXPECT_EQ(machine_cluster("local", "cuda", "", 2, 1).world, "local");
}

TEST(World, ALabelMayNameANetwork) {
  EXPECT_EQ(world_kind("gloo@1gbit").name, "gloo");
  EXPECT_EQ(world_kind("nccl").name, "nccl");
}

TEST(World, TellsWhatIsWrong) {
  const auto starts_with = [](const std::string& text, std::string_view begin) {
    EXPECT_EQ(text.substr(0, begin.size()), begin);
  };
  starts_with(testing::message_of([] { machine_cluster("mpi", "cpu", "", 1, 1); }),
              "unknown world 'mpi'; known: local, gloo");
  starts_with(testing::message_of([] { machine_cluster("nccl", "cpu", "", 1, 1); }),
              "unknown world 'nccl'; known: local, gloo");
  starts_with(testing::message_of([] { machine_cluster("local", "tpu", "", 1, 1); }),
              "unknown device 'tpu'; known: cpu, cuda");
  EXPECT_EQ(testing::message_of([] { machine_cluster("gloo", "cuda", "", 1, 1); }),
            "world 'gloo' moves CPU tensors only; device=cuda needs world=local");
  EXPECT_EQ(testing::message_of([] { check_network("1gbit", {"local"}); }),
            "network=1gbit is for ranks that are processes: world=gloo");
  EXPECT_NO_THROW(check_network("1gbit", {"local", "gloo"}));
  EXPECT_NO_THROW(check_network("", {"local"}));
}

}  // namespace
}  // namespace sim
