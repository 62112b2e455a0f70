#include "sim/probe.hpp"

#include "sim/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::plain_cluster;

constexpr TransferQuestion kQuestion{InstructionKind::collective, CollectiveKind::all_reduce, 1 << 20, 2};

// What the simulator takes from the cores while a transfer runs is what the probe finds.
TEST(OverlapProbe, FindsTheShareThatATransferTakes) {
  const Program probe = overlap_probe(kQuestion, 3, 40);
  for (const double share : {0.0, 0.1, 0.4, 0.8}) {
    Cluster cluster = plain_cluster(2);
    cluster.link.core_share = share;
    cluster.link.latency = Seconds();
    cluster.device.launch = Seconds();
    const Prices prices = price(probe, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
    const std::optional<double> found = core_share(probe, simulate(probe, prices, cluster));
    ASSERT_TRUE(found) << share;
    EXPECT_NEAR(*found, share, 0.05);
  }
}

TEST(OverlapProbe, NothingInsideIsUnavailable) {
  const Program probe = overlap_probe(kQuestion, 1, 1);
  Timeline timeline;
  for (int rank = 0; rank < 2; ++rank) {
    RankTimeline& times = timeline.ranks.emplace_back();
    times.posted_s.assign(probe.roles[0].size(), 0);
    times.start_s = times.end_s = times.posted_s;
  }
  EXPECT_FALSE(core_share(probe, timeline));
}

}  // namespace
}  // namespace sim
