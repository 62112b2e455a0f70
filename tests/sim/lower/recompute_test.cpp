#include <map>
#include <set>

#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/strategy/layout.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

Program recomputing(const std::string& strategy, const std::string& model_text = "convnet,global_batch=16") {
  const Model model = load_model(model_text);
  return lower(model, parse_strategy(strategy, model));
}

/// What is played a second time, and how many FLOPs that are.
struct Again {
  std::vector<std::string> nodes;
  double flops = 0;
};
Again again_of(const Program& program, const Role& role) {
  Again again;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (role.kind[i] != InstructionKind::compute || program.works[role.work[i]].pass != Pass::forward) continue;
    if (!role.tensors[role.writes(i)[0]].name.ends_with(".again")) continue;
    again.nodes.push_back(program.names[role.node[i]]);
    again.flops += program.works[role.work[i]].demand().flops;
  }
  return again;
}

using Nodes = std::vector<std::string>;

// The last layer's output is what the loss has kept; softmax keeps its own.
TEST(Recompute, AStageIsPlayedAgainUpToWhatItsBackwardReads) {
  const Program program = recomputing("single,recompute=full");
  EXPECT_EQ(again_of(program, program.roles[0]).nodes,
            (Nodes{"conv1", "relu1", "pool1", "conv2", "relu2", "pool2", "fc1", "relu3", "fc2", "relu4"}));
  double forward = 0;
  for (const OpInstance& op : load_model("convnet").instances(16))
    if (op.kind->has_parameters && op.number("bias") > 0) forward += op.demand(Pass::forward).flops;
  double matrix = 0;
  for (std::uint32_t i = 0; i < program.roles[0].size(); ++i)
    if (const std::uint32_t w = program.roles[0].work[i];
        w != kNone && program.works[w].op.kind->matrix && program.works[w].pass == Pass::forward)
      matrix += program.works[w].demand().flops;
  const double fc3 = 2.0 * 16 * 84 * 10;
  EXPECT_DOUBLE_EQ(matrix, 2 * forward - fc3) << "one more forward, less the last layer's";
}

TEST(Recompute, SelectivelyOnlyWhatHasNoParameters) {
  const Program program = recomputing("single,recompute=selective");
  EXPECT_EQ(again_of(program, program.roles[0]).nodes, (Nodes{"relu4", "relu3", "relu2", "pool2", "relu1", "pool1"}));
  const Program half = recomputing("single,recompute=selective", "convnet,global_batch=16,precision=bf16");
  EXPECT_EQ(again_of(half, half.roles[0]).nodes, again_of(program, program.roles[0]).nodes)
      << "copies of weights are kept";
  // A ReLU that works in place has left nothing to play it from.
  const Program in_place = recomputing("single,recompute=selective", "resnet18,image=32,global_batch=8");
  for (const std::string& node : again_of(in_place, in_place.roles[0]).nodes)
    EXPECT_TRUE(node.ends_with("pool")) << node;
}

// Megatron's uniform method: chunks of blocks from each stage's first on. What is in no block is in none of them.
TEST(Recompute, BlocksAreCountedFromEachStagesFirst) {
  const Model model = load_model("gpt_nano");
  const auto together = [&](const char* strategy) {
    const std::vector<std::uint32_t> segments = layout_of(model, parse_strategy(strategy, model)).segment_of;
    std::map<std::uint32_t, std::set<std::string>> blocks;
    for (std::size_t n = 0; n + 1 < segments.size(); ++n)
      if (model.nodes[n].name.starts_with("h.")) blocks[segments[n]].insert(model.nodes[n].name.substr(0, 3));
    for (std::size_t n = 0; n + 1 < segments.size(); ++n)
      if (!model.nodes[n].name.starts_with("h.")) {
        EXPECT_FALSE(blocks.contains(segments[n])) << model.nodes[n].name;
      }
    std::vector<std::set<std::string>> list;
    for (const auto& [segment, of] : blocks) list.push_back(of);
    return list;
  };
  using Blocks = std::vector<std::set<std::string>>;
  EXPECT_EQ(together("single,recompute=block"), (Blocks{{"h.0"}, {"h.1"}, {"h.2"}, {"h.3"}}));
  EXPECT_EQ(together("single,recompute=block:3"), (Blocks{{"h.0", "h.1", "h.2"}, {"h.3"}}));
  EXPECT_EQ(together("1f1b,pp=2,microbatches=4,cut=h.0,recompute=block:2"), (Blocks{{"h.0"}, {"h.1", "h.2"}, {"h.3"}}));
  const auto peak = [&](const char* recompute) {
    return peak_memory(recomputing(fmt::format("single,recompute={}", recompute), "gpt_nano").roles[0]).peak_bytes;
  };
  EXPECT_LT(peak("block"), peak("block:2"));  // of few blocks, one played again is most
  EXPECT_LT(peak("block:2"), peak("none"));
  EXPECT_EQ(parse_strategy("single,recompute=block:2", model).text(), "single,recompute=block:2");
}

// Of each microbatch in flight a stage keeps what it has received, and the last one what its loss has made.
TEST(Recompute, MicrobatchesInFlightAreTheirInputs) {
  const auto activations = [](const std::string& more, std::int64_t microbatches) {
    const Program program =
        recomputing(fmt::format("pipeline,pp=2,cut=pool1,schedule=gpipe,microbatches={}{}", microbatches, more),
                    fmt::format("convnet,global_batch={}", 4 * microbatches));
    const Memory memory = peak_memory(program.roles[1]);
    return memory.peak_bytes - memory.persistent_bytes;
  };
  const std::int64_t input = 4 * 4 * 6 * 14 * 14,  // pool1's output, of four samples, f32
      softmax = 4 * 4 * 10;                        // its own, and the loss' log-probabilities and weight
  const std::int64_t more = activations(",recompute=full", 9) - activations(",recompute=full", 8);
  EXPECT_EQ(more, input + 2 * softmax + 4);
  EXPECT_GT(activations("", 9) - activations("", 8), 3 * more);
}

TEST(Recompute, WeightsAreGatheredForEachPass) {
  const auto gathers = [](const std::string& strategy) {
    std::size_t count = 0;
    const Program program = recomputing(strategy);
    for (std::uint32_t i = 0; i < program.roles[0].size(); ++i)
      count += program.roles[0].kind[i] == InstructionKind::collective &&
                       program.roles[0].collective[i] == CollectiveKind::all_gather
                   ? 1
                   : 0;
    return count;
  };
  // Five layers: forward all, backward all but the last, which has them. What has no parameters needs none.
  EXPECT_EQ(gathers("zero3,dp=2"), 9U);
  EXPECT_EQ(gathers("zero3,dp=2,recompute=selective"), 9U);
  // Played again are the first four, one after the other, before the last one's backward.
  EXPECT_EQ(gathers("zero3,dp=2,recompute=full"), 5U + 4U + 5U);
  EXPECT_EQ(gathers("zero3,dp=2,reshard=0,recompute=full"), 5U);
  EXPECT_EQ(gathers("zero3,dp=2,units=all,recompute=full"), 1U);
}

TEST(Recompute, SaysWhatItCanNot) {
  const auto refusal = [](const std::string& strategy, const std::string& model) {
    return message_of([&] { recomputing(strategy, model); });
  };
  EXPECT_EQ(refusal("single,recompute=block", "resnet18,image=32,global_batch=8"),
            "strategy 'single,recompute=block': node 'bn1' is a batch_norm: played twice it would count its statistics "
            "twice; recompute=selective leaves it alone");
  EXPECT_EQ(
      refusal("ddp,recompute=all", "toy_mlp"),
      "strategy 'ddp,recompute=all': recompute=all must be one of none, selective, block, full; block:2 is of two "
      "blocks each");
  EXPECT_EQ(
      refusal("ddp,recompute=full:2", "toy_mlp"),
      "strategy 'ddp,recompute=full:2': recompute=full:2 must be one of none, selective, block, full; block:2 is of "
      "two blocks each");
  EXPECT_EQ(refusal("ddp,recompute=block:0", "toy_mlp"),
            "strategy 'ddp,recompute=block:0': recompute=0 must be a whole number from 1 to 10000");
}

}  // namespace
}  // namespace sim
