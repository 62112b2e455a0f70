#include "sim/lower/lower.hpp"

#include <set>

#include "sim/strategy/layout.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::for_each_program;
using testing::message_of;
using testing::small_model;

/// Of strategies that are replicas of stages.
template <class Check>
void for_each_pipeline(const Check& check) {
  for_each_program([&](const Model& model, const Strategy& strategy, const Program& program) {
    if (strategy.kind().peer == PeerKind::stages && strategy.tp == 1) check(model, strategy, program);
  });
}
/// And have all parameters each.
template <class Check>
void for_each_uncut(const Check& check) {
  for_each_pipeline([&](const Model& model, const Strategy& strategy, const Program& program) {
    if (strategy.zero == 0) check(model, strategy, program);
  });
}

TEST(LowerGrid, ProgramsAreValidAndSurviveTheirTextForm) {
  for_each_program([](const Model& model, const Strategy& strategy, const Program& program) {
    EXPECT_EQ(message_of([&] { validate(program); }), "no error");
    EXPECT_EQ(program.ranks(), strategy.ranks());
    EXPECT_EQ(program.model, model.text());
    EXPECT_EQ(program.strategy, strategy.text());
    EXPECT_EQ(program.mesh.ranks(), strategy.ranks());
    EXPECT_EQ(program.microbatches, strategy.microbatches);
    const std::string text = to_text(program);
    const Program same = program_from_text(text);
    EXPECT_EQ(to_text(same), text);
    EXPECT_EQ(message_of([&] { validate(same); }), "no error");
  });
}

bool is_played_again(const Role& role, std::uint32_t i) {
  return role.tensors[role.writes(i)[0]].name.ends_with(".again");
}

TEST(LowerGrid, FlopsAreTheModels) {
  for_each_pipeline([](const Model& model, const Strategy&, const Program& program) {
    double forward = 0, backward = 0, expected_forward = 0, expected_backward = 0;
    for (const Role& role : program.roles)
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.kind[i] != InstructionKind::compute) continue;
        const Work& work = program.works[role.work[i]];
        if (work.op.kind->role == OpRole::helper || is_played_again(role, i)) continue;
        (work.pass == Pass::forward ? forward : backward) +=
            work.demand().flops * static_cast<double>(role.ranks.size());
      }
    const auto steps = static_cast<double>(program.steps_in_list());
    for (const NodeSummary& node : summarize(model, model.global_batch)) {
      expected_forward += steps * node.forward_flops;
      expected_backward += steps * node.backward_flops;
    }
    EXPECT_NEAR(forward, expected_forward, 1e-12 * expected_forward);
    EXPECT_NEAR(backward, expected_backward, 1e-12 * expected_backward);
  });
}

TEST(LowerGrid, EveryParameterIsUpdatedOnceAStep) {
  for_each_uncut([](const Model& model, const Strategy& strategy, const Program& program) {
    const std::size_t parts = program.daso ? program.daso->local : 1;  // ranks of a node are roles, of all parameters
    std::multiset<std::string> expected, updated;
    const std::vector<OpInstance> ops = model.instances(2);
    for (std::int64_t step = 0; step < program.steps_in_list(); ++step)
      for (std::size_t n = 0; n < ops.size(); ++n)
        for (const ParameterSpec& parameter : ops[n].signature().parameters)
          for (std::size_t part = 0; part < parts; ++part) expected.insert(model.nodes[n].name + "." + parameter.name);
    for (const Role& role : program.roles) {
      EXPECT_EQ(role.ranks.size() * parts, strategy.dp);
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.kind[i] != InstructionKind::update) continue;
        const std::size_t count = program.works[role.work[i]].op.inputs.size();
        for (std::size_t k = 0; k < count; ++k) {
          const std::string& name = role.tensors[role.reads(i)[k]].name;
          updated.insert(name);
          const std::string& gradient = role.tensors[role.reads(i)[count + k]].name;
          const std::string first = gradient.substr(0, gradient.find('\''));  // of those in an unrolled list
          EXPECT_EQ(first, (layout_of(model, strategy).parameters.single ? "sum." : "grad.") + name);
        }
      }
    }
    EXPECT_EQ(updated, expected);
  });
}

/// "F0 F1 B0 B1" of a role's layers, as they come. `chunk_of`: a node's.
template <class ChunkOf>
std::vector<Action> actions_of(const Program& program, const Role& role, bool splits, const ChunkOf& chunk_of) {
  std::vector<Action> actions;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (role.kind[i] != InstructionKind::compute || program.works[role.work[i]].op.kind->role == OpRole::helper ||
        role.microbatch[i] < 0 ||  // a loss on all microbatches
        is_played_again(role, i))
      continue;
    const Work& work = program.works[role.work[i]];
    const bool is_of_weights = splits && work.op.kind->matrix && work.grads == kParameterGrads;
    const Action action{work.pass == Pass::forward ? Action::Kind::forward
                        : is_of_weights            ? Action::Kind::weights
                                                   : Action::Kind::backward,
                        role.microbatch[i], chunk_of(program.names[role.node[i]])};
    if (actions.empty() || actions.back() != action) actions.push_back(action);
  }
  return actions;
}

TEST(LowerGrid, StagesFollowTheSchedule) {
  for_each_pipeline([](const Model& model, const Strategy& strategy, const Program& program) {
    const ScheduleKind& schedule = schedule_table().at(strategy.schedule);
    const std::vector<std::uint32_t> part = stages_of(model, strategy);
    const auto chunk_of = [&](const std::string& name) {
      const auto node = std::ranges::find(model.nodes, name, &Node::name) - model.nodes.begin();
      return rank_of_part(part[static_cast<std::size_t>(node)], strategy.pp, schedule.order).chunk;
    };
    for (std::uint32_t stage = 0; stage < strategy.pp; ++stage) {
      const std::vector<Action> found = actions_of(program, program.roles[stage], schedule.splits, chunk_of);
      std::vector<Action> actions;
      for (std::int64_t step = 0; step < program.steps_in_list(); ++step)
        for (const Action& action :
             schedule.stage(stage, strategy.pp, static_cast<std::int32_t>(strategy.microbatches), strategy.chunks))
          actions.push_back(action);
      // A stage of views and ops without a backward, or without parameters, has fewer instructions to show.
      std::erase_if(actions, [&](const Action& action) {
        return std::ranges::none_of(
            found, [&](const Action& each) { return each.kind == action.kind && each.chunk == action.chunk; });
      });
      EXPECT_EQ(to_text(found), to_text(actions)) << program.roles[stage].name;
    }
  });
}

TEST(LowerGrid, TransfersCarryWhatCrossesStages) {
  for_each_pipeline([](const Model& model, const Strategy& strategy, const Program& program) {
    std::vector<std::uint32_t> stage = stages_of(model, strategy);
    for (std::uint32_t& part : stage)
      part = rank_of_part(part, strategy.pp, schedule_table().at(strategy.schedule).order).stage;
    const std::vector<std::uint32_t> grads = model.grads();
    const std::vector<OpInstance> ops = model.instances(model.global_batch);  // of all replicas and microbatches
    std::set<std::pair<int, std::uint32_t>> edges;                            // node, stage that reads it
    for (std::size_t n = 0; n < model.nodes.size(); ++n)
      for (int source : model.nodes[n].inputs)
        if (source >= 0 && stage[static_cast<std::size_t>(source)] != stage[n]) edges.emplace(source, stage[n]);
    std::int64_t expected = 0, sent = 0;
    for (const auto& [node, reader] : edges)
      expected += ops[static_cast<std::size_t>(node)].signature().output.bytes() *
                  (grads[static_cast<std::size_t>(node)] != 0 ? 2 : 1);
    for (const Role& role : program.roles)
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (role.kind[i] == InstructionKind::send)
          sent += program.transfer_bytes(role, i) * static_cast<std::int64_t>(role.ranks.size());
    EXPECT_EQ(sent, expected);
  });
}

TEST(LowerGrid, ReplicasReduceEveryGradient) {
  for_each_uncut([](const Model& model, const Strategy& strategy, const Program& program) {
    if (program.daso) return;  // not in every step, nor over all: daso_test.cpp
    std::int64_t reduced = 0, broadcast = 0, buffers = 0;
    for (const Role& role : program.roles) {
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (role.kind[i] == InstructionKind::collective)
          (role.collective[i] == CollectiveKind::all_reduce ? reduced : broadcast) += program.transfer_bytes(role, i);
    }
    for (const OpInstance& op : model.instances(2))
      for (const BufferSpec& buffer : op.signature().buffers) buffers += buffer.spec.bytes();
    const std::int64_t times = (strategy.sums_each_microbatch ? strategy.microbatches : 1) * program.steps_in_list();
    EXPECT_EQ(reduced, strategy.dp > 1 ? times * 4 * parameter_count(model) : 0);
    EXPECT_EQ(broadcast, strategy.dp > 1 && program.broadcast_buffers ? buffers : 0);
  });
}

// Gradients are averaged: the loss over microbatches, the buckets over replicas.
TEST(LowerGrid, GradientsAreAveraged) {
  for_each_uncut([](const Model& model, const Strategy& strategy, const Program& program) {
    const bool is_sum = model.nodes.back().kind->is_sum;
    for (const Role& role : program.roles)
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.kind[i] == InstructionKind::compute) {
          const Work& work = program.works[role.work[i]];
          const bool loss = work.op.kind->role == OpRole::loss && work.pass == Pass::backward;
          const bool shared = schedule_table().at(strategy.schedule).one_loss;
          EXPECT_EQ(role.scale[i], loss && !shared && !is_sum ? 1.0 / static_cast<double>(strategy.microbatches) : 1.0);
        }
        if (role.kind[i] == InstructionKind::copy && !role.writes(i).empty()) {
          const std::string& name = role.tensors[role.writes(i)[0]].name;
          const bool fills = name.starts_with("bucket") || name.starts_with("sum."),
                     is_mean_of_nodes = program.daso && role.scale[i] != 1 && !fills;
          EXPECT_EQ(role.scale[i], is_mean_of_nodes   ? static_cast<double>(program.daso->local) / strategy.dp
                                   : fills && !is_sum ? 1.0 / (program.daso ? program.daso->local : strategy.dp)
                                                      : 1.0);
        }
      }
  });
}

// Said at once, not after minutes and gigabytes.
TEST(Lower, RefusesProgramsThatAreTooLarge) {
  const Model model = load_model("convnet,global_batch=1000000");
  const auto message = [&](std::string_view text) {
    return message_of([&] { (void)lower(model, parse_strategy(text, model)); });
  };
  EXPECT_EQ(message("pipeline,pp=2,microbatches=1000000"),
            "strategy 'pipeline,pp=2,schedule=gpipe,microbatches=1000000': 1000000 microbatches in 2 roles make a "
            "Program of 28000000 ops, at most 10000000 are allowed");
  EXPECT_EQ(message("single,microbatches=100"), "no error");
}

// DDP with no_sync: gradients add up over the microbatches and travel once, in the last one's backward.
TEST(Lower, ReplicasSumGradientsInTheLastBackward) {
  const Model model = small_model("toy_mlp");
  for (const char* text :
       {"ddp,dp=2,microbatches=4,first_bucket_MiB=0,bucket_MiB=0", "ddp_blocking,dp=2,microbatches=4"}) {
    SCOPED_TRACE(text);
    const Program program = lower(model, parse_strategy(text, model));
    const Role& role = program.roles.at(0);
    std::uint32_t first_sum = kNone, last_backward = 0, sums = 0;
    std::set<std::int32_t> microbatches_before;
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.kind[i] == InstructionKind::collective) {
        ++sums;
        first_sum = std::min(first_sum, i);
      }
      if (role.kind[i] != InstructionKind::compute || program.works[role.work[i]].pass != Pass::backward) continue;
      last_backward = i;
      if (first_sum == kNone) microbatches_before.insert(role.microbatch[i]);
    }
    EXPECT_EQ(microbatches_before, (std::set<std::int32_t>{0, 1, 2, 3}));
    const bool overlaps = parse_strategy(text, model).overlap;
    EXPECT_EQ(first_sum < last_backward, overlaps);
    EXPECT_EQ(sums, overlaps ? 4U : 1U);  // a bucket for each of two weights and two biases, or one for all
  }
}

// What an op changes in place is written: the parameter and states of every update, the statistics of every batch norm.
TEST(Lower, ChangesInPlaceAreWrites) {
  const Model model = testing::small_model("resnet18");
  const Program program = lower(model, parse_strategy("ddp_blocking,dp=2", model));
  const Role& role = program.roles.at(0);
  std::set<std::string> written;
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (role.kind[i] == InstructionKind::update || role.kind[i] == InstructionKind::compute)
      for (std::uint32_t t : role.writes(i)) written.insert(role.tensors[t].name);
  int checked = 0;
  for (const Tensor& tensor : role.tensors) {
    const Storage& storage = role.storages[tensor.storage];
    if (storage.tensor_class != TensorClass::weight && storage.tensor_class != TensorClass::optimizer &&
        storage.tensor_class != TensorClass::buffer)
      continue;
    EXPECT_TRUE(written.contains(tensor.name)) << tensor.name;
    ++checked;
  }
  EXPECT_EQ(checked, 62 + 62 + 20 * 3);  // parameters, momenta, statistics of 20 batch norms
}

/// The labels from the first that begins so to the last.
std::vector<std::string> labels_between(const Program& program, const Role& role, std::string_view first,
                                        std::string_view last) {
  std::vector<std::string> labels;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    const std::string label = program.label(role, i);
    if (labels.empty() && !label.starts_with(first)) continue;
    labels.push_back(label);
    if (label.starts_with(last)) break;
  }
  return labels;
}

// R6: the sum of fc1's input gradients travels beside what computes its parameters' gradients, and is waited for by the
// layer before. fc2's needs no sum: it is one instruction.
TEST(Lower, TensorPartsSumTheInputsGradientBesideTheParameters) {
  const Model model = load_model("convnet");
  const Program program = lower(model, parse_strategy("tp", model));
  EXPECT_EQ(labels_between(program, program.roles[0], "compute fc2 backward", "compute pool2 backward"),
            (std::vector<std::string>{"compute fc2 backward", "compute relu3 backward", "compute fc1 backward",
                                      "all_reduce flatten", "compute fc1 backward", "wait for all_reduce flatten",
                                      "compute pool2 backward"}));
}

/// What a stage computes ("F0", "B0") and when it sends a gradient and waits for it ("send0", "wait0").
std::string gradient_sends(const Program& program, const Role& role) {
  std::vector<std::string> events;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    std::string event;
    if (role.kind[i] == InstructionKind::send)
      event = fmt::format("send{}", role.microbatch[i]);
    else if (role.kind[i] == InstructionKind::wait && role.kind[role.awaits[i]] == InstructionKind::send)
      event = fmt::format("wait{}", role.microbatch[i]);
    else if (role.kind[i] == InstructionKind::compute && program.works[role.work[i]].op.kind->role != OpRole::helper)
      event = fmt::format("{}{}", program.works[role.work[i]].pass == Pass::forward ? 'F' : 'B', role.microbatch[i]);
    if (!event.empty() && (events.empty() || events.back() != event)) events.push_back(event);
  }
  return fmt::to_string(fmt::join(events, " "));
}

// A gradient that the stage before has surely received is waited for, so that it is freed: under 1F1B before the forward
// whose input was sent after it was used, under GPipe at the end.
TEST(Lower, GradientSendsAreAwaitedOnceTheyAreReceived) {
  const Model model = small_model("toy_mlp");
  const auto last_stage = [&](const char* schedule) {
    const Program program =
        lower(model, parse_strategy(fmt::format("pipeline,pp=2,cut=r1,microbatches=4,schedule={}", schedule), model));
    return gradient_sends(program, program.roles.at(1));
  };
  EXPECT_EQ(last_stage("1f1b"), "F0 B0 send0 F1 B1 send1 wait0 F2 B2 send2 wait1 F3 B3 send3 wait2 wait3");
  EXPECT_EQ(last_stage("gpipe"), "F0 F1 F2 F3 B0 send0 B1 send1 B2 send2 B3 send3 wait0 wait1 wait2 wait3");
}

// Megatron's order by default: a stage's replicas are neighbours on the machine. Else as the text says.
TEST(Lower, PlacesRanks) {
  const Model model = small_model("toy_mlp");
  EXPECT_EQ(lower(model, parse_strategy("dp=2,pp=3", model)).roles[1].ranks, (std::vector<std::uint32_t>{2, 3}));
  const Program program = lower(model, parse_strategy("dp=2,pp=3,order=dp-pp-tp", model));
  EXPECT_EQ(program.roles[1].ranks, (std::vector<std::uint32_t>{1, 4}));
  ASSERT_EQ(program.groups.size(), 1U);
  EXPECT_EQ(program.groups[0].members, (std::vector<std::vector<std::uint32_t>>{{0, 3}, {1, 4}, {2, 5}}));
  EXPECT_EQ(program.places().at(4).role, 1U);
  EXPECT_EQ(program.places().at(4).index, 1U);
}

/// The tensors that are all-reduced over tp, by their elements, in the order in which they are.
std::vector<std::int64_t> sums_over_tp(const Program& program) {
  const Role& role = program.roles[0];
  std::vector<std::int64_t> elements;
  for (std::size_t i = 0; i < role.size(); ++i) {
    if (role.kind[i] != InstructionKind::collective) continue;
    EXPECT_EQ(role.collective[i], CollectiveKind::all_reduce);
    EXPECT_EQ(program.groups[role.peer[i]].name, "tp");
    elements.push_back(role.tensors[role.reads(i)[0]].spec.elements());
  }
  return elements;
}

// Megatron's two sums per pair of layers: the second's output, and in the backward the gradient of the first's input, which
// the model's own input has none of. Weights and what lies between the two are cut.
TEST(TensorParallel, SumsAfterEverySecondLayer) {
  const Model model = load_model("sfc,global_batch=8");  // 784, 8192, 8192, 8192, 10
  for (const std::uint32_t tp : {2U, 8U}) {
    const Program program = lower(model, parse_strategy(fmt::format("tp,tp={}", tp), model));
    EXPECT_EQ(program.ranks(), tp);
    EXPECT_EQ(sums_over_tp(program), (std::vector<std::int64_t>{8 * 8192, 8 * 10, 8 * 8192}));
  }
  const Program once = lower(model, parse_strategy("tp", model)),
                twice = lower(model, parse_strategy("tp,microbatches=2", model));
  EXPECT_EQ(sums_over_tp(twice).size(), 2 * sums_over_tp(once).size());
}

TEST(TensorParallel, SaysWhatCantBeCut) {
  const auto message = [](const char* name, const char* strategy) {
    const Model model = load_model(name);
    return message_of([&] { lower(model, parse_strategy(strategy, model)); });
  };
  EXPECT_EQ(
      message("resnet18", "mesh,dp=2,tp=2"),
      "strategy 'mesh,dp=2,tp=2': tp cuts layers by output and input channels in turn, but model 'resnet18' is no "
      "chain of layers");
  EXPECT_EQ(message("convnet", "tp,tp=4"), "model 'convnet', node 'conv1': tp=4 must divide 6");
}

TEST(Lower, SaysWhichNodeDoesntFit) {
  const Model model = load_model("resnet18,image=32,global_batch=2");
  EXPECT_EQ(message_of([&] { lower(model, parse_strategy("single,microbatches=2", model)); }),
            "model 'resnet18', node 'layer4.0.bn1': op 'batch_norm' needs more than one value per channel in training, "
            "found f32[1,512,1,1]");
}

// Two readers of one tensor whose gradients lie in one storage: adding a third in place there would spoil the other.
TEST(Lower, AccumulationSparesSharedGradients) {
  const testing::TemporaryFolder folder;
  const auto program_of = [&](const std::string& nodes) {
    const Model model = load_model(
        folder.file("m.json", R"({"format": "paragauge-model-1", "name": "m", "input": [3], "target": {"classes": 3},
                      "global_batch": 2, "optimizer": {"kind": "sgd"}, "loss": "mse_loss",
                      "nodes": [{"name": "p", "op": "linear", "out_features": 3}, )" +
                                  nodes + "]}"));
    return lower(model, parse_strategy("single", model));
  };
  const auto check = [](const Program& program) {
    const Role& role = program.roles.at(0);
    std::map<std::uint32_t, std::uint32_t> added_to;  // storage → the only tensor that may still be read
    int additions = 0;
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      for (std::uint32_t t : role.reads(i)) {
        const auto found = added_to.find(role.tensors[t].storage);
        EXPECT_TRUE(found == added_to.end() || found->second == t)
            << "instruction " << i << ": " << role.tensors[t].name;
      }
      if (role.work[i] == kNone || program.works[role.work[i]].op.kind->name != "accumulate") continue;
      added_to[role.tensors[role.writes(i)[0]].storage] = role.writes(i)[0];
      ++additions;
    }
    return additions;
  };
  // u's gradient is that of s and r, and through s that of p and q. r's backward adds to p's before q's reads it.
  EXPECT_EQ(check(program_of(R"({"name": "q", "op": "linear", "out_features": 3},
                                {"name": "r", "op": "linear", "out_features": 3, "inputs": ["p"]},
                                {"name": "s", "op": "add", "inputs": ["p", "q"]},
                                {"name": "u", "op": "add", "inputs": ["s", "r"]})")),
            2);
  // p + p: both gradients are one tensor, so the sum needs a storage of its own.
  const Program twice = program_of(R"({"name": "s", "op": "add", "inputs": ["p", "p"]})");
  EXPECT_EQ(check(twice), 1);
  EXPECT_EQ(std::ranges::count(twice.roles[0].kind, InstructionKind::copy), 1);
}

/// R1 makes its batch at the beginning of a step, R2 reads the result at its end; neither changes anything else.
TEST(Lower, TimingAddsTheHostsWork) {
  const auto names = [](const char* timing) {
    const Model model = load_model(fmt::format("convnet,global_batch=8,timing={}", timing));
    const Program program = lower(model, parse_strategy("pipeline,pp=2,microbatches=2,schedule=forward_only", model));
    std::vector<std::vector<std::string>> of_roles;
    for (const Role& role : program.roles) {
      std::vector<std::string>& of_role = of_roles.emplace_back();
      for (std::uint32_t i = 0; i < role.size(); ++i)
        of_role.push_back(role.work[i] == kNone ? program.label(role, i) : work_key(program.works[role.work[i]]));
    }
    return of_roles;
  };
  const auto plain = names("step"), tutorial = names("tutorial"), epoch = names("epoch");
  EXPECT_EQ(tutorial[0].front(), "make_input.forward f32[8,3,32,32]");
  EXPECT_EQ(tutorial[1].front(), "make_target.forward i64[8] classes=10");
  for (std::size_t r = 0; r < 2; ++r) EXPECT_EQ(std::vector(tutorial[r].begin() + 1, tutorial[r].end()), plain[r]) << r;
  EXPECT_EQ(epoch[0], plain[0]);
  EXPECT_EQ(epoch[1].back(), "read_result.forward f32[] f32[8,10] i64[8]");
  EXPECT_EQ(std::vector(epoch[1].begin(), epoch[1].end() - 1), plain[1]);
}

}  // namespace
}  // namespace sim
