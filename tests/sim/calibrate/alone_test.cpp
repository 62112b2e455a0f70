#include "sim/calibrate/alone.hpp"

#include <set>
#include <tuple>

#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::plain_cluster;

/// What a role's list is without the others: its ops, and what comes "to" and goes "from" it.
std::vector<std::string> expected_alone(const Program& program, const Role& role, std::uint32_t repeats) {
  std::vector<std::string> expected;
  for (std::uint32_t repeat = 0; repeat < repeats; ++repeat)
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      const auto name = [&](std::uint32_t tensor) {
        const bool again = repeat > 0 && !role.storages[role.tensors[tensor].storage].persistent;
        return role.tensors[tensor].name + (again ? fmt::format("~{}", repeat) : "");
      };
      if (is_computed(role.kind[i]))
        expected.push_back(fmt::format("{} x{}", work_key(program.works[role.work[i]]), role.scale[i]));
      else if (role.kind[i] == InstructionKind::wait && role.kind[role.awaits[i]] == InstructionKind::recv)
        expected.push_back("to " + name(role.writes(role.awaits[i])[0]));
      else if (role.kind[i] == InstructionKind::send || role.kind[i] == InstructionKind::collective)
        expected.push_back("from " + name(role.reads(i)[0]));
    }
  return expected;
}

std::vector<std::string> found_alone(const Program& own, std::uint32_t r) {
  const Role& list = own.roles.at(r);
  std::vector<std::string> found;
  std::uint32_t open = 0;  // posted, not waited for
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    if (is_computed(list.kind[i])) {
      EXPECT_EQ(open, 0U);
      found.push_back(fmt::format("{} x{}", work_key(own.works[list.work[i]]), list.scale[i]));
    } else if (const bool waits = list.kind[i] == InstructionKind::wait; list.by[waits ? list.awaits[i] : i] != 0) {
      continue;  // who begins, and what is exchanged at the end
    } else if (waits) {
      --open;
    } else {
      ++open;
      const bool sends = list.kind[i] == InstructionKind::send;
      const std::string& name = list.tensors[sends ? list.reads(i)[0] : list.writes(i)[0]].name;
      if (!name.starts_with("message")) found.push_back((sends ? "from " : "to ") + name);  // of the role
    }
  }
  return found;
}

/// Of a send or recv.
std::uint32_t partner_role(const Program& program, const Role& role, std::uint32_t i) {
  return program.places()[program.partner(role, role.ranks[0], i)].role;
}

// Every op of the role in its order; what is sent, shared or received is a message to itself, at once.
TEST(RoleAlone, KeepsItsOpsAndWaitsForNobody) {
  for (const char* text : {"single", "ddp,bucket_MiB=0.001", "model_parallel", "pipeline,pp=3,microbatches=4",
                           "dp=2,pp=2,microbatches=2,schedule=1f1b", "pipeline,microbatches=2,schedule=forward_only"}) {
    SCOPED_TRACE(text);
    const Model model = load_model("toy_mlp");
    const Program program = lower(model, parse_strategy(text, model));
    std::vector<RoleAlone> all;
    for (std::uint32_t r = 0; r < program.roles.size(); ++r) {
      const Program own = alone(program, {{r}});
      ASSERT_EQ(own.ranks(), 1U);
      EXPECT_EQ(to_text(program_from_text(to_text(own))), to_text(own));
      EXPECT_EQ(found_alone(own, 0), expected_alone(program, program.roles[r], 1));
      all.push_back({r, program.roles[r].ranks, 1 + r});
    }
    const Program together = alone(program, all), in_turns = alone(program, all, /*in_turns=*/true);
    EXPECT_EQ(to_text(program_from_text(to_text(together))), to_text(together));
    for (const auto& [r, ranks, repeats] : all) {
      EXPECT_EQ(found_alone(in_turns, r), found_alone(together, r));
      // All that it sends and receives in a step goes to and comes from the others in the end.
      std::multiset<std::tuple<InstructionKind, std::uint32_t, std::int64_t>> expected, exchanged;
      const Role &own = program.roles[r], &list = together.roles[r];
      for (std::uint32_t i = 0; i < own.size(); ++i)
        if (own.kind[i] == InstructionKind::send || own.kind[i] == InstructionKind::recv)
          expected.emplace(own.kind[i], partner_role(program, own, i), program.transfer_bytes(own, i));
      for (std::uint32_t i = 0; i < list.size(); ++i)
        if (is_posted(list.kind[i]) && list.by[i] != 0 && together.transfer_bytes(list, i) > 4)
          exchanged.emplace(list.kind[i], partner_role(together, list, i), together.transfer_bytes(list, i));
      EXPECT_EQ(exchanged, expected);
      // What they begin with moves no weight, by Adam neither, which divides by the gradient's size plus 1e-8.
      for (const Tensor& tensor : list.tensors)
        if (all.size() > 1 && tensor.name.starts_with("message")) {
          EXPECT_LT(tensor.initial.bound, 1e-12);
        }
      EXPECT_EQ(together.roles[r].ranks, ranks);
      EXPECT_EQ(found_alone(together, r), expected_alone(program, program.roles[r], repeats));
      // What a list makes is gone before it begins again; there are at most 8 different messages.
      const Program often = alone(program, {{r, {0}, 8}}), once_more = alone(program, {{r, {0}, 9}});
      EXPECT_EQ(peak_memory(once_more.roles[0]).peak_bytes, peak_memory(often.roles[0]).peak_bytes);
    }
  }
}

// Ops take other times for other values (a pooling's branches): what is gathered brings the weights' first values.
// Storages that begin again in an unrolled list, and those of a repeated one, are others.
TEST(RoleAlone, RepeatsOfAnUnrolledListHaveNamesOfTheirOwn) {
  const Model model = load_model("toy_mlp,global_batch=8");
  for (const char* text : {"heat", "daso,skips=1"}) {
    const Program own = alone(lower(model, parse_strategy(text, model)), {{.role = 0, .ranks = {0}, .repeats = 3}});
    EXPECT_EQ(to_text(program_from_text(to_text(own))), to_text(own)) << text;
  }
}

TEST(RoleAlone, GathersWeightsOfTheirOwnSize) {
  const Model model = load_model("convnet,global_batch=8");
  for (const char* strategy : {"zero1,dp=2", "zero3,dp=2", "fsdp,dp=2"}) {
    SCOPED_TRACE(strategy);
    const Program program = lower(model, parse_strategy(strategy, model));
    const Program own = alone(program, {{0, {0}, 2}}, /*in_turns=*/false);
    validate(own);
    std::size_t whole = 0, of_weights = 0;
    for (const Tensor& tensor : own.roles[0].tensors) {
      if (!tensor.name.starts_with("message")) continue;
      if (tensor.unit != kNone) ++whole;
      if (tensor.initial.bound > 0.01) ++of_weights;
    }
    EXPECT_GT(of_weights, 0U);
    EXPECT_EQ(whole > 0, std::string_view(strategy) != "fsdp,dp=2") << "its tables have rows of several ranks";
  }
}

// What a notification takes from a core in the simulator is what the probe finds, also where ops are short.
TEST(NotificationProbe, FindsWhatANotificationTakes) {
  for (const char* text : {"convnet,global_batch=64", "toy_mlp"}) {
    SCOPED_TRACE(text);
    const Model model = load_model(text);
    const Program program = lower(model, parse_strategy("pipeline,pp=2,microbatches=2", model));
    Cluster cluster = plain_cluster(2);
    cluster.levels[0].link.transport = Transport::notify;
    for (std::uint32_t role = 0; role < 2; ++role) {
      const Program probe = notification_probe(program, role);
      Costs costs = costs_of(probe, *cost_model_table().at("analytic").make(cluster, nullptr), cluster);
      for (double& seconds : costs.work_s) seconds *= 1000;
      for (const double notification_s : {0.0, 1e-6, 2e-5}) {
        for (TransferCost& transfer : costs.transfers)
          transfer.rendezvous = {
              .notification_s = notification_s, .latency_s = transfer.latency_s, .wire_s = transfer.wire_s};
        const std::vector<double> found = notification_times(probe, simulate(probe, costs, cluster));
        // Where both ranks are in step to the microsecond, posts fall between ops, and what is lost there isn't seen.
        EXPECT_TRUE(notification_s < 1e-5 || !found.empty());
        for (const double seconds : found) EXPECT_NEAR(seconds, 0.98 * notification_s, 0.15 * notification_s + 1e-9);
      }
    }
  }
}

}  // namespace
}  // namespace sim
