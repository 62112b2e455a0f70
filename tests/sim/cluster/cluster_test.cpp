#include "sim/cluster/cluster.hpp"

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using namespace testing;

constexpr const char* kFile = R"({
  "format": "paragauge-cluster-1", "name": "mine", "world": "gloo", "device": "cpu_core",
  "nodes": 2, "devices_per_node": 2,
  "link": {"latency_us": 5, "bandwidth_GBps": 8, "engine": "receiver", "transport": "notify"},
  "inter_node": {"latency_us": 50, "bandwidth_GBps": 1, "shared": true},
  "scheduling": "run_until_wait"
})";

Cluster load(const std::string& text, std::uint32_t ranks = 1) {
  const TemporaryFolder folder;
  return load_cluster(folder.file("mine.json", text), ranks);
}

TEST(Cluster, SaysHowRanksShareWhat) {
  const Cluster cluster = load(kFile, 6);
  EXPECT_EQ(cluster.scheduling, Scheduling::run_until_wait);
  EXPECT_EQ(cluster.link.engine, TransferEngine::receiver);
  EXPECT_EQ(cluster.link.transport, Transport::notify);
  EXPECT_FALSE(cluster.link.shared);
  EXPECT_EQ(cluster.inter_node.engine, TransferEngine::background);
  EXPECT_EQ(cluster.inter_node.transport, Transport::none);
  EXPECT_TRUE(cluster.inter_node.shared);
  // Ranks beyond the last device start again at the first, as the executor pins them.
  const std::uint32_t devices[] = {0, 1, 2, 3, 0, 1}, nodes[] = {0, 0, 1, 1, 0, 0};
  for (std::size_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(cluster.place[rank].device, devices[rank]);
    EXPECT_EQ(cluster.place[rank].node, nodes[rank]);
  }
}

TEST(Cluster, OfThisMachineRunsInRealTime) {
  for (const char* name : {"cpu_local", "cpu_gloo"})
    EXPECT_EQ(load_cluster(name, 2, 2).scheduling, Scheduling::run_until_wait) << name;
  EXPECT_EQ(load_cluster("cpu_gloo", 2, 2).link.transport, Transport::notify);
  EXPECT_EQ(load_cluster("h200_local", 2).scheduling, Scheduling::fair);  // streams of one GPU
  // A network between the ranks changes neither.
  const Cluster behind = with_network(load_cluster("cpu_gloo", 2, 2), "1gbit");
  EXPECT_EQ(behind.link.transport, Transport::notify);
  EXPECT_EQ(behind.scheduling, Scheduling::run_until_wait);
}

TEST(Cluster, NamesWhatItDoesntKnow) {
  const auto refused = [](std::string_view from, std::string_view to) {
    const std::string message = message_of([&] { (void)load(replaced(kFile, from, to)); });
    return message.substr(message.find("mine.json"));
  };
  EXPECT_EQ(refused("\"receiver\"", "\"dma\""), "mine.json: link: unknown engine 'dma'; known: background, receiver");
  EXPECT_EQ(refused("\"notify\"", "\"rdma\""), "mine.json: link: unknown transport 'rdma'; known: none, notify");
  EXPECT_EQ(refused("\"run_until_wait\"", "\"batch\""),
            "mine.json: unknown scheduling 'batch'; known: fair, run_until_wait");
}

}  // namespace
}  // namespace sim
