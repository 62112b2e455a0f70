#include "sim/plan/communication.hpp"

#include <cmath>
#include <map>
#include <sstream>

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

/// All cuts of so many layers on so many levels.
std::vector<LevelCuts> all_of(std::size_t layers, std::size_t levels) {
  std::vector<LevelCuts> all;
  for (std::uint32_t bits = 0; bits < 1U << (layers * levels); ++bits) {
    LevelCuts cuts(levels, std::vector<Cut>(layers, Cut::dp));
    for (std::size_t i = 0; i < layers * levels; ++i)
      if ((bits >> i & 1U) != 0) cuts[i / layers][i % layers] = Cut::in;
    all.push_back(std::move(cuts));
  }
  return all;
}

/// Chains whose weights and activations are of any relation: the outputs of one are the inputs of the next.
std::vector<std::vector<ChainLayer>> small_chains(std::size_t layers) {
  std::vector<std::vector<ChainLayer>> chains;
  std::uint32_t state = 1;
  const auto next_size = [&] {  // 1 to 256
    state = state * 1664525U + 1013904223U;
    return std::exp2(state >> 24 & 7U) * (1 + (state >> 28));
  };
  for (int i = 0; i < 40; ++i) {
    std::vector<ChainLayer> chain(layers);
    double input = next_size();
    for (ChainLayer& layer : chain) {
      layer.input_bytes = input;
      layer.weight_bytes = next_size();
      layer.output_bytes = input = next_size();
    }
    chains.push_back(std::move(chain));
  }
  return chains;
}

/// As the header has it.
double closed_form(const std::vector<ChainLayer>& chain, const LevelCuts& cuts) {
  double bytes = 0;
  for (std::size_t layer = 0; layer < chain.size(); ++layer) {
    int dp = 0, in = 0, turns = 0;
    for (const std::vector<Cut>& level : cuts) {
      ++(level[layer] == Cut::dp ? dp : in);
      turns += layer > 0 && level[layer - 1] == Cut::dp && level[layer] == Cut::in ? 1 : 0;
    }
    bytes += 2 * (std::exp2(dp) - 1) * chain[layer].weight_bytes + 2 * (std::exp2(in) - 1) * chain[layer].output_bytes +
             turns * chain[layer].input_bytes;
  }
  return bytes;
}

struct Published {
  std::string network, model;
  double in_GB = 0, dp_GB = 0, hypar_GB = 0;
  std::string choices;
};

std::vector<Published> published() {
  std::vector<Published> all;
  for (const std::string& line : testing::lines_of(testing::golden_text("hypar_published.csv"))) {
    if (line[0] == '#' || line.starts_with("network")) continue;
    std::vector<std::string> fields;
    std::istringstream stream(line);
    for (std::string field; std::getline(stream, field, ',');) fields.push_back(field);
    all.push_back({fields.at(0), fields.at(1), std::stod(fields.at(2)), std::stod(fields.at(3)),
                   std::stod(fields.at(4)), fields.at(5)});
  }
  return all;
}

std::string text_of(const LevelCuts& cuts) {
  std::string text;
  for (const std::vector<Cut>& level : cuts) {
    if (!text.empty()) text += '/';
    for (const Cut cut : level) text += cut == Cut::dp ? 'd' : 'm';
  }
  return text;
}

std::vector<ChainLayer> chain_of_256(const std::string& model) {
  return chain_of(load_model(model + ",global_batch=256"));
}

TEST(HyparCommunication, IsTheClosedForm) {
  for (const std::vector<ChainLayer>& chain : small_chains(3))
    for (const LevelCuts& cuts : all_of(3, 3))
      EXPECT_NEAR(communicated_bytes(chain, cuts), closed_form(chain, cuts), 1e-12 * closed_form(chain, cuts));
}

// The proof by trying all: every small chain, on one level (the paper's algorithm 1) and on several together.
TEST(HyparCommunication, NothingCommunicatesLess) {
  int worse = 0, cases = 0;
  double worst = 1;
  for (const auto& [layers, levels] : std::vector<std::pair<std::size_t, std::size_t>>{{1, 1},
                                                                                       {2, 1},
                                                                                       {3, 1},
                                                                                       {4, 1},
                                                                                       {8, 1},
                                                                                       {1, 2},
                                                                                       {2, 2},
                                                                                       {3, 2},
                                                                                       {4, 2},
                                                                                       {1, 3},
                                                                                       {2, 3},
                                                                                       {3, 3},
                                                                                       {2, 4},
                                                                                       {3, 4}})
    for (const std::vector<ChainLayer>& chain : small_chains(layers)) {
      double least = communicated_bytes(chain, all_cut(chain, levels, Cut::dp));
      for (const LevelCuts& cuts : all_of(layers, levels)) least = std::min(least, communicated_bytes(chain, cuts));
      const double together = communicated_bytes(chain, least_together(chain, levels));
      EXPECT_NEAR(together, least, 1e-12 * least);
      const double by_level = communicated_bytes(chain, least_by_level(chain, levels));
      if (levels == 1) {
        EXPECT_NEAR(by_level, least, 1e-12 * least);
        continue;
      }
      ++cases;
      worse += by_level > least * (1 + 1e-12) ? 1 : 0;
      worst = std::max(worst, by_level / least);
    }
  // Level by level isn't always best: an inner level can't take back what an outer one has chosen.
  std::printf("level by level: worse in %d of %d chains, by at most %.1f %%\n", worse, cases, 100 * (worst - 1));
  EXPECT_GT(worse, 0);
}

// Each level's choice communicates least of all on that level, given the levels above.
TEST(HyparCommunication, EachLevelIsTheLeastOfItsOwn) {
  for (const std::vector<ChainLayer>& chain : small_chains(4)) {
    const LevelCuts chosen = least_by_level(chain, 3);
    for (std::size_t level = 0; level < 3; ++level) {
      LevelCuts cuts(chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(level) + 1);
      const double own = communicated_bytes(chain, cuts);
      for (const LevelCuts& other : all_of(4, 1)) {
        cuts.back() = other[0];
        EXPECT_GE(communicated_bytes(chain, cuts), own * (1 - 1e-12));
      }
    }
  }
}

// The paper's ten networks: the choice of every layer and level, and of the 30 values 19 within 1 % (VGG-B's 1.47 GB is the
// label of VGG-A beside it: ours are 1.469 and 1.491 GB).
TEST(HyparCommunication, PublishedChoicesAndBytes) {
  ASSERT_EQ(published().size(), 10U);
  for (const Published& paper : published()) {
    SCOPED_TRACE(paper.network);
    const std::vector<ChainLayer> chain = chain_of_256(paper.model);
    const LevelCuts chosen = least_by_level(chain, 4);
    EXPECT_EQ(text_of(chosen), paper.choices);
    const auto GB = [&](const LevelCuts& cuts) { return communicated_bytes(chain, cuts) / 1e9; };
    EXPECT_NEAR(GB(all_cut(chain, 4, Cut::dp)), paper.dp_GB, 0.01 * paper.dp_GB);
    EXPECT_NEAR(GB(chosen), paper.hypar_GB, (paper.network == "VGG-B" ? 0.015 : 0.01) * paper.hypar_GB);
    EXPECT_NEAR(GB(least_together(chain, 4)), GB(chosen), 1e-9);  // level by level is the best of all here
  }
}

// With all of Table 2 counted, the choices of six networks aren't the published ones, and the bytes of nine are too many.
TEST(HyparCommunication, Table2AsItStandsIsNotWhatWasPublished) {
  int other_choice = 0, other_bytes = 0;
  for (const Published& paper : published()) {
    const std::vector<ChainLayer> chain = chain_of_256(paper.model);
    const LevelCuts chosen = least_by_level(chain, 4, kTable2);
    other_choice += text_of(chosen) != paper.choices ? 1 : 0;
    other_bytes += communicated_bytes(chain, chosen, kTable2) / 1e9 > 1.01 * paper.hypar_GB ? 1 : 0;
  }
  EXPECT_EQ(other_choice, 6);
  EXPECT_EQ(other_bytes, 9);
}

// What is published for model parallelism isn't understood. Table 1 alone, 2 (2^4 - 1) F' of every layer, is up to 75 %
// above and 69 % below it. An observation, not an explanation: the values of nine networks (not AlexNet) are within 1 % of
//
//   convolutions 16 F'' + P, fully connected layers 28.7 F'
//
// F'': the output as if a convolution without padding kept its input's height and width; P: the input with its padding,
// without the first layer's.
TEST(HyparCommunication, PublishedModelParallelismIsNotTable1) {
  const std::map<std::string, double> ratio{
      {"SFC", 1.045},   {"SCONV", 1.173}, {"Lenet-c", 1.149}, {"Cifar-c", 1.691}, {"AlexNet", 0.310},
      {"VGG-A", 1.744}, {"VGG-B", 1.756}, {"VGG-C", 1.754},   {"VGG-D", 1.754},   {"VGG-E", 1.753}};
  for (const Published& paper : published()) {
    SCOPED_TRACE(paper.network);
    const Model model = load_model(paper.model + ",global_batch=256");
    const std::vector<ChainLayer> chain = chain_of(model);
    EXPECT_NEAR(communicated_bytes(chain, all_cut(chain, 4, Cut::in)) / 1e9 / paper.in_GB, ratio.at(paper.network),
                1e-3);
    if (paper.network == "AlexNet") continue;
    double bytes = 0;
    std::size_t layer = 0;
    for (const OpInstance& op : model.instances(256)) {
      if (!op.kind->matrix) continue;
      const ChainLayer& of = chain[layer];
      if (op.kind->name == "linear") {
        bytes += 28.7 * of.output_bytes;
      } else {
        const auto side = static_cast<double>(op.inputs[0].shape[2]);
        const auto padded = side + 2 * static_cast<double>(op.integer("padding"));
        const auto out = static_cast<double>(op.signature().output.shape[2]);
        bytes += 16 * of.output_bytes * (side * side) / (out * out);
        if (layer > 0) bytes += of.input_bytes * (padded * padded) / (side * side);
      }
      ++layer;
    }
    EXPECT_NEAR(bytes / 1e9, paper.in_GB, 0.01 * paper.in_GB);
  }
}

/// What all ranks get from others, summed over the collectives of a step.
double moved_bytes(const Program& program) {
  double bytes = 0;
  for (const Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.kind[i] != InstructionKind::collective) continue;
      const auto members = static_cast<double>(program.groups[role.peer[i]].members[0].size());
      const double passes =
          role.collective[i] == CollectiveKind::all_reduce ? 2 : 1;  // a reduce-scatter, an all-gather
      bytes += static_cast<double>(role.ranks.size()) * passes * (members - 1) / members *
               static_cast<double>(program.transfer_bytes(role, i));
    }
  return bytes;
}

// On one level the strategy `hypar` moves just what the model counts, whatever the choice. On two it moves no less, and
// often more: both levels cut a dimension in one order, the outer first, so that parts move which the model leaves in place.
TEST(HyparCommunication, IsWhatProgramsMove) {
  const testing::TemporaryFolder folder;
  const Model model =
      load_model(folder.file("chain.json", R"({"format": "paragauge-model-1", "name": "chain", "input": [16],
      "target": {"classes": 8}, "global_batch": 8, "optimizer": {"kind": "sgd", "lr": 0.1}, "loss": "cross_entropy", "nodes": [
      {"name": "a", "op": "linear", "out_features": 32, "bias": false}, {"name": "r", "op": "relu"},
      {"name": "b", "op": "linear", "out_features": 64, "bias": false},
      {"name": "c", "op": "linear", "out_features": 8, "bias": false}]})"));
  const std::vector<ChainLayer> chain = chain_of(model);
  int cases = 0, equal = 0;
  double most = 1;
  for (const std::size_t levels : {1U, 2U})
    for (const LevelCuts& cuts : all_of(chain.size(), levels)) {
      std::string layers;
      for (const std::vector<Cut>& level : cuts) {
        layers += layers.empty() ? "" : "/";
        for (std::size_t i = 0; i < level.size(); ++i)
          layers += std::string(i > 0 ? "+" : "") + (level[i] == Cut::dp ? "dp" : "in");
      }
      SCOPED_TRACE(layers);
      const std::string text = fmt::format("hypar,levels={},layers={}", levels == 1 ? "2" : "2x2", layers);
      const double moved = moved_bytes(lower(model, parse_strategy(text, model))),
                   counted = communicated_bytes(chain, cuts);
      if (levels == 1) {
        EXPECT_EQ(moved, counted);
        continue;
      }
      EXPECT_GE(moved, counted);
      ++cases;
      equal += moved == counted ? 1 : 0;
      most = std::max(most, moved / counted);
    }
  std::printf("two levels: %d of %d choices as counted, the others up to %.2f times\n", equal, cases, most);
}

TEST(HyparCommunication, Chains) {
  const std::vector<ChainLayer> chain = chain_of(load_model("convnet"));
  ASSERT_EQ(chain.size(), 5U);
  EXPECT_EQ(chain[0].name, "conv1");
  EXPECT_EQ(chain[1].weight_bytes, 4 * 16 * 6 * 25);
  EXPECT_EQ(chain[1].input_bytes, 4 * 64 * 6 * 14 * 14);  // behind the pool
  EXPECT_EQ(chain[0].output_bytes, chain[1].input_bytes);
  EXPECT_EQ(chain[4].output_bytes, 4 * 64 * 10);
  EXPECT_EQ(
      message_of([] { chain_of(load_model("resnet18")); }),
      "model 'resnet18' is no chain: node 'layer1.0.add' reads 'maxpool', which isn't the node before it; HyPar's "
      "method is for chains");
}

}  // namespace
}  // namespace sim
