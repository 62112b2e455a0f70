#include "sim/program/fold.hpp"

#include "sim/program/memory.hpp"
#include "tests/sim/simulate/sketch.hpp"

namespace sim {
namespace {

using namespace testing;

/// Texts of the preset on so many ranks, as many as it has ways to use them.
std::vector<std::string> texts_on(const StrategyKind& kind, std::uint32_t ranks) {
  const std::string name(kind.name);
  if (name == "single") return {};
  if (name == "hypar")
    return {"hypar,levels=2x2x2" + std::string(ranks > 8 ? "x2" : "") + (ranks > 16 ? "x2" : "") + ",layers=dp"};
  if (name == "mesh") {
    std::vector<std::string> texts{fmt::format("mesh,pp=2,dp={},tp=2,microbatches=2", ranks / 4),
                                   fmt::format("mesh,pp=4,dp={},microbatches=4,schedule=1f1b", ranks / 4),
                                   fmt::format("mesh,dp={},tp=4,zero=2", ranks / 4)};
    for (int zero = 1; zero <= 3; ++zero)
      texts.push_back(fmt::format("mesh,pp=2,replicas={},shard=2,zero={},microbatches=2", ranks / 4, zero));
    return texts;
  }
  if (kind.takes("local")) return {fmt::format("{},nodes={},local=4", name, ranks / 4)};
  if (kind.takes("shard"))
    return {fmt::format("{},replicas=2,shard={}", name, ranks / 2),
            fmt::format("{},replicas={},shard=4", name, ranks / 4)};
  for (const char* degree : {"dp", "tp", "pp"})
    if (kind.takes(degree)) return {fmt::format("{},{}={}", name, degree, ranks)};
  ADD_FAILURE() << "no text for " << name;
  return {};
}

/// Networks that make ranks unequal in all ways: nodes, also half empty ones, racks, shared NICs, buses, cores that the
/// transport uses, threads that copy.
std::vector<Cluster> clusters_of(std::uint32_t ranks) {
  std::vector<Cluster> clusters{plain_cluster(ranks), receiver_cluster(ranks)};
  for (const std::uint32_t of_node : {3U, 4U, 8U}) {
    Cluster& cluster = clusters.emplace_back(on_nodes(plain_cluster(ranks), of_node));
    cluster.levels[1].link = {.latency = microseconds(50), .bandwidth = gigabytes_per_second(1)};
    cluster.levels[0].ports = of_node == 8 ? 2 : 1;
    cluster.device.asynchronous = of_node == 4;
    cluster.levels[0].link.shared = of_node == 3;
    cluster.levels[1].link.core_share = of_node == 8 ? 0.25 : 0;
  }
  Cluster& racks = clusters.emplace_back(on_nodes(plain_cluster(ranks), 2));
  racks.levels[1] = {.name = "rack", .size = 3, .link = racks.link(), .ports = 2};
  racks.levels.push_back({.name = "network", .size = (ranks + 5) / 6, .link = racks.link()});
  racks.levels[2].link.shared = true;
  return clusters;
}

/// Costs by which ranks that compute together slow each other down.
Costs contended(Costs costs) {
  costs = as_fluid(std::move(costs));
  for (std::size_t work = 0; work < costs.work_s.size(); work += 2) costs.work_s[work + 1] *= 1.25;
  return costs;
}

void expect_same_step(const Program& program, const Cluster& cluster, bool contends) {
  const auto costs = [&](const Program& of) {
    const Costs analytic = costs_of(of, *make_cost_model("analytic", cluster), cluster);
    return contends ? contended(analytic) : analytic;
  };
  const Program folded = fold(program, cluster);
  const Timeline all = simulate(program, costs(program), cluster), played = simulate(folded, costs(folded), cluster);
  ASSERT_EQ(played.ranks.size(), folded.players());
  const double rounding = 1e-12 * all.step_s;
  ASSERT_NEAR(played.step_s, all.step_s, rounding);
  for (std::uint32_t rank = 0; rank < program.ranks(); ++rank) {
    const RankTimeline &own = all.ranks[rank], &of_class = played.ranks[folded.player_of(rank)];
    for (const auto part : {&RankTimeline::compute_s, &RankTimeline::exposed_communication_s, &RankTimeline::bubble_s,
                            &RankTimeline::host_s, &RankTimeline::end_of_step_s})
      ASSERT_NEAR(of_class.*part, own.*part, rounding) << "rank " << rank;
    ASSERT_EQ(of_class.end_s.size(), own.end_s.size());
    for (std::size_t i = 0; i < own.end_s.size(); ++i) {
      ASSERT_NEAR(of_class.start_s[i], own.start_s[i], rounding) << "rank " << rank << " instruction " << i;
      ASSERT_NEAR(of_class.end_s[i], own.end_s[i], rounding) << "rank " << rank << " instruction " << i;
    }
  }
  const StepTime mean = step_time(program, all), of_classes = step_time(folded, played);
  for (const StepPart& part : kStepParts) ASSERT_NEAR(of_classes.*part.value, mean.*part.value, rounding) << part.name;
  const MemoryFit fit = fit_memory(folded, cluster);
  ASSERT_EQ(fit.needed, fit_memory(program, cluster).needed);
}

class FoldGrid : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(FoldGrid, EveryPresetTakesTheSameStep) {
  const std::uint32_t ranks = GetParam();
  std::size_t played = 0, all = 0;
  for (const StrategyKind& kind : strategy_table())
    for (const std::string& text : texts_on(kind, ranks)) {
      const bool cuts_layers = text.find("tp=") != std::string::npos;
      const Model model =
          load_model(fmt::format("{},global_batch={}", cuts_layers ? "sfc" : "resnet18,image=64", 4 * ranks));
      const Program program = lower(model, parse_strategy(text, model));
      ASSERT_EQ(program.ranks(), ranks);
      const std::vector<Cluster> clusters = clusters_of(ranks);
      for (std::size_t c = 0; c < clusters.size(); ++c) {
        SCOPED_TRACE(fmt::format("{} on cluster {}", text, c));
        expect_same_step(program, clusters[c], /*contends=*/c == 1 || c == 4);
        if (HasFatalFailure()) return;
        played += fold(program, clusters[c]).players();
        all += ranks;
      }
    }
  EXPECT_LT(played, all / 2);
}

INSTANTIATE_TEST_SUITE_P(Ranks, FoldGrid, ::testing::Values(8, 16, 32));

// Nodes of four ranks each, and lists of six: four on one node and two on another, or the other way round.
TEST(Fold, ListsLieDifferentlyOnAlikeNodes) {
  const Model model = load_model("toy_mlp,global_batch=24");
  const Program program = lower(model, parse_strategy("hsdp,replicas=2,shard=6", model));
  Cluster cluster = on_nodes(plain_cluster(12), 4);
  cluster.levels[1].link.bandwidth = gigabytes_per_second(1);
  EXPECT_EQ(fold(program, cluster).players(), 6U);
  expect_same_step(program, cluster, /*contends=*/false);
}

// The four lists of a node's ranks go through its one port at the same time, and nothing else meets.
TEST(Fold, AlikeTransfersShareAPort) {
  const Model model = load_model("sfc,global_batch=16");
  const Program program = lower(model, parse_strategy("hsdp,replicas=4,shard=4", model));
  const Cluster cluster = on_nodes(plain_cluster(16), 4);
  EXPECT_EQ(fold(program, cluster).players(), 1U);
  expect_same_step(program, cluster, /*contends=*/false);
}

// The mean step is longer than the step of the means by what ranks wait for the slowest of them. Of a class one is drawn.
TEST(Fold, TheSlowestOfAClassIsWaitedFor) {
  const Cluster cluster = plain_cluster(32);
  for (const auto& [name, text] : {std::pair("vgg11,image=64", "ddp,dp=32"), std::pair("vgg11,image=64", "zero3,dp=32"),
                                   std::pair("vgg11,image=64", "mesh,dp=8,pp=4,microbatches=4"),
                                   std::pair("sfc", "mesh,dp=8,tp=2,pp=2,microbatches=4")}) {
    const Model model = load_model(std::string(name) + ",global_batch=64");
    const Program program = lower(model, parse_strategy(text, model)), folded = fold(program, cluster);
    ASSERT_LE(folded.players(), 8U) << text;
    for (const auto& [jitter, rank_jitter] : {std::pair(0.2, 0.0), std::pair(0.05, 0.05)}) {
      const auto costs = [&, jitter = jitter, rank_jitter = rank_jitter](const Program& of) {
        Costs jittering = analytic_costs(of, cluster);
        jittering.jitter.assign(of.works.size(), jitter);
        jittering.rank_jitter = rank_jitter;
        return jittering;
      };
      const double means_s = simulate(program, costs(program), cluster).step_s,
                   all_s = expected_step(program, costs(program), cluster).step_s,
                   of_classes_s = expected_step(folded, costs(folded), cluster).step_s;
      EXPECT_NEAR(of_classes_s - means_s, all_s - means_s, 0.2 * (all_s - means_s)) << text << " " << jitter;
    }
  }
}

// What a rank's number decides isn't folded.
TEST(Fold, RanksThatTakeTurnsAreThemselves) {
  const Model model = load_model("toy_mlp,global_batch=24");
  const Program program = lower(model, parse_strategy("heat,dp=4", model));
  EXPECT_EQ(fold(program, plain_cluster(4)).players(), 1U);
  Cluster two_on_a_core = plain_cluster(4), one_host_thread = plain_cluster(4);
  for (RankPlace& place : two_on_a_core.place) place.device /= 2;
  one_host_thread.one_host_thread = true;
  EXPECT_EQ(fold(program, two_on_a_core).players(), 4U);
  EXPECT_EQ(fold(program, one_host_thread).players(), 4U);
  Sketch ring(3);  // each sends to the next
  ring.program.roles.resize(1);
  ring.program.roles[0].ranks = {0, 1, 2};
  ring.wait(0, ring.recv(0, 2, {}));
  ring.program.roles[0].by[0] = -1;
  ring.send(0, 1, {});
  EXPECT_EQ(fold(ring.program).players(), 3U);
}

}  // namespace
}  // namespace sim
