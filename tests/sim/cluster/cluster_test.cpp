#include "sim/cluster/cluster.hpp"

#include "sim/text/spec.hpp"
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
  EXPECT_EQ(cluster.levels[0].link.engine, TransferEngine::receiver);
  EXPECT_EQ(cluster.levels[0].link.transport, Transport::notify);
  EXPECT_FALSE(cluster.levels[0].link.shared);
  EXPECT_EQ(cluster.levels[1].link.engine, TransferEngine::background);
  EXPECT_EQ(cluster.levels[1].link.transport, Transport::none);
  EXPECT_TRUE(cluster.levels[1].link.shared);
  // Ranks beyond the last device start again at the first, as the executor pins them.
  const std::uint32_t devices[] = {0, 1, 2, 3, 0, 1}, nodes[] = {0, 0, 1, 1, 0, 0};
  for (std::size_t rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(cluster.place[rank].device, devices[rank]);
    EXPECT_EQ(cluster.node_of(static_cast<std::uint32_t>(rank)), nodes[rank]);
  }
}

// ---- Levels ----

constexpr const char* kLevels = R"({
  "format": "paragauge-cluster-2", "name": "mine", "world": "nccl", "device": "a100_sxm_80g", "devices": 16,
  "levels": [
    {"name": "bridge", "size": 2, "link": {"latency_us": 2, "bandwidth_GBps": 24}},
    {"name": "node", "size": 2, "ports": 3, "link": {"latency_us": 4, "bandwidth_GBps": 10, "shared": true}},
    {"name": "rack", "size": 4, "link": {"latency_us": 14, "bandwidth_GBps": 12}}
  ]
})";

TEST(Cluster, SaysWhatATrainingLoopsHostDoes) {
  const auto with_loop = [](const std::string& loop) {
    std::string text = kLevels;
    return text.insert(text.find("\"levels\""), "\"loop\": " + loop + ", ");
  };
  const TrainingLoop loop =
      load(with_loop(R"({"sample_us": 70, "host_to_device_GBps": 6, "updates": "each", "source": "here"})")).loop;
  EXPECT_DOUBLE_EQ(loop.sample.in_seconds(), 70e-6);
  EXPECT_DOUBLE_EQ((bytes(6e9) / loop.host_to_device).in_seconds(), 1);
  EXPECT_TRUE(loop.updates_each);
  EXPECT_FALSE(load(with_loop("{}")).loop.updates_each);
  EXPECT_EQ(load(kLevels).loop.sample, Seconds());
  const auto refused = [](const std::string& text) {
    const std::string message = message_of([&] { (void)load(text); });
    return message.substr(message.find("mine.json"));
  };
  EXPECT_EQ(refused(with_loop(R"({"updates": "all"})")),
            "mine.json: loop: unknown updates 'all'; known: together, each");
  EXPECT_EQ(
      refused(with_loop(R"({"sample_ms": 1})")),
      "mine.json: loop: unknown key 'sample_ms'; known: host_to_device_GBps, sample_us, source, updates; did you mean "
      "'sample_us'?");
  std::string cpu = with_loop("{}");
  cpu.replace(cpu.find("a100_sxm_80g"), 12, "cpu_core");
  EXPECT_EQ(refused(cpu), "mine.json: loop is of an accelerator's host; found device 'cpu_core'");
}

// ---- Devices of several kinds ----

TEST(Cluster, HasDevicesOfSeveralKinds) {
  const std::string list =
      R"([{"device": "a100_sxm_80g", "count": 6}, {"device": "t4", "count": 4}, {"device": "a100_sxm_80g", "count": 6}])";
  const auto with_device = [](const std::string& json) { return replaced(kLevels, "\"a100_sxm_80g\"", json); };
  const Cluster cluster = load(with_device(list), 16);
  EXPECT_TRUE(cluster.is_mixed());
  EXPECT_EQ(cluster.device.name, load_device("a100_sxm_80g").name);
  ASSERT_EQ(cluster.other_kinds.size(), 1U);
  EXPECT_EQ(cluster.other_kinds[0].name, load_device("t4").name);
  for (std::uint32_t rank = 0; rank < 16; ++rank) EXPECT_EQ(cluster.kind_of(rank), rank >= 6 && rank < 10 ? 1U : 0U);
  EXPECT_EQ(cluster.device_of(7).name, load_device("t4").name);
  EXPECT_EQ(cluster.device_name(), load_device("a100_sxm_80g").name + ", " + load_device("t4").name);
  ASSERT_EQ(cluster.remarks.size(), 1U);
  EXPECT_EQ(
      cluster.remarks[0],
      "Cluster 'mine' has devices of several kinds (12 a100_sxm_80g, 4 t4). Every rank gets an equal share of the "
      "batch and of split layers, and stages are cut as if all devices were alike; whoever is slower, the others "
      "wait for");
  // Whose ranks all sit on one kind.
  EXPECT_EQ(load(with_device(list), 6).device_name(), load_device("a100_sxm_80g").name);
  EXPECT_EQ(load(with_device(list), 6).kinds_in_use(), std::vector<std::uint32_t>{0});

  const Cluster shares =
      load(with_device(R"([{"device": "t4", "count": 8, "share": 0.5}, {"device": "t4", "count": 8}])"), 16);
  EXPECT_EQ(shares.device_of(0).share, 0.5);
  EXPECT_EQ(shares.device_of(0).name, "0.5 of " + load_device("t4").name);
  EXPECT_EQ(shares.device_of(8).share, 1);
  EXPECT_EQ(shares.device_of(0).sheet, shares.device_of(8).sheet);
  EXPECT_FALSE(load(with_device(R"([{"device": "t4", "count": 8}, {"device": "t4", "count": 8}])"), 16).is_mixed());

  const auto refused = [&](const std::string& json) {
    const std::string message = message_of([&] { (void)load(with_device(json)); });
    return message.substr(message.find("mine.json"));
  };
  EXPECT_EQ(refused(R"([{"device": "a100_sxm_80g", "count": 8}, {"device": "t4", "count": 4}])"),
            "mine.json: device lists 12 devices, but the levels make 16 (bridge 2 x node 2 x rack 4)");
  EXPECT_EQ(refused(R"([{"device": "t4"}])"), "mine.json: device[0]: count is missing: how many t4 there are");
  EXPECT_EQ(refused(R"([{"device": "t4", "count": 0}])"), "mine.json: device[0]: count=0 must be from 1 to 1048576");
  EXPECT_EQ(refused(R"([{"device": "t4", "count": 1048576}, {"device": "t4", "count": 1}])"),
            "mine.json: device: at most 1048576 in all");
  EXPECT_EQ(refused("[]"), "mine.json: device must not be an empty list");
  EXPECT_EQ(refused(R"([{"device": "t4", "count": 8}, {"device": "cpu_core", "count": 8}])"),
            "mine.json: device[1]: a cluster has accelerators or CPU cores, not both; found t4 and cpu_core");
  EXPECT_EQ(refused(R"([{"device": "t4", "count": 16, "share": 0}])"),
            "mine.json: device[0]: share=0 must be from 1e-06 to 1");
  EXPECT_EQ(refused(R"([{"device": "t4", "count": 16, "shares": 1}])"),
            "mine.json: device[0]: unknown key 'shares'; known: count, device, share; did you mean 'share'?");
}

TEST(Cluster, HasADeviceInPlace) {
  const std::string device = R"({"name": "mine", "asynchronous": true, "peak_f32_TFLOPps": 10,
    "memory_bandwidth_GBps": 500, "memory_capacity_GiB": 16})";
  const auto with_device = [](const std::string& json) { return replaced(kLevels, "\"a100_sxm_80g\"", json); };
  const Cluster cluster = load(with_device(device));
  EXPECT_EQ(cluster.device.name, "mine");
  EXPECT_EQ(cluster.device.memory_capacity, gibibytes(16));
  const Cluster mixed = load(with_device(fmt::format(
      R"([{{"device": {0}, "count": 8}}, {{"device": "t4", "count": 4}}, {{"device": {0}, "count": 4}}])", device)));
  EXPECT_EQ(mixed.other_kinds.size(), 2U);  // who is described twice is another kind
  const std::string message =
      message_of([&] { (void)load(with_device(replaced(device, R"("peak_f32_TFLOPps": 10,)", ""))); });
  EXPECT_EQ(message.substr(message.find("mine.json")), "mine.json: device: 'peak_f32_TFLOPps' is missing");
}

TEST(Cluster, ThreadsOfARankAreCoresOfOneKind) {
  Cluster cluster = plain_cluster(6);
  cluster.other_kinds = {cluster.device};
  cluster.other_kinds[0].name = "slow";
  cluster.kinds = {0, 0, 1, 1, 1, 0};
  cluster.place.resize(2);
  EXPECT_EQ(with_threads(cluster, 2, "s").kind_of(1), 1U);
  cluster.place.resize(3);
  EXPECT_EQ(message_of([&] { (void)with_threads(cluster, 2, "s"); }),
            "strategy 's': the 2 cores of rank 2 are of several kinds (slow, core) on 'plain'");
}

TEST(Cluster, HasLevels) {
  const Cluster cluster = load(kLevels, 17);
  EXPECT_EQ(cluster.devices(), 16U);
  EXPECT_EQ(cluster.devices_per_node(), 4U);  // a node is the level of that name
  EXPECT_EQ(cluster.nodes(), 4U);
  ASSERT_EQ(cluster.levels.size(), 3U);
  EXPECT_EQ(cluster.levels[0].ports, 1U);  // where a file doesn't say
  EXPECT_EQ(cluster.levels[1].ports, 3U);
  EXPECT_TRUE(cluster.levels[1].link.shared);
  EXPECT_DOUBLE_EQ(cluster.levels[2].link.bandwidth.base(), 12e9);
  EXPECT_EQ(cluster.node_of(7), 1U);
  EXPECT_EQ(cluster.group_of(7, 0), 3U);
  EXPECT_EQ(cluster.level_between(0, 1), 0U);
  EXPECT_EQ(cluster.level_between(0, 2), 1U);
  EXPECT_EQ(cluster.level_between(3, 4), 2U);
  EXPECT_EQ(cluster.level_between(0, 16), 0U);  // on one device
  EXPECT_EQ(cluster.remarks, std::vector<std::string>());
}

TEST(Cluster, SaysHowRanksLie) {
  const Cluster cluster = load(kLevels, 16);
  const auto spread = [&](const std::vector<std::uint32_t>& ranks) { return cluster.spread(ranks); };
  using Units = std::vector<std::uint32_t>;
  EXPECT_EQ(spread({0, 1}), (Units{2}));
  EXPECT_EQ(spread({0, 1, 2, 3}), (Units{2, 2}));
  EXPECT_EQ(spread({0, 2}), (Units{1, 2}));
  EXPECT_EQ(spread({0, 4, 8, 12}), (Units{1, 1, 4}));
  EXPECT_EQ(spread({0, 1, 2, 4}), (Units{2, 2, 2}));  // the busiest group of each level
}

TEST(Cluster, OfVersionOneIsTwoLevelsWithOnePortForEachNode) {
  const Cluster cluster = load(kFile, 4);
  ASSERT_EQ(cluster.levels.size(), 2U);
  EXPECT_EQ(cluster.levels[0].size, 2U);
  EXPECT_EQ(cluster.levels[0].ports, 1U);
  EXPECT_EQ(cluster.levels[1].size, 2U);
  ASSERT_EQ(cluster.remarks.size(), 1U);
  const std::string remark =
      "mine.json doesn't say how many ports (NICs) leave a node; one is taken for granted (key 'ports' of a level)";
  EXPECT_TRUE(cluster.remarks[0].ends_with(remark)) << cluster.remarks[0];
  EXPECT_EQ(cluster.all_reduce, "");
  const Cluster gpus = load(replaced(replaced(kFile, "\"gloo\"", "\"nccl\""), "cpu_core", "v100_sxm2_16g"), 4);
  EXPECT_TRUE(gpus.remarks.at(0).ends_with(remark + "; all_reduce goes in rings, as before NCCL 2.4 (key 'nccl_algo')"))
      << gpus.remarks.at(0);
  EXPECT_EQ(gpus.all_reduce, "striped_ring");
}

TEST(Cluster, SumsByTheAlgorithmThatNcclIsHeldTo) {
  const auto file = [](std::string_view key) { return replaced(kLevels, R"("devices": 16)", key); };
  EXPECT_EQ(load(kLevels, 1).all_reduce, "");
  EXPECT_EQ(load(file(R"("nccl_algo": "ring")"), 1).all_reduce, "striped_ring");
  EXPECT_EQ(load(file(R"("nccl_algo": "tree")"), 1).all_reduce, "double_tree");
  const auto refused = [](const std::string& text) {
    const std::string message = message_of([&] { (void)load(text); });
    return message.substr(message.find("mine.json"));
  };
  EXPECT_EQ(refused(file(R"("nccl_algo": "both")")), "mine.json: unknown nccl_algo 'both'; known: ring, tree, nvls");
  EXPECT_EQ(refused(file(R"("nccl_algo": "nvls")")),
            "mine.json: nccl_algo=nvls is for one node whose link has nccl.nvls");
  EXPECT_EQ(refused(replaced(file(R"("nccl_algo": "ring")"), "nccl\"", "gloo\"")),
            "mine.json: nccl_algo is for world nccl; found gloo");
}

TEST(Cluster, LevelsThatDontFitAreRefused) {
  const auto refused = [](std::string_view from, std::string_view to) {
    const std::string message = message_of([&] { (void)load(replaced(kLevels, from, to)); });
    return message.substr(message.find("mine.json"));
  };
  EXPECT_EQ(refused("\"devices\": 16", "\"devices\": 24"),
            "mine.json: devices=24, but the levels make 16 (bridge 2 x node 2 x rack 4)");
  EXPECT_EQ(refused(R"(, "link": {"latency_us": 14, "bandwidth_GBps": 12})", ""),
            "mine.json: levels[2]: link is missing: what connects the 4 groups of level 'rack' (latency_us, "
            "bandwidth_GBps)");
  EXPECT_EQ(refused(R"("rack", "size": 4)", R"("rack", "size": 4, "ports": 8)"),
            "mine.json: levels[2]: ports=8 lead nowhere: there is no level above 'rack'");
  EXPECT_EQ(refused(R"("ports": 3)", R"("ports": 0)"), "mine.json: levels[1]: ports=0 must be from 1 to 1048576");
  EXPECT_EQ(refused(R"("bandwidth_GBps": 12})", R"("bandwidth_GBps": 12e9})"),
            "mine.json: levels[2]: link: bandwidth_GBps=12000000000 must be from 1e-09 to 100000")
      << "bytes per second";
  EXPECT_EQ(refused(R"("rack", "size": 4)", R"("rack")"), "mine.json: levels[2]: size is missing");
  EXPECT_EQ(refused(R"("bridge", "size": 2)", R"("bridge")"),
            "mine.json: levels[0]: size is left open; say how many devices there are (--devices)");
  EXPECT_EQ(refused(R"("rack")", R"("node")"), "mine.json: two levels are named 'node'");
  EXPECT_EQ(message_of([&] { (void)load(replaced(kLevels, "\"size\": 4", "\"size\": 1000000")); }),
            "cluster 'mine': bridge 2 x node 2 x rack 1000000; at most 1048576 devices in all");
}

TEST(Cluster, HasAsManyDevicesAsAreGiven) {
  EXPECT_EQ(load_cluster("dgx_a100", 1, /*devices=*/4).devices(), 4U);
  EXPECT_EQ(load_cluster("dgx_a100", 1, /*devices=*/0, /*open_devices=*/4).devices(), 8U);
  EXPECT_EQ(load_cluster("cpu_local", 1, /*devices=*/0, /*open_devices=*/4).devices(), 4U);
  EXPECT_EQ(load_cluster("cpu_local", 1, /*devices=*/3, /*open_devices=*/4).devices(), 3U);
}

TEST(Cluster, FindsItsDeviceBesideItself) {
  const TemporaryFolder folder;
  const std::string device = read_text_file(catalog_directory() / "devices" / "a100_sxm_80g.json");
  folder.file("own.json", replaced(device, "a100_sxm_80g", "own"));
  const auto file = folder.file("mine.json", replaced(kLevels, "a100_sxm_80g", "own.json"));
  EXPECT_EQ(load_cluster(file, 1).device.name, "own");  // wherever the program runs
  const auto other = folder.file("other.json", replaced(kLevels, "a100_sxm_80g", "gone.json"));
  const std::string message = message_of([&] { (void)load_cluster(other, 1); });
  EXPECT_TRUE(message.ends_with("gone.json (a path in a cluster file is relative to that file)")) << message;
}

TEST(Cluster, LinksAmongFewMayBeSlower) {
  const Cluster cluster =
      load(replaced(kLevels, R"("bandwidth_GBps": 12})", R"("bandwidth_GBps": 12, "bandwidth_among_GBps": {"2": 3}})"));
  EXPECT_DOUBLE_EQ(cluster.levels[2].link.among(2).base(), 3e9);
  EXPECT_DOUBLE_EQ(cluster.levels[2].link.among(3).base(), 12e9);
}

TEST(Cluster, SaysWhatProcessesHoldOfADevice) {
  const auto with = [](const std::string& items) {
    return load(replaced(kFile, "\"nodes\": 2,", items + "\"nodes\": 2,"));
  };
  EXPECT_FALSE(with("").communicator);
  EXPECT_EQ(with("\"communicator_MiB\": 688, ").communicator, mebibytes(688));
  EXPECT_EQ(with("\"communicator_MiB\": 0, ").communicator, Bytes());
  const std::string message = message_of([&] { with("\"communicator_MiB\": -1, "); });
  EXPECT_EQ(message.substr(message.find("mine.json")),
            "mine.json: communicator_MiB=-1 must be from 0 to 1000000000000");
  const auto context = [](const std::string& items) {
    const TemporaryFolder folder;
    return load_device(folder.file("card.json", R"({"format": "paragauge-device-1", "name": "card", "source": "s", )" +
                                                    items + R"("peak_f32_TFLOPps": 1, "peak_f64_TFLOPps": 1,
      "peak_bf16_TFLOPps": 1, "memory_bandwidth_GBps": 1, "memory_capacity_GiB": 1, "launch_us": 1})"))
        .context;
  };
  EXPECT_EQ(context(""), Bytes());  // a core has none
  EXPECT_EQ(context("\"asynchronous\": true, "), mebibytes(426 + 32));
  EXPECT_EQ(context("\"asynchronous\": true, \"context_MiB\": 300, "), mebibytes(300));
}

TEST(Cluster, OfThisMachineRunsInRealTime) {
  for (const char* name : {"cpu_local", "cpu_gloo"})
    EXPECT_EQ(load_cluster(name, 2, 2).scheduling, Scheduling::run_until_wait) << name;
  EXPECT_EQ(load_cluster("cpu_gloo", 2, 2).link().transport, Transport::notify);
  EXPECT_EQ(load_cluster("h200_local", 2).scheduling, Scheduling::fair);  // streams of one GPU
  // A network between the ranks changes neither.
  const Cluster behind = with_network(load_cluster("cpu_gloo", 2, 2), "1gbit");
  EXPECT_EQ(behind.levels[0].link.transport, Transport::notify);
  EXPECT_EQ(behind.scheduling, Scheduling::run_until_wait);
}

// A thread has a core for itself, and a rank's are of one node.
TEST(Cluster, RanksOfMoreThreads) {
  const auto places = [](const std::string& text, std::uint32_t ranks, std::uint32_t threads) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> of_ranks;
    const Cluster cluster = with_threads(load(text, ranks), threads, "s");
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      of_ranks.emplace_back(cluster.place[rank].device, cluster.node_of(rank));
    return of_ranks;
  };
  using Places = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  const std::string four = replaced(kFile, "\"devices_per_node\": 2", "\"devices_per_node\": 4"),
                    five = replaced(kFile, "\"devices_per_node\": 2", "\"devices_per_node\": 5");
  EXPECT_EQ(places(four, 4, 2), (Places{{0, 0}, {2, 0}, {4, 1}, {6, 1}}));
  EXPECT_EQ(places(five, 4, 2), (Places{{0, 0}, {2, 0}, {5, 1}, {7, 1}}));
  EXPECT_EQ(places(four, 10, 1).at(9), (std::pair{1U, 0U}));  // ranks of one thread may share a core
}

TEST(Cluster, SaysThatThreadsHaveNoCores) {
  const auto refused = [](const Cluster& cluster, std::uint32_t threads, std::string_view strategy) {
    return message_of([&] { (void)with_threads(cluster, threads, strategy); });
  };
  EXPECT_EQ(refused(load_cluster("cpu_local", 2, 2), 2, "ddp,dp=2,threads=2"),
            "strategy 'ddp,dp=2,threads=2': 2 ranks of 2 threads need 4 cores; this machine has 2");
  EXPECT_EQ(refused(load_cluster("cpu_gloo", 1, 2), 3, "single,threads=3"),
            "strategy 'single,threads=3': a rank of 3 threads needs 3 cores; this machine has 2");
  EXPECT_EQ(refused(load(kFile, 1), 4, "single,threads=4"),
            "strategy 'single,threads=4': a rank of 4 threads needs 4 cores; 'mine' has 2 nodes of 2");
  EXPECT_EQ(refused(load_cluster("dgx_a100", 1), 2, "single,threads=2"),
            "strategy 'single,threads=2': threads=2 is for ranks on CPU cores; 'dgx_a100' computes on a100_sxm_80g");
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

TEST(Cluster, OfHostsLikeThis) {
  const Cluster host = with_threads(load_cluster("cpu_gloo", 2, 4), 2, "");  // two ranks of two threads on four cores
  Link between = host.link();
  between.bandwidth = gigabytes_per_second(0.125);
  const Cluster all = with_hosts(host, 3, 5, between);
  EXPECT_EQ(all.world, "gloo@3hosts");
  EXPECT_EQ(all.nodes(), 3U);
  std::vector<std::uint32_t> devices;
  for (const RankPlace& place : all.place) devices.push_back(place.device);
  EXPECT_EQ(devices, (std::vector<std::uint32_t>{0, 2, 4, 6, 8}));
  EXPECT_EQ(all.spread(std::vector<std::uint32_t>{0, 1}), std::vector<std::uint32_t>{2});
  EXPECT_EQ(all.spread(std::vector<std::uint32_t>{0, 2, 4}), (std::vector<std::uint32_t>{1, 3}));
  EXPECT_EQ(all.levels[1].link.bandwidth.base(), 0.125e9);
  EXPECT_EQ(testing::message_of([&] { with_hosts(host, 2, 5, between); }), "5 ranks on 2 hosts of 2 ranks each");
  const Cluster limited = with_hosts(host, 2, 4, between, "80mbit");
  EXPECT_EQ(limited.world, host.world + "@2hosts@80mbit");
  EXPECT_EQ(limited.levels.back().link.bandwidth, gigabytes_per_second(0.01));
  EXPECT_EQ(limited.levels[0].link.bandwidth, host.levels[0].link.bandwidth);
  EXPECT_EQ(with_hosts(host, 2, 4, between, "8000gbit").levels.back().link.bandwidth, between.bandwidth);
  EXPECT_EQ(with_hosts(host, 2, 4, between, "unlimited").world, host.world + "@2hosts@unlimited");
  EXPECT_TRUE(
      testing::message_of([&] { with_hosts(host, 2, 4, between, "fast"); }).starts_with("network=fast must be"));
}

}  // namespace
}  // namespace sim
