#include "sim/calibrate/probe.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "sim/calibrate/alone.hpp"
#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/simulate/simulate.hpp"
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
    cluster.levels[0].link.core_share = share;
    cluster.levels[0].link.latency = Seconds();
    cluster.device.launch = Seconds();
    const Costs costs = costs_of(probe, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
    const std::optional<double> found = core_share(probe, simulate(probe, costs, cluster));
    ASSERT_TRUE(found) << share;
    EXPECT_NEAR(*found, share, 0.05);
  }
}

// What the simulator takes from the cores by transfers that compute slows down is what the probe finds, whatever the
// share; of buckets that were written long ago, too.
TEST(TransferProbe, FindsWhatTransfersBesideComputeTake) {
  for (const CollectiveKind kind :
       {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter})
    for (const double since_written : {0.0, 3e6})
      for (const std::uint32_t members : {2, 3}) {
        BetweenTransfers between{.bytes = 1e6, .bytes_since_written = since_written, .computes_beside = true};
        const TransferQuestion question{InstructionKind::collective, kind, 600'000, members};
        const Program probe = transfer_probe(question, 4, between, false);
        const Cluster cluster = plain_cluster(members);
        for (const double share : {0.5, 0.9})
          for (const double slower : {1.0, 1.25, 1.75}) {
            Costs costs = costs_of(probe, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
            for (TransferCost& cost : costs.transfers)
              cost = {.latency_s = 2e-5, .wire_s = 1e-4, .core_share = share, .beside_compute = slower};
            const std::optional<double> found = core_time(probe, simulate(probe, costs, cluster));
            ASSERT_TRUE(found);
            EXPECT_NEAR(*found, share * slower, 0.05) << to_string(kind) << " of " << members << ", " << since_written;
          }
        between.computes_beside = false;
        const Program alone = transfer_probe(question, 4, between, false);
        const Costs costs = costs_of(alone, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
        EXPECT_FALSE(core_time(alone, simulate(alone, costs, cluster)));
      }
}

TEST(TransferProbe, ComputesBesideWhereTheStepDoes) {
  const Model model = load_model((testing::tests_folder().parent_path() / "bench/unseen/deep.json").string());
  const auto beside = [&](const char* strategy, CollectiveKind kind,
                          TransferEngine engine = TransferEngine::background) {
    Cluster cluster = plain_cluster(2);
    cluster.levels[0].link.engine = engine;
    return between_collectives(lower(model, parse_strategy(strategy, model)), cluster, kind).computes_beside;
  };
  EXPECT_TRUE(beside("heat", CollectiveKind::all_reduce));
  EXPECT_FALSE(beside("heat_blocking", CollectiveKind::all_reduce));
  EXPECT_TRUE(beside("zero3", CollectiveKind::all_gather));
  EXPECT_FALSE(beside("fsdp,prefetch=0", CollectiveKind::all_gather));
  EXPECT_FALSE(beside("heat", CollectiveKind::all_reduce, TransferEngine::receiver)) << "copied by who waits";
}

// Ranks in other processes get programs as texts.
TEST(Probes, AreReadFromTheirTexts) {
  const Model model = load_model("toy_mlp");
  for (const Program& probe :
       {overlap_probe(kQuestion, 2, 3), notification_probe(lower(model, parse_strategy("pipeline,pp=2", model)), 1),
        memory_probe(load_model("toy_mlp")), transfer_probe(kQuestion, 4, {1e6}, false),
        transfer_probe({InstructionKind::collective, CollectiveKind::all_gather, 4096, 2, {}, {}, true}, 4,
                       {.bytes = 1e6, .bytes_until_rewritten = 2e6}, false),
        transfer_probe({InstructionKind::send, {}, 4096, 2}, 4, {1e6, {"conv2d", "relu", "softmax"}}, true)})
    EXPECT_EQ(to_text(program_from_text(to_text(probe))), to_text(probe)) << probe.strategy;
}

TEST(TransferProbe, HalfOfTheMessagesAreUnexpected) {
  const Cluster cluster = plain_cluster(2);
  constexpr std::uint32_t kRepeats = 8;
  for (const bool rendezvous : {false, true}) {
    const Program probe = transfer_probe({InstructionKind::send, {}, 51200, 2}, kRepeats, {1e6}, rendezvous);
    const Costs costs = costs_of(probe, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
    const Timeline timeline = simulate(probe, costs, cluster);
    std::vector<double> posted_s[2];  // both ends post one transfer after the other
    std::vector<bool> sends;          // rank 0
    for (std::uint32_t rank = 0; rank < 2; ++rank)
      for (std::uint32_t i = 0; i < probe.roles[rank].size(); ++i) {
        if (!is_posted(probe.roles[rank].kind[i])) continue;
        posted_s[rank].push_back(timeline.ranks[rank].posted_s[i]);
        if (rank == 0) sends.push_back(probe.roles[rank].kind[i] == InstructionKind::send);
      }
    ASSERT_EQ(posted_s[0].size(), kRepeats);
    for (std::uint32_t k = 0; k < kRepeats; ++k)
      EXPECT_EQ(posted_s[sends[k] ? 0 : 1][k] < posted_s[sends[k] ? 1 : 0][k], rendezvous && k % 4 >= 2) << k;
  }
}

/// And layers of the step's kinds, before each transfer.
TEST(TransferProbe, PlaysTheStepsKindsOfLayers) {
  const auto kinds_of = [](const std::string& model_text) {
    const Model model = load_model(model_text);
    std::vector<std::string_view> kinds = between_transfers(lower(model, parse_strategy("ddp,dp=2", model))).kinds;
    std::ranges::sort(kinds);
    return kinds;
  };
  using Kinds = std::vector<std::string_view>;
  EXPECT_EQ(kinds_of("toy_mlp"), Kinds{"relu"});
  EXPECT_EQ(kinds_of("convnet"), (Kinds{"conv2d", "max_pool", "relu", "softmax"}));
  const Kinds all{"adaptive_avg_pool", "batch_norm", "conv2d", "max_pool", "relu", "softmax"};
  EXPECT_EQ(kinds_of("gpt_nano"), all);
  for (const TransferQuestion& question : {kQuestion, TransferQuestion{InstructionKind::send, {}, 12800, 2}})
    for (const Kinds& kinds : {Kinds{}, Kinds{"relu"}, Kinds{"conv2d", "softmax"}, all}) {
      const Program probe = transfer_probe(question, 4, {1e6, kinds}, false);
      std::map<std::string_view, int> played;  // on each rank
      for (const Role& role : probe.roles)
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (is_computed(role.kind[i])) played[probe.works[role.work[i]].op.kind->name] += 1;
      for (const std::string_view kind : all) {
        const bool asked = std::ranges::find(kinds, kind) != kinds.end();
        EXPECT_EQ(played[kind] > 0, asked) << kind;
        EXPECT_GE(played[kind], asked ? 4 : 0) << kind;
      }
    }
}

/// A probe computes on about as much before each of its transfers as the step does, as far as caches matter.
TEST(TransferProbe, MovesBeforeItsTransfersWhatTheStepDoes) {
  constexpr double kCaches = 38e6;
  for (const char* strategy : {"ddp_blocking", "pipeline,cut=pool2,split_size=8", "model_parallel,cut=pool2"}) {
    const Model model = load_model("convnet");
    const double step = between_transfers(lower(model, parse_strategy(strategy, model))).bytes;
    EXPECT_GT(step, 1e6) << strategy;
    for (const TransferQuestion& question : {kQuestion, TransferQuestion{InstructionKind::send, {}, 12800, 2}})
      for (const double bytes : {step, 1e6, 1e10}) {
        const Program probe = transfer_probe(question, 4, {bytes}, false);
        double computed = 0;
        for (const Work& work : probe.works)
          if (work.op.kind->name == "linear") computed = work.demand().bytes;
        EXPECT_NEAR(computed / std::min(bytes, kCaches), 1, 0.03) << strategy << " " << bytes;
      }
  }
  const Model model = load_model("convnet");
  EXPECT_EQ(between_transfers(lower(model, parse_strategy("single", model))).bytes, 0);
}

/// A bucket's first gradients were copied into it long before it is summed; a gradient that is summed at once wasn't.
TEST(TransferProbe, ComputesAfterWritingWhatTheStepDoes) {
  const Model model = load_model((testing::tests_folder().parent_path() / "bench/unseen/deep.json").string());
  const auto of = [&](const char* strategy, CollectiveKind kind) {
    return between_collectives(lower(model, parse_strategy(strategy, model)), plain_cluster(2), kind);
  };
  const BetweenTransfers ddp = of("ddp,bucket_MiB=1000,first_bucket_MiB=1000", CollectiveKind::all_reduce);
  const double all_weights = 16 * 384 * 384 * 4.0;
  EXPECT_GT(ddp.bytes_since_written,
            all_weights / 2);  // half of the layers' backwards, each of which moves a weight and more
  EXPECT_LT(ddp.bytes_since_written, 2 * all_weights);
  EXPECT_LT(of("heat", CollectiveKind::all_reduce).bytes_since_written, 1e5);
  EXPECT_LT(of("zero1", CollectiveKind::all_gather).bytes_since_written, 1e5) << "right after the update";
  EXPECT_LT(of("zero3", CollectiveKind::reduce_scatter).bytes_since_written, 1e5);
  const BetweenTransfers weights = of("zero3", CollectiveKind::all_gather);
  EXPECT_GT(weights.bytes_since_written, 5e6) << "in the step before";
  EXPECT_FALSE(weights.bytes_until_rewritten) << "who reads it reads it elsewhere";
  Cluster local = plain_cluster(2);
  local.levels[0].link.engine = TransferEngine::receiver;
  const BetweenTransfers where_it_lies =
      between_collectives(lower(model, parse_strategy("zero3", model)), local, CollectiveKind::all_gather);
  EXPECT_GT(where_it_lies.bytes_until_rewritten.value_or(0), 10e6) << "until the update";
  ASSERT_TRUE(where_it_lies.updated_by);
  EXPECT_EQ(where_it_lies.updated_by->kind->name, "adam");

  const Program probe = transfer_probe(kQuestion, 4, {1e7, {"relu"}, 2e6}, false);
  std::vector<double> played;  // bytes of what a rank computes before the first transfer; of copies and small layers 0
  const Role& role = probe.roles[0];
  for (std::uint32_t i = 0; i < role.size() && !is_posted(role.kind[i]); ++i)
    if (const Work& work = probe.works[role.work[i]]; work.op.kind->name != "relu")
      played.push_back(work.op.kind->name == "linear" ? work.demand().bytes : 0);
  ASSERT_EQ(played.size(), 3);
  EXPECT_NEAR(played[0] / 8e6, 1, 0.03);
  EXPECT_EQ(played[1], 0);
  EXPECT_NEAR(played[2] / 2e6, 1, 0.05);
}

/// What is given was written, and is written again, as many bytes before and after as in the step, by an optimizer where
/// that does; and so is as much that nobody reads.
TEST(TransferProbe, GivesInTurnWhatWasWrittenAsLongAgo) {
  constexpr double kBytes = 4e6;
  const OpInstance adam{&op_table().at("adam"), complete_attributes(op_table().at("adam"), {}, ""), {}};
  struct Case {
    double since, until;
    std::uint32_t buffers, ahead;
  };
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::broadcast})
    for (const bool in_place : {false, true})
      for (const bool updated : {false, true})
        for (const auto& [since, until, buffers, ahead] : {Case{0, 0, 1, 0},
                                                           {0, 2 * kBytes, 2, 0},
                                                           {0, 9 * kBytes, 9, 0},
                                                           {3 * kBytes, kBytes, 4, 3},
                                                           {1e3 * kBytes, 1e3 * kBytes, 24, 12}}) {
          if (in_place && kind != CollectiveKind::all_gather) continue;
          SCOPED_TRACE(fmt::format("{} {} {} {} {}", to_string(kind), in_place, updated, since, until));
          TransferQuestion question{InstructionKind::collective, kind, 1 << 18, 2};
          question.own_in_place = in_place;
          BetweenTransfers between{.bytes = kBytes, .bytes_since_written = since, .bytes_until_rewritten = until};
          if (updated) between.updated_by = adam;
          const Program probe = transfer_probe(question, 4, between, false);
          const Role& role = probe.roles[0];
          std::vector<std::uint32_t> given, written;
          for (std::uint32_t i = 0; i < role.size(); ++i)
            if (role.kind[i] == InstructionKind::collective) given.push_back(role.reads(i)[0]);
          const auto is_given = [&](std::uint32_t tensor) { return std::ranges::find(given, tensor) != given.end(); };
          const auto is_writer = [&](std::uint32_t i) {
            return role.kind[i] == InstructionKind::update ||
                   (is_computed(role.kind[i]) && probe.works[role.work[i]].op.kind->name == "scaled_copy");
          };
          for (std::uint32_t i = 0; i < role.size(); ++i) {
            if (is_writer(i)) EXPECT_EQ(role.kind[i] == InstructionKind::update, updated) << i;
            if (is_writer(i) && is_given(role.writes(i)[0])) written.push_back(role.writes(i)[0]);
          }
          ASSERT_EQ(given.size() % buffers, 0U);
          ASSERT_EQ(written.size(), given.size());
          EXPECT_GE(given.size(), 4U);
          EXPECT_EQ(std::set(given.begin(), given.end()).size(), buffers);
          for (std::size_t k = 0; k < given.size(); ++k)
            EXPECT_EQ(written[k], given[(k + ahead) % given.size()]) << "to be given so many transfers later";

          // Each writing takes 20 us, of what is given 25.
          Timeline timeline;
          timeline.ranks.resize(2);
          for (RankTimeline& times : timeline.ranks) times.start_s = times.end_s = std::vector<double>(1000);
          for (std::uint32_t i = 0; i < role.size(); ++i)
            if (is_writer(i)) timeline.ranks[0].end_s[i] = is_given(role.writes(i)[0]) ? 25e-6 : 20e-6;
          const std::vector<std::vector<double>> times = rewriting_times(probe, timeline);
          EXPECT_EQ(times.size(), 2U);
          EXPECT_EQ(times[0].size(), given.size());
          for (const double seconds : times[0]) EXPECT_NEAR(seconds, 5e-6, 1e-12);
        }
  const Program unread = transfer_probe(kQuestion, 4, {kBytes}, false);
  RankTimeline any;
  any.start_s = any.end_s = std::vector<double>(1000);
  for (const std::vector<double>& of_rank : rewriting_times(unread, Timeline{.ranks = {any, any}}))
    EXPECT_TRUE(of_rank.empty());
  // Transfers of more than lies between those of a step.
  const TransferQuestion large{InstructionKind::collective, CollectiveKind::all_gather, 1 << 24, 2};
  EXPECT_NO_THROW(transfer_probe(large, 4, {.bytes = 1e5, .bytes_until_rewritten = 1e5}, false));
}

/// `fitted` knows the machine's memory from the probe alone: parameters larger than any that it holds.
TEST(MemoryProbe, ShowsTheBandwidthBeyondTheCaches) {
  const Cluster cluster = plain_cluster(1);
  const auto analytic = cost_model_table().at("analytic").make(cluster, nullptr);
  Profile profile("core");
  for (const Work& work : memory_probe(load_model("toy_mlp")).works) {
    const double seconds = 2 * analytic->compute(work).busy_s[0];  // half of the data sheet's bandwidth
    profile.add_op("local", work_key(work), 1, std::vector{seconds, 1.01 * seconds});
  }
  profile.add_launch(std::vector{1e-6});
  const auto fitted = cost_model_table().at("fitted").make(cluster, &profile);
  for (const char* key : {"accumulate.forward f32[200000000] f32[200000000]", "scaled_copy.forward f32[200000000]",
                          "sgd.update f32[200000000] lr=0.1 momentum=0 weight_decay=0"}) {
    const Work work = work_from_key(key);
    EXPECT_NEAR(fitted->compute(work).busy_s[0] / (2 * analytic->compute(work).busy_s[0]), 1, 0.1) << key;
  }
}

/// Updates are slow to begin and slow per byte here: copies and additions don't tell, nor does another optimizer's.
TEST(MemoryProbe, ShowsTheModelsOptimizer) {
  const Cluster cluster = plain_cluster(1);
  const auto analytic = cost_model_table().at("analytic").make(cluster, nullptr);
  const auto truth = [&](const Work& work) {
    const double seconds = analytic->compute(work).busy_s[0];
    return work.pass == Pass::update ? 2e-6 + 5 * seconds : seconds;
  };
  Profile profile("core");
  for (const Work& work : memory_probe(load_model("toy_mlp,optimizer=adam")).works)
    profile.add_op("local", work_key(work), 1, std::vector{truth(work), 1.01 * truth(work)});
  profile.add_launch(std::vector{1e-6});
  const auto fitted = cost_model_table().at("fitted").make(cluster, &profile);
  for (const std::int64_t elements : {100, 10'000, 1'000'000, 10'000'000}) {
    OpInstance update = load_model("toy_mlp,optimizer=adam").optimizer;
    update.inputs = {{Dtype::f32, {elements}}};
    const Work work{update, Pass::update, 0};
    EXPECT_NEAR(fitted->compute(work).busy_s[0] / truth(work), 1, 0.15) << elements;
  }
}

TEST(MemoryProbe, HasTheModelsDtype) {
  for (const Work& work : memory_probe(load_model("toy_mlp,dtype=f64")).works)
    for (const TensorSpec& input : work.op.inputs) EXPECT_EQ(input.dtype, Dtype::f64) << work_key(work);
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
