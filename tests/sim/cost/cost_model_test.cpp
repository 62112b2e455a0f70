#include "sim/cost/cost_model.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/cost/collective/collective.hpp"
#include "sim/cost/profile.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/given.hpp"
#include "sim/program/transfers.hpp"
#include "sim/simulate/simulate.hpp"

namespace sim {
namespace {

Cluster test_cluster(const std::string& world, std::uint32_t ranks, std::uint32_t ranks_per_node = 100) {
  Cluster cluster;
  cluster.name = "test";
  cluster.is_this_machine = true;
  cluster.world = world;
  cluster.device.name = "test_core";
  cluster.device.peak(Arithmetic::f32) = teraflops_per_second(0.1);
  cluster.device.peak(Arithmetic::f64) = teraflops_per_second(0.05);
  cluster.device.memory_bandwidth = gigabytes_per_second(10);
  cluster.device.compute_efficiency = 0.8;
  cluster.device.memory_efficiency = 0.5;
  cluster.device.launch = microseconds(3);
  cluster.levels = {{.name = "node",
                     .size = ranks_per_node,
                     .link = {.latency = microseconds(20),
                              .bandwidth = gigabytes_per_second(4),
                              .engine = TransferEngine::receiver,
                              .core_share = 0.5}},
                    {.name = "network",
                     .size = (ranks + ranks_per_node - 1) / ranks_per_node,
                     .link = {.latency = microseconds(100), .bandwidth = gigabytes_per_second(1)}}};
  for (std::uint32_t rank = 0; rank < ranks; ++rank) cluster.place.push_back({rank});
  return cluster;
}

Work linear(std::int64_t rows, std::int64_t features, Dtype dtype = Dtype::f32) {
  const OpKind& kind = op_table().at("linear");
  return {.op = {&kind,
                 complete_attributes(kind, {{"out_features", static_cast<double>(features)}}, "test"),
                 {{dtype, {rows, features}}}}};
}

Work relu(std::int64_t rows, std::int64_t features) {
  const OpKind& kind = op_table().at("relu");
  return {.op = {&kind, complete_attributes(kind, {}, "test"), {{Dtype::f32, {rows, features}}}}};
}

std::unique_ptr<CostModel> make(const std::string& name, const Cluster& cluster, const Profile* profile = nullptr) {
  return cost_model_table().at(name).make(cluster, profile);
}

TransferQuestion question(CollectiveKind kind, std::int64_t bytes, std::uint32_t members) {
  return {.kind = InstructionKind::collective, .collective = kind, .bytes = bytes, .members = members};
}

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Analytic, ComputeIsTheRoofline) {
  const auto model = make("analytic", test_cluster("gloo", 2));
  const Work arithmetic = linear(512, 1024), traffic = relu(512, 1024);
  // One is bound by arithmetic, the other by memory; peak · 0.8 and bandwidth · 0.5.
  ASSERT_GT(arithmetic.demand().flops / 80e9, arithmetic.demand().bytes / 5e9);
  ASSERT_LT(traffic.demand().flops / 80e9, traffic.demand().bytes / 5e9);
  EXPECT_DOUBLE_EQ(model->compute(arithmetic).busy_s.at(0), arithmetic.demand().flops / 80e9);
  EXPECT_DOUBLE_EQ(model->compute(traffic).busy_s.at(0), traffic.demand().bytes / 5e9);
  EXPECT_EQ(model->compute(traffic).busy_s.size(), 1U);
  EXPECT_DOUBLE_EQ(model->compute(linear(512, 1024, Dtype::f64)).busy_s[0], arithmetic.demand().flops / 40e9);
  EXPECT_DOUBLE_EQ(model->launch_s(0), 3e-6);
}

TEST(Analytic, ThreadsHaveTheirCoresRatesAsFarAsTheOpIsCut) {
  const auto model = make("analytic", test_cluster("gloo", 1));
  const auto speedup = [&](Work work, std::uint32_t threads) {
    const double alone_s = model->compute(work).busy_s.at(0);
    work.threads = threads;
    return alone_s / model->compute(work).busy_s.at(0);
  };
  for (const std::uint32_t threads : {2U, 4U}) {
    EXPECT_DOUBLE_EQ(speedup(linear(512, 1024), threads), threads);
    EXPECT_DOUBLE_EQ(speedup(relu(512, 1024), threads), threads);
  }
  // ATen's grain: 32,768 elements.
  EXPECT_DOUBLE_EQ(speedup(relu(32, 1024), 4), 1);
  EXPECT_DOUBLE_EQ(speedup(relu(32, 1025), 4), 2);
  EXPECT_DOUBLE_EQ(speedup(relu(96, 1024), 4), 3);
}

TEST(Analytic, SaysWhichPeakIsMissing) {
  const auto model = make("analytic", test_cluster("gloo", 2));
  EXPECT_EQ(message_of([&] { (void)model->compute(linear(2, 4, Dtype::bf16)); }),
            "device 'test_core' has no rate for bf16, which '" + work_key(linear(2, 4, Dtype::bf16)) +
                "' needs: peak_bf16_TFLOPps in its file");
}

TEST(Analytic, TransfersAreStepsAndWireBytes) {
  const Cluster cluster = test_cluster("gloo", 4);
  const auto model = make("analytic", cluster);
  const TransferCost ring = model->transfer(question(CollectiveKind::all_reduce, 8'000'000, 4));
  EXPECT_DOUBLE_EQ(ring.latency_s, 2 * 3 * 20e-6);
  EXPECT_DOUBLE_EQ(ring.wire_s, 2 * 3 / 4.0 * 8e6 / 4e9);
  EXPECT_EQ(ring.core_share, 0.5);
  const TransferCost tree = model->transfer(question(CollectiveKind::broadcast, 8'000'000, 4));
  EXPECT_DOUBLE_EQ(tree.latency_s, 2 * 20e-6);
  EXPECT_DOUBLE_EQ(tree.wire_s, 2 * 8e6 / 4e9);
  const TransferCost send = model->transfer({.kind = InstructionKind::send, .bytes = 4'000'000});
  EXPECT_DOUBLE_EQ(send.latency_s, 20e-6);
  EXPECT_DOUBLE_EQ(send.wire_s, 1e-3);
  const TransferCost far = model->transfer({.kind = InstructionKind::send, .bytes = 4'000'000, .spread = {1, 2}});
  EXPECT_DOUBLE_EQ(far.latency_s, 100e-6);
  EXPECT_DOUBLE_EQ(far.wire_s, 4e-3);
  EXPECT_EQ(far.use, (std::vector<double>{0.25, 1}));  // of the way out of its node, which is four times as fast
  // An empty message costs its latency, also where the bandwidth isn't known.
  EXPECT_EQ(model->transfer({.kind = InstructionKind::send, .bytes = 0}).wire_s, 0);
}

TEST(Analytic, WorldDecidesTheAlgorithm) {
  const TransferCost local =
      make("analytic", test_cluster("local", 4))->transfer(question(CollectiveKind::all_reduce, 8'000'000, 4));
  EXPECT_DOUBLE_EQ(local.latency_s, 2 * 20e-6);
}

TEST(Profiled, ReadsTheProfile) {
  const Cluster cluster = test_cluster("gloo", 2);
  const Work work = relu(4, 4);
  Profile profile("test_core");
  profile.add_op("local", work_key(work), 1, std::vector{1e-6, 3e-6});
  profile.add_op("local", work_key(work), 2, std::vector{4e-6});
  profile.add_op("local", work_key(work), 4, std::vector{10e-6});
  profile.add_link({"gloo", "all_reduce", 2}, 1000, std::vector{30e-6});
  profile.add_link({"gloo", "all_reduce", 2}, 3000, std::vector{40e-6});
  profile.add_launch(std::vector{2e-6});
  const auto model = make("profiled", cluster, &profile);
  const std::vector<double> busy = model->compute(work).busy_s;
  ASSERT_EQ(busy.size(), 4U);
  EXPECT_DOUBLE_EQ(busy[0], 2e-6);
  EXPECT_DOUBLE_EQ(busy[1], 4e-6);
  EXPECT_DOUBLE_EQ(busy[2], 7e-6);  // between 2 and 4 busy ranks
  EXPECT_DOUBLE_EQ(busy[3], 10e-6);
  const TransferCost cost = model->transfer(question(CollectiveKind::all_reduce, 2000, 2));
  EXPECT_DOUBLE_EQ(cost.latency_s, 30e-6);
  EXPECT_NEAR(cost.wire_s, 5e-6, 1e-15);
  EXPECT_EQ(cost.core_share, 0.5);  // the cluster's, as the profile has none
  EXPECT_DOUBLE_EQ(model->launch_s(0), 2e-6);
  profile.add_core_share("gloo", 0.125);
  EXPECT_EQ(make("profiled", cluster, &profile)->transfer(question(CollectiveKind::all_reduce, 2000, 2)).core_share,
            0.125);
}

// A CPU core has no TF32.
TEST(Profiled, OnACpuTf32IsF32) {
  Profile profile("test_core");
  Work work = linear(4, 4);
  profile.add_op("local", work_key(work), 1, std::vector{1e-6});
  profile.add_launch(std::vector{2e-6});
  const auto source = [&](Precision precision, bool on_gpu) {
    work.op.precision = precision;
    Cluster cluster = test_cluster("local", 1);
    cluster.device.asynchronous = on_gpu;
    return make("profiled", cluster, &profile)->compute(work).knowledge.source;
  };
  for (const Precision precision : {Precision::f32, Precision::tf32, Precision::ieee})
    EXPECT_NE(source(precision, /*on_gpu=*/false), Source::broader) << to_string(precision);
  EXPECT_EQ(source(Precision::bf16, /*on_gpu=*/false), Source::broader);
  EXPECT_NE(source(Precision::f32, /*on_gpu=*/true), Source::broader);
  EXPECT_EQ(source(Precision::tf32, /*on_gpu=*/true), Source::broader);
}

TEST(Profiled, SaysWhatItNeeds) {
  Profile profile("test_core");
  const Work work = relu(4, 4);
  profile.add_op("local", work_key(work), 2, std::vector{4e-6});
  const auto model = make("profiled", test_cluster("gloo", 2), &profile);
  EXPECT_EQ(message_of([&] { (void)model->compute(work); }),
            "the profile of device 'test_core' has no ops; calibrate some model first");
  EXPECT_EQ(message_of([&] { (void)model->launch_s(0); }),
            "the profile of device 'test_core' has no launch time; calibrate some model first");
  EXPECT_EQ(message_of([&] { make("profiled", test_cluster("gloo", 2)); }),
            "cost model 'profiled' needs a profile; 'paragauge calibrate' writes one");
  EXPECT_EQ(message_of([&] { make("guessed", test_cluster("gloo", 2)); }),
            "unknown cost model 'guessed'; known: analytic, fitted, profiled");
}

// From other shapes, other kinds of transfers, at last the data sheet; and each answer says so.
TEST(Profiled, WhatTheProfileLacksIsAnsweredFromTheRest) {
  const Cluster cluster = test_cluster("gloo", 4, 2);
  Profile profile("test_core");
  profile.add_op("gloo", work_key(relu(4, 4)), 1, std::vector{2e-6, 2e-6});
  const auto send = [](bool across_nodes) {
    TransferQuestion question{.kind = InstructionKind::send, .bytes = 4'000'000};
    if (across_nodes) question.spread = {1, 2};
    return question;
  };
  const auto sheet = make("analytic", cluster);
  const auto without_links = make("profiled", cluster, &profile);
  EXPECT_EQ(without_links->compute(relu(4, 4)).knowledge.source, Source::profile);
  const ComputeCost other = without_links->compute(relu(64, 4));
  const ComputeCost as_fitted = make("fitted", cluster, &profile)->compute(relu(64, 4));
  EXPECT_EQ(other.busy_s, as_fitted.busy_s);
  EXPECT_EQ(other.knowledge.sd, as_fitted.knowledge.sd);
  EXPECT_GT(other.knowledge.sd, 0);
  EXPECT_EQ(other.knowledge.source, Source::broader);
  const TransferCost of_sheet = without_links->transfer(send(false));
  EXPECT_EQ(of_sheet.latency_s, sheet->transfer(send(false)).latency_s);
  EXPECT_EQ(of_sheet.wire_s, sheet->transfer(send(false)).wire_s);
  EXPECT_EQ(of_sheet.novelty, 1);
  EXPECT_GT(of_sheet.sd, 0);
  EXPECT_EQ(of_sheet.source, Source::data_sheet);

  // Sends that take three times the data sheet's latency and twice its bytes' time, so does every other kind.
  const Link link = cluster.link();
  const double latency_s = 3 * link.latency.in_seconds();
  for (const std::int64_t bytes : {std::int64_t{0}, std::int64_t{4'000'000}})
    profile.add_link({"gloo", "send", 2}, bytes,
                     std::vector{latency_s + 2 * static_cast<double>(bytes) / link.bandwidth.base()});
  profile.add_core_share("gloo", 0.25);
  const auto model = make("profiled", cluster, &profile);
  EXPECT_EQ(model->transfer(send(false)).source, Source::profile);
  EXPECT_EQ(model->transfer(send(false)).sd, 0);
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::broadcast}) {
    const TransferQuestion asked = question(kind, 4'000'000, 2);
    const TransferCost cost = model->transfer(asked), expected = sheet->transfer(asked);
    EXPECT_NEAR(cost.latency_s, 3 * expected.latency_s, 1e-12);
    EXPECT_NEAR(cost.wire_s, 2 * expected.wire_s, 1e-12);
    EXPECT_EQ(cost.core_share, 0.25);
    EXPECT_EQ(cost.novelty, 1);
    EXPECT_LT(cost.sd, of_sheet.sd);
    EXPECT_GT(cost.sd, 0);
    EXPECT_EQ(cost.source, Source::broader);
  }
  // Never measured: between nodes, and where the cluster isn't the measuring machine.
  EXPECT_EQ(model->transfer(send(true)).wire_s, sheet->transfer(send(true)).wire_s);
  EXPECT_EQ(model->transfer(send(true)).source, Source::data_sheet);
  Cluster elsewhere = cluster;
  elsewhere.is_this_machine = false;
  for (const char* name : {"profiled", "fitted"}) {
    const TransferCost cost = make(name, elsewhere, &profile)->transfer(send(false));
    EXPECT_EQ(cost.wire_s, sheet->transfer(send(false)).wire_s);
    EXPECT_EQ(cost.source, Source::data_sheet);
  }
}

/// Two replicas of two stages on ranks 0…3: stage 0 sends to stage 1, replicas all-reduce, and stage 0 sends once more
/// the same size.
Program test_program() {
  Program program;
  program.works = {linear(4, 4), relu(4, 4)};
  program.mesh.axes = {{"stage", 2}, {"dp", 2}};
  program.groups = {{"data", 0b10, program.mesh}, {"alone", 0, program.mesh}};
  for (std::uint32_t stage = 0; stage < 2; ++stage) {
    Role& role = program.roles.emplace_back();
    role.name = stage == 0 ? "stage0" : "stage1";
    role.ranks = {2 * stage, 2 * stage + 1};
    const std::uint32_t x = role.add_tensor("x", {Dtype::f32, {4, 4}}, TensorClass::activation);
    const InstructionKind move = stage == 0 ? InstructionKind::send : InstructionKind::recv;
    for (std::uint32_t tag = 0; tag < 2; ++tag) {
      Instruction transfer;
      transfer.kind = move, transfer.peer = 0, transfer.by = stage == 0 ? 1 : -1, transfer.tag = tag;
      (stage == 0 ? transfer.reads : transfer.writes) = {x};
      role.add(transfer);
    }
    role.add({.kind = InstructionKind::compute, .work = stage, .reads = {x}, .writes = {x}, .frees = {}});
    role.add({.kind = InstructionKind::collective, .peer = 0, .reads = {x}, .writes = {x}, .frees = {}});
    role.add({.kind = InstructionKind::collective, .peer = 1, .reads = {x}, .writes = {x}, .frees = {}});
  }
  return program;
}

/// What the transfer costs that `rank` posts with instruction `i`.
const TransferCost& cost_in(const Program& program, const Costs& costs, std::uint32_t rank, std::uint32_t i) {
  const Program::Place place = program.places().at(rank);
  return costs.transfers.at(
      costs.transfer_of.at(TransferMatching(program).transfer(place, rank, program.roles[place.role], i)));
}

TEST(Price, AsksEveryQuestionOnce) {
  const Program program = test_program();
  const Cluster cluster = test_cluster("gloo", 4);
  const auto model = make("analytic", cluster);
  const Costs costs = costs_of(program, *model, cluster);
  EXPECT_EQ(costs.busy_levels, 1U);
  ASSERT_EQ(costs.work_s.size(), 2U);
  EXPECT_DOUBLE_EQ(costs.work_s[1], model->compute(program.works[1]).busy_s[0]);
  EXPECT_DOUBLE_EQ(costs.launch_s, 3e-6);
  // The sends and receives (one size), the all-reduce of two, and the group of one.
  EXPECT_EQ(costs.transfers.size(), 3U);
  const auto cost_of = [&](std::uint32_t rank, std::uint32_t i) { return cost_in(program, costs, rank, i); };
  EXPECT_DOUBLE_EQ(cost_of(0, 0).wire_s, 64 / 4e9);
  EXPECT_DOUBLE_EQ(cost_of(0, 1).wire_s, 64 / 4e9);
  EXPECT_DOUBLE_EQ(cost_of(0, 3).latency_s, 2 * 20e-6);
  EXPECT_EQ(cost_of(0, 4).latency_s, 0);
}

/// Of every list of a group.
TEST(Price, TellsWhatIsWrittenAgain) {
  class Rewriting final : public CostModel {
   public:
    explicit Rewriting(double seconds) : seconds_(seconds) {}
    [[nodiscard]] ComputeCost compute(const Work& /*work*/) const override { return {{1e-6}}; }
    [[nodiscard]] TransferCost transfer(const TransferQuestion& /*question*/) const override {
      return {.wire_s = 1e-6, .rewriting_s = seconds_};
    }
    [[nodiscard]] double launch_s(std::uint32_t /*kind*/) const override { return 0; }

   private:
    double seconds_;
  };
  const Model net = load_model("vgg11,global_batch=8");
  const Program program = lower(net, parse_strategy("dp=2,tp=2,zero=3", net));
  const Cluster cluster = test_cluster("gloo", 4);
  EXPECT_TRUE(costs_of(program, Rewriting(0), cluster).rewritten.empty());
  const Costs costs = costs_of(program, Rewriting(1e-6), cluster);
  const TransferMatching matching(program);
  int kept = 0, rewritten = 0;
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const Program::Place place = program.places()[rank];
    const Role& role = program.roles[place.role];
    const std::vector<std::optional<GivenMemory>> given = given_by(program, role);
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.kind[i] != InstructionKind::collective) continue;
      const bool waits = given[i] && waits_to_rewrite(program, role, *given[i], cluster);
      ++(waits ? rewritten : kept);
      EXPECT_EQ(costs.rewritten.at(matching.transfer(place, rank, role, i)), waits)
          << rank << ' ' << program.label(role, i);
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(rewritten, kept);
}

/// A copy and an update wait for other caches, a matrix product computes meanwhile.
TEST(Price, TellsWhoWaitsToRewrite) {
  const Model net = load_model("vgg11,global_batch=64,image=64");
  const Program program = lower(net, parse_strategy("ddp,dp=2", net));
  const Role& role = program.roles[0];
  const Cluster cluster = test_cluster("local", 2);
  std::map<std::string, std::set<bool>> waits;  // of works of several shapes
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (is_computed(role.kind[i]))
      waits[std::string(program.works[role.work[i]].op.kind->name)].insert(
          waits_to_rewrite(program, role, {.until_written = 0, .writer = i}, cluster));
  for (const char* moves : {"scaled_copy", "sgd", "relu"}) EXPECT_EQ(waits.at(moves), std::set{true}) << moves;
  EXPECT_TRUE(waits.at("conv2d").contains(false));
  EXPECT_FALSE(waits_to_rewrite(program, role, {}, cluster)) << "never written";
}

TEST(Price, KnowsNodes) {
  const Program program = test_program();
  // Two ranks per node: replicas of a stage share a node, stages don't.
  const Cluster cluster = test_cluster("gloo", 4, 2);
  const Costs costs = costs_of(program, *make("analytic", cluster), cluster);
  EXPECT_DOUBLE_EQ(cost_in(program, costs, 0, 0).latency_s, 100e-6);
  EXPECT_DOUBLE_EQ(cost_in(program, costs, 0, 3).latency_s, 2 * 20e-6);
  // One rank per node: everything goes far.
  const Cluster far = test_cluster("gloo", 4, 1);
  const Costs far_costs = costs_of(program, *make("analytic", far), far);
  EXPECT_DOUBLE_EQ(cost_in(program, far_costs, 0, 3).latency_s, 2 * 100e-6);
  EXPECT_EQ(message_of([&] { (void)costs_of(program, *make("analytic", cluster), test_cluster("gloo", 2)); }),
            "rank 2 of the program has no place on cluster 'test' of 2 ranks");
}

// One role whose ranks all-reduce among three and among two, the three on two nodes: each list has its own costs,
// wherever it stands.
TEST(Price, KnowsWhichDevicesAreShared) {
  const Model model = load_model("toy_mlp");
  const auto devices = [&](const char* strategy, const std::string& world, std::uint32_t cores) {
    const Strategy parsed = parse_strategy(strategy, model);
    return devices_of_groups(lower(model, parsed), load_cluster("cpu_" + world, parsed.ranks(), cores));
  };
  using Devices = std::vector<std::string>;
  EXPECT_EQ(devices("hypar,levels=2x2,layers=dp/in", "gloo", 4), (Devices{"", ""}));
  // Rank r is on core r mod 2: the outer level's pairs are ranks 0 and 2, 1 and 3.
  EXPECT_EQ(devices("hypar,levels=2x2,layers=dp/in", "gloo", 2), (Devices{"", "0 0"}));
  EXPECT_EQ(devices("hypar,levels=2x2,layers=dp/in", "gloo", 3), (Devices{"", ""}));
  EXPECT_EQ(devices("ddp_blocking,dp=4", "gloo", 2), Devices{""});  // as any four ranks alone
  EXPECT_EQ(devices("hypar,levels=2x2,layers=dp/in", "local", 2), (Devices{"", ""}));
}

TEST(Price, AsksForEveryTransferByItself) {
  for (const bool long_list_first : {true, false}) {
    Program program;
    Role& role = program.roles.emplace_back();
    role.ranks = {0, 1, 2, 3, 4};
    role.add_tensor("x", {Dtype::f32, {16}}, TensorClass::gradient, true);
    program.mesh.axes = {{"rank", 5}};
    program.groups.emplace_back("data", 1, program.mesh);
    program.groups[0].members = {{0, 1, 4}, {2, 3}};
    if (!long_list_first) std::swap(program.groups[0].members[0], program.groups[0].members[1]);
    Instruction reduce;
    reduce.kind = InstructionKind::collective;
    reduce.peer = 0;
    reduce.reads = reduce.writes = {0};
    Instruction wait;
    wait.kind = InstructionKind::wait;
    wait.ticket = role.ticket[role.add(reduce)];
    role.add(wait);
    Cluster cluster = test_cluster("gloo", 5, 4);  // rank 4 is on the second node
    const Costs costs = costs_of(program, *make("analytic", cluster), cluster);
    for (const std::uint32_t rank : {0U, 1U, 4U})
      EXPECT_DOUBLE_EQ(cost_in(program, costs, rank, 0).latency_s, 2 * 20e-6 + 2 * 100e-6) << "rank " << rank;
    for (const std::uint32_t rank : {2U, 3U})
      EXPECT_DOUBLE_EQ(cost_in(program, costs, rank, 0).latency_s, 2 * 20e-6) << "rank " << rank;
    const Timeline timeline = simulate(program, costs, cluster);
    for (const std::uint32_t rank : {0U, 2U}) {
      const TransferCost& cost = cost_in(program, costs, rank, 0);
      // Within the node the ranks copy, and so begin when they wait: a launch later.
      EXPECT_DOUBLE_EQ(timeline.ranks[rank].end_s[0] - timeline.ranks[rank].start_s[0],
                       cost.latency_s + cost.wire_s + (rank == 2 ? costs.launch_s : 0));
    }
  }
}

TEST(Price, FillsBusyLevelsOfAllWorks) {
  const Program program = test_program();
  const Cluster cluster = test_cluster("gloo", 4);
  Profile profile("test_core");
  profile.add_op("local", work_key(program.works[0]), 1, std::vector{1e-6});
  profile.add_op("local", work_key(program.works[0]), 2, std::vector{2e-6});
  profile.add_op("local", work_key(program.works[1]), 1, std::vector{5e-6});
  profile.add_link({"gloo", "send", 2}, 64, std::vector{1e-5});
  profile.add_link({"gloo", "all_reduce", 2}, 64, std::vector{1e-5});
  profile.add_launch(std::vector{1e-6});
  const Costs costs = costs_of(program, *make("profiled", cluster, &profile), cluster);
  EXPECT_EQ(costs.busy_levels, 2U);
  EXPECT_EQ(costs.work_s, (std::vector<double>{1e-6, 2e-6, 5e-6, 5e-6}));
}

TEST(Analytic, ALinkThatIsFasterAmongFewIsUsedOnce) {
  Cluster cluster = test_cluster("nccl", 4);
  const TransferQuestion two = question(CollectiveKind::all_reduce, 1 << 20, 2);
  const double usual_s = make("analytic", cluster)->transfer(two).wire_s;
  cluster.levels[0].link.bandwidth_among[2] = gigabytes_per_second(8);
  const TransferCost cost = make("analytic", cluster)->transfer(two);
  EXPECT_NEAR(cost.wire_s, usual_s / 2, 1e-12);
  for (const double use : cost.use) EXPECT_LE(use, 1 + 1e-9);
}

// What an accelerator is shared with doesn't share its host.
TEST(CostModel, TheHostsOpsDontShareTheAccelerator) {
  const Model model = load_model("toy_mlp,timing=tutorial");
  const Program program = lower(model, parse_strategy("single", model));
  Cluster cluster = test_cluster("local", 1);
  cluster.device.asynchronous = true;
  const Costs whole = costs_of(program, *make("analytic", cluster), cluster);
  cluster.device.share = 0.5;
  const Costs shared = costs_of(program, *make("analytic", cluster), cluster);
  std::size_t on_host = 0;
  for (std::size_t work = 0; work < program.works.size(); ++work) {
    const bool is_hosts = program.works[work].op.kind->on_host;
    on_host += is_hosts ? 1 : 0;
    EXPECT_DOUBLE_EQ(shared.work_s[work], (is_hosts ? 1 : 2) * whole.work_s[work]) << work_key(program.works[work]);
  }
  EXPECT_GT(on_host, 0U);
}

}  // namespace
}  // namespace sim
