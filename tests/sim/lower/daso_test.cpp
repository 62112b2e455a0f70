#include <map>

#include "sim/cost/cost_model.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/program/unroll.hpp"
#include "sim/simulate/forecast.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

Program periodic(const Model& model, const std::string& strategy) {
  return lower_periodic(model, parse_strategy(strategy, model));
}

/// Of a role's body, by "group collective": how many collectives, and their bytes.
struct Traffic {
  std::int64_t count = 0, bytes = 0;
};
std::map<std::string, Traffic> traffic_of(const Program& program, const Role& role) {
  std::map<std::string, Traffic> all;
  for (std::uint32_t i = role.body_begin; i < role.body_end; ++i) {
    if (role.kind[i] != InstructionKind::collective) continue;
    Traffic& traffic = all[fmt::format("{} {}", program.groups[role.peer[i]].name, to_string(role.collective[i]))];
    ++traffic.count;
    traffic.bytes += program.transfer_bytes(role, i);
  }
  return all;
}

// A rank of each node sends all its parameters once a body, in chunks, the rest first; after it has received, and once more
// when the next one sends, it broadcasts each by itself; gradients are summed in the node only.
TEST(DasoLowering, WhatABodySends) {
  const Model model = load_model("resnet18,image=64,global_batch=24");
  const std::int64_t parameters = parameter_count(model), bytes = 4 * parameters;
  std::int64_t tensors = 0;
  for (const OpInstance& op : model.instances(24)) tensors += std::ssize(op.signature().parameters);
  for (const std::int64_t skips : {4, 8}) {
    const Program program =
        periodic(model, fmt::format("daso,nodes=2,local=3,skips={},wait=2,chunk=5e6,broadcast_buffers=0", skips));
    ASSERT_EQ(program.roles.size(), 3U);
    EXPECT_EQ(program.steps, 3 * skips);
    for (const Role& role : program.roles) {
      auto traffic = traffic_of(program, role);
      EXPECT_EQ(traffic["nodes all_reduce"].bytes, bytes);
      EXPECT_EQ(traffic["nodes all_reduce"].count, 3) << "11.7 million in chunks of 5";
      EXPECT_EQ(traffic["local all_reduce"].bytes, bytes * program.steps);
      EXPECT_EQ(traffic["local broadcast"].bytes, 2 * 3 * bytes);
      EXPECT_EQ(traffic["local broadcast"].count, 2 * 3 * tensors);
    }
  }
  const Program program = periodic(model, "daso,nodes=2,local=3,chunk=5e6");
  for (const Tensor& tensor : program.roles[0].tensors)
    if (tensor.name == "sent.chunk0") {
      EXPECT_EQ(tensor.spec.elements(), parameters % 5'000'000);
    }
}

// Warm-up and cool-down: in half the bytes, after every step, one rank after the other.
TEST(DasoLowering, WarmUpIsDowncast) {
  const Model model = load_model("convnet,global_batch=8");
  const std::int64_t parameters = parameter_count(model);
  for (const auto& [text, size] : {std::pair("daso,skips=0", 2), std::pair("daso,skips=0,downcast=f32", 4)}) {
    const Program program = periodic(model, text);
    EXPECT_EQ(program.steps, 2);
    for (const Role& role : program.roles)
      EXPECT_EQ(traffic_of(program, role)["nodes all_reduce"].bytes, size * parameters) << text;
  }
  const Model precise = load_model("convnet,global_batch=8,dtype=f64");
  const Program program = periodic(precise, "daso,skips=0");
  EXPECT_EQ(traffic_of(program, program.roles[0])["nodes all_reduce"].bytes, 8 * parameters) << "nothing is lost";
}

// With local_skips the gradients of some steps aren't summed at all, and what DDP shares before the step after, neither.
TEST(DasoLowering, LocalSkips) {
  const Model model = load_model("resnet18,image=32,global_batch=8");
  const std::int64_t bytes = 4 * parameter_count(model);
  const Program program = periodic(model, "daso,skips=8,wait=2,local_skips=2");
  auto traffic = traffic_of(program, program.roles[0]);
  EXPECT_EQ(traffic["local all_reduce"].bytes, 10 * bytes) << "of 16 steps";
  std::int64_t buffers = 0;
  const Role& role = program.roles[0];
  for (std::uint32_t i = role.body_begin; i < role.body_end; ++i)
    if (role.kind[i] == InstructionKind::collective && role.collective[i] == CollectiveKind::broadcast &&
        program.names[role.node[i]] == "buffers.f32")
      ++buffers;
  EXPECT_EQ(buffers, 10);
}

TEST(DasoLowering, TextFormAndUnrolling) {
  const Model model = load_model("toy_mlp,global_batch=8,optimizer=adam");
  const Program program = periodic(model, "daso,skips=2,chunk=20");
  EXPECT_TRUE(program.is_periodic());
  const Program read = program_from_text(to_text(program));
  EXPECT_EQ(to_text(read), to_text(program));
  ASSERT_TRUE(read.daso);
  EXPECT_EQ(*read.daso, (Daso{.local = 2, .skips = 2, .wait = 1, .local_skips = 1}));
  const Program played = lower(model, parse_strategy("daso,skips=2,chunk=20,bodies=3", model));
  EXPECT_EQ(played.steps_in_list(), 1 + 3 * 4 + 1);
  EXPECT_EQ(to_text(program_from_text(to_text(played))), to_text(played));
  for (std::uint32_t role = 0; role < 2; ++role)
    EXPECT_EQ(peak_memory(unroll(program, 4).roles[role]).peak_bytes,
              peak_memory(unroll(program, 2).roles[role]).peak_bytes);
  const auto with = [&](const char* rule) {
    return testing::message_of(
        [&] { validate(program_from_text(testing::replaced(to_text(program), "local=2 skips=2", rule))); });
  };
  EXPECT_EQ(with("local=3 skips=2"), "program: 4 pieces of the batch for nodes of 3 ranks");
  EXPECT_NE(with("local=1 skips=2").find("local=1 must be at least 2"), std::string::npos);
  EXPECT_NE(with("local=2 step=2").find("expected skips=…"), std::string::npos);
}

// What the whole is for: between slow nodes the sums of parameters have `wait` steps to arrive.
TEST(DasoLowering, ASlowNetworkIsHidden) {
  const Model model = load_model("convnet,global_batch=256");
  Cluster cluster = testing::on_nodes(testing::plain_cluster(4), 2);
  const auto step_s = [&](const std::string& strategy, double megabytes) {
    cluster.levels[1].link.bandwidth = gigabytes_per_second(megabytes / 1000);
    return forecast(lower(model, parse_strategy(strategy, model)), cluster, *make_cost_model("analytic", cluster))
        .step.step_s;
  };
  const double fast_s = step_s("daso", 10000), sends_s = 4.0 * static_cast<double>(parameter_count(model)) / 1e6;
  // As long as sending takes less than a step (of which it has one to arrive), nothing of it shows.
  const double unseen = sends_s / (0.5 * fast_s), seen = sends_s / (40 * fast_s);
  EXPECT_NEAR(step_s("daso", unseen), fast_s, 0.02 * fast_s);
  EXPECT_GT(step_s("ddp,dp=4", unseen), 1.2 * fast_s);
  // Where it takes ten cycles it is all that counts: each cycle of skips steps sends once, both ways over a node's port.
  EXPECT_GT(step_s("daso", seen), 5 * fast_s);
  EXPECT_GT(step_s("daso,skips=0", seen), 1.5 * step_s("daso", seen));
  EXPECT_LT(step_s("daso,skips=8", seen), 0.6 * step_s("daso", seen));
}

}  // namespace
}  // namespace sim
