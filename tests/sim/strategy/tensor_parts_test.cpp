// Imported models in tensor and sequence parallel: what moves, what is kept, a vocabulary's parts.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/lower/lower.hpp"
#include "sim/program/traffic.hpp"
#include "sim/strategy/strategy.hpp"
#include "tests/sim/model/toys.hpp"

namespace sim {
namespace {

using Json = nlohmann::json;
using testing::lowered;
using testing::message_of;
using testing::replaced;
using testing::TemporaryFolder;
using testing::toy_path;

/// Four sums for each block: after attention and after the MLP, forward and backward (Megatron's f and g), each of the
/// activations [samples, positions, width]; one of the embedding's output, one of the gradient of the head's input. The
/// loss needs the largest logit, and of each target two sums.
TEST(ImportedModel, TensorParallelBlocksSumFourTimes) {
  const std::string gpt = toy_path("gpt_toy");
  constexpr std::int64_t kBlocks = 2, kTargets = 8 * 4, kActivations = kTargets * 8;
  for (const char* strategy : {"tp", "mesh,tp=4"}) {
    const Program program = lowered(strategy, gpt);
    for (const Role& role : program.roles) {
      std::int64_t sums = 0;
      std::vector<std::int64_t> of_loss;
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.kind[i] != InstructionKind::collective) continue;
        EXPECT_EQ(role.collective[i], CollectiveKind::all_reduce);
        const std::int64_t elements = role.tensors[role.reads(i)[0]].spec.elements();
        if (program.names[role.node[i]] == "loss") {
          of_loss.push_back(elements);
          EXPECT_EQ(role.reduction[i], of_loss.size() == 1 ? Reduction::max : Reduction::sum);
          continue;
        }
        EXPECT_EQ(elements, kActivations);
        ++sums;
      }
      EXPECT_EQ(sums, 4 * kBlocks + 2) << role.name;
      EXPECT_EQ(of_loss, (std::vector<std::int64_t>{kTargets, 2 * kTargets}));
      for (const Tensor& tensor : role.tensors)
        if (tensor.name == "h.1.attn.c_attn.weight") {
          EXPECT_EQ(tensor.whole, (Shape{3, 8, 8}));
          EXPECT_EQ(tensor.spec.shape, (Shape{3, 8 / program.mesh.axes.back().size, 8}));
        }
    }
    EXPECT_EQ(to_text(program_from_text(to_text(program))), to_text(program)) << strategy;
  }
  EXPECT_EQ(message_of([&] { lowered("mesh,tp=3", gpt); }),
            "model 'gpt_toy', node 'h.0.attn.c_attn': tp=3 must divide 4");
  const std::string bare = toy_path();
  EXPECT_EQ(
      message_of([&] { lowered("tp", bare); }),
      "strategy 'tp,tp=2': tp cuts layers by output and input channels in turn, but model 'token_toy' is no chain "
      "of layers, and its import found no pair of layers to cut (their units are in the file)");
  for (const std::string& choice : {"dp", "in", "out"})
    EXPECT_EQ(message_of([&] { lowered("hypar,layers=" + choice, gpt); }),
              "strategy 'hypar,levels=2,layers=" + choice +
                  "': model 'gpt_toy' has no layer to choose for: conv2d or linear, not imported ops");
}

/// The collectives of a list: how many of each kind, and their bytes together.
struct Moved {
  std::map<CollectiveKind, std::multiset<std::int64_t>> bytes;  // of the whole array
};
Moved moved(const Program& program, const Role& role, std::string_view group) {
  Moved found;
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (role.kind[i] == InstructionKind::collective && program.groups[role.peer[i]].name == group) {
      const bool gathers = role.collective[i] == CollectiveKind::all_gather;
      const auto tensors = gathers ? role.writes(i) : role.reads(i);
      std::int64_t bytes = 0;
      for (const std::uint32_t tensor : tensors) bytes += role.tensors[tensor].spec.bytes();
      found.bytes[role.collective[i]].insert(bytes);
    }
  return found;
}

/// Of s bytes of activations [samples, positions, width], for each block: all of it is gathered before the two columns, in
/// the backward once more (what was gathered isn't kept), and the gradient of each row's output; and each row's output, and
/// the gradient of each column's input, are summed in parts. So moves the embedding's output, and its gradient, and the
/// head's input, twice, and its gradient. What norms and positions have gets its sum at the end.
TEST(ImportedModel, SequenceParallelMovesPartsOnly) {
  const std::string gpt = toy_path("gpt_toy");
  constexpr std::size_t kBlocks = 2;
  constexpr std::int64_t kTargets = 8 * 4, kWidth = 8, kActivations = 4 * kTargets * kWidth,
                         kSums = 4 * (kBlocks * 2 * 2 * kWidth + 2 * kWidth + 4 * kWidth);
  for (const int tp : {2, 4}) {
    const Program program = lowered(fmt::format("tp,tp={},sp=1", tp), gpt);
    for (const Role& role : program.roles) {
      const Moved all = moved(program, role, "tp");
      using enum CollectiveKind;
      EXPECT_EQ(all.bytes.size(), 3U);
      EXPECT_EQ(all.bytes.at(all_gather).size(), 6 * kBlocks + 3);
      EXPECT_EQ(all.bytes.at(all_gather).count(kActivations), 6 * kBlocks + 3);
      EXPECT_EQ(all.bytes.at(reduce_scatter).size(), 4 * kBlocks + 2);
      EXPECT_EQ(all.bytes.at(reduce_scatter).count(kActivations), 4 * kBlocks + 2);
      // The loss' two, and one bucket of the gradients of parameters that all have.
      EXPECT_EQ(all.bytes.at(all_reduce), (std::multiset<std::int64_t>{4 * kTargets, 8 * kTargets, kSums}));
      const double share = (tp - 1.0) / tp;
      EXPECT_DOUBLE_EQ(traffic_of(program, role).sent_bytes,
                       share * (kActivations * (10.0 * kBlocks + 5) + 2 * (12.0 * kTargets + kSums)));
    }
    EXPECT_EQ(to_text(program_from_text(to_text(program))), to_text(program));
  }
  // gpt_nano, f32[8, 64, 128] on two ranks: four blocks of ten halves, five more, 512 targets' 12 bytes, and norms of 18
  // times its width with the table of 64 positions.
  constexpr double kNano = 4.0 * 8 * 64 * 128;
  EXPECT_DOUBLE_EQ(traffic_of(lowered("tp,sp=1", "gpt_nano")).sent_bytes,
                   22.5 * kNano + 512 * 12 + 4.0 * 128 * (18 + 64));  // 5 946 368
  EXPECT_DOUBLE_EQ(traffic_of(lowered("tp", "gpt_nano")).sent_bytes, 18 * kNano + 512 * 12);
  // Autocast's layers keep half copies of their inputs, whole: nothing is gathered again.
  const Program half = lowered("tp,sp=1", gpt + ",precision=bf16");
  for (const Role& role : half.roles)
    EXPECT_EQ(moved(half, role, "tp").bytes.at(CollectiveKind::all_gather).size(), 4 * kBlocks + 2);
  // As much as without, but for what is gathered again, the embedding's gradient, and the sums at the end.
  EXPECT_DOUBLE_EQ(traffic_of(lowered("tp,sp=1", gpt)).sent_bytes - traffic_of(lowered("tp", gpt)).sent_bytes,
                   0.5 * kActivations * (2.0 * kBlocks + 1) + kSums);
}

/// As an importer writes it that knows nothing of positions: their number is in the place of T.
std::string without_positions(const std::string& path) {
  Json file = Json::parse(read_text_file(path));
  for (const char* table : {"bodies", "half"})
    for (Json& body : file[table]) {
      if (!body.contains("positions")) continue;
      const auto positions = body["positions"].get<std::int64_t>();
      for (const char* key : {"flops", "bytes"})
        for (Json& amount : body[key])
          amount = {amount[0].get<std::int64_t>() + positions * amount[2].get<std::int64_t>(),
                    amount[1].get<std::int64_t>() + positions * amount[3].get<std::int64_t>()};
      body.erase("positions");
      body.erase("sums");
      std::string text = body.dump();
      for (std::size_t at = text.find('T'); at != std::string::npos; at = text.find('T', at + 1))
        if ((text[at - 1] == '[' || text[at - 1] == ',') && (text[at + 1] == ']' || text[at + 1] == ','))
          text.replace(at, 1, fmt::to_string(positions));
      body = Json::parse(text);
    }
  return file.dump();
}

/// Where there are too few samples for the ranks each has a part of the positions: the same moves. Several samples' parts
/// don't lie together.
TEST(ImportedModel, SequenceParallelCutsPositionsOfFewSamples) {
  for (const char* name : {"gpt_toy.json", "llama_toy.json"}) {
    const std::string path = (testing::tests_folder() / "models" / name).string();
    const TemporaryFolder folder;
    const std::string older = folder.file("older.json", without_positions(path));
    for (const int tp : {2, 4}) {
      const auto with = [&](int microbatches) {
        return lowered(fmt::format("tp,tp={},sp=1,microbatches={}", tp, microbatches), path);
      };
      const Program by_samples = with(1), of_one = with(8), of_two = with(4);
      EXPECT_DOUBLE_EQ(traffic_of(of_one).sent_bytes, traffic_of(by_samples).sent_bytes);
      EXPECT_DOUBLE_EQ(traffic_of(of_two).sent_bytes, traffic_of(by_samples).sent_bytes);
      const auto copies = [](const Program& program, std::string_view kind) {
        return std::ranges::count_if(program.works, [&](const Work& work) { return work.op.kind->name == kind; });
      };
      for (const char* kind : {"pack", "unpack"}) {
        EXPECT_EQ(copies(of_one, kind), 0);
        EXPECT_EQ(copies(of_two, kind) > 0, tp == 4) << kind;  // two samples are a multiple of two ranks
      }
      // Samples are cut as they are in a file without positions, whose ops do the same.
      const Program before = lowered(fmt::format("tp,tp={},sp=1", tp), older);
      EXPECT_EQ(before.works.size(), by_samples.works.size());
      EXPECT_DOUBLE_EQ(traffic_of(before).sent_bytes, traffic_of(by_samples).sent_bytes);
    }
  }
}

/// Ranks that have samples of their own in between draw for themselves; those that play the same draw the same.
TEST(ImportedModel, SequenceParallelDrawsApart) {
  const std::string llama = toy_path("llama_toy");
  const std::map<std::string, std::vector<std::uint32_t>> expected{{"tp", {0, 0}},
                                                                   {"tp,sp=1", {0, 1}},
                                                                   {"mesh,dp=2,tp=2", {0, 0, 1, 1}},
                                                                   {"mesh,dp=2,tp=2,sp=1", {0, 2, 1, 3}},
                                                                   {"mesh,pp=2,tp=2,sp=1", {0, 1, 0, 1}}};
  for (const auto& [strategy, numbers] : expected) {
    const Program program = program_from_text(to_text(lowered(strategy, llama)));
    for (std::uint32_t rank = 0; rank < program.ranks(); ++rank)
      EXPECT_EQ(program.draw_number(rank), numbers.at(rank)) << strategy;
  }
}

/// What the forward of the first microbatch keeps: bytes of what nodes whose names begin so have made.
std::int64_t kept_by(const std::string& strategy, const std::string& model, std::string_view beginning = "") {
  const Program program = lowered(strategy, model);
  const Role& role = program.roles[0];
  const auto is_loss = [&](std::uint32_t i) { return role.node[i] != kNone && program.names[role.node[i]] == "loss"; };
  std::set<std::uint32_t> alive;  // storages
  for (std::uint32_t i = 0; i < role.size() && !is_loss(i); ++i) {
    for (const std::uint32_t tensor : role.writes(i)) alive.insert(role.tensors[tensor].storage);
    for (const std::uint32_t storage : role.frees(i)) alive.erase(storage);
  }
  std::int64_t bytes = 0;
  for (const std::uint32_t storage : alive)
    if (role.tensors[role.storages[storage].owner].name.starts_with(beginning)) bytes += role.storages[storage].bytes;
  return bytes;
}

/// All that a forward keeps for the backward is in parts, also what was gathered for it (Korthikanti et al., section 4.2.2).
TEST(ImportedModel, SequenceParallelKeepsParts) {
  const std::string llama = toy_path("llama_toy");
  const std::int64_t whole = kept_by("single", llama);
  EXPECT_EQ(2 * kept_by("tp,sp=1", llama), whole);
  EXPECT_EQ(4 * kept_by("tp,tp=4,sp=1", llama), whole);
  EXPECT_GT(2 * kept_by("tp", llama), whole + 1000);
  EXPECT_EQ(4 * kept_by("mesh,dp=2,tp=2,sp=1", llama), whole);
  EXPECT_EQ(8 * 4 * kept_by("tp,tp=4,sp=1,microbatches=8", llama), whole);  // a quarter of each sample's positions
}

/// Of a GPT's block with dropout 34 sbh in their table 2, of which 16 are numbers of two bytes and two are masks; beside
/// them what is small: for each head the logarithm of its softmax's sum, for each norm a mean and a deviation.
TEST(ImportedModel, SequenceParallelKeepsWhatKorthikantiCounted) {
  const std::filesystem::path folder = testing::tests_folder() / "models";
  Json file = Json::parse(read_text_file(folder / "gpt_toy.json"));
  file["bodies"]["dropout/1"] = Json::parse(read_text_file(folder / "token_toy.json"))["bodies"]["dropout/1"];
  Json nodes = Json::array();
  std::map<std::string, std::string> dropped;
  for (Json node : file["nodes"]) {
    for (Json& input : node["inputs"])
      if (const auto found = dropped.find(input.get<std::string>()); found != dropped.end()) input = found->second;
    nodes.push_back(node);
    const auto name = node["name"].get<std::string>();
    if (!name.ends_with("c_proj")) continue;
    dropped[name] = name + "_drop";
    nodes.push_back({{"name", dropped[name]},
                     {"op", "aten"},
                     {"body", "dropout/1"},
                     {"inputs", Json::array({name})},
                     {"parameters", Json::array()}});
  }
  file["nodes"] = nodes;
  const TemporaryFolder own;
  const std::string gpt = own.file("gpt.json", file.dump());
  constexpr std::int64_t kTokens = 8 * 4, kWidth = 8, kHeads = 4,
                         kBlock = kTokens * kWidth * (16 * 4 + 2) + 4 * kTokens * (kHeads + 2 * 2);
  EXPECT_EQ(kept_by("single", gpt, "h.1."), kBlock);
  EXPECT_EQ(kept_by("tp,sp=1", gpt, "h.1."), kBlock / 2);
  EXPECT_EQ(kept_by("tp,tp=4,sp=1", gpt, "h.1."), kBlock / 4);
  // Without sp what lies between is whole: two norms' inputs and outputs, and the masks.
  constexpr std::int64_t kBetween = kTokens * kWidth * (4 * 4 + 2) + 4 * kTokens * 2 * 2;
  EXPECT_EQ(kept_by("tp", gpt, "h.1."), kBetween + (kBlock - kBetween) / 2);
}

TEST(ImportedModel, SequenceParallelSaysWhatItNeeds) {
  const std::string gpt = toy_path("gpt_toy");
  const auto message = [](const std::string& strategy, const std::string& model) {
    return message_of([&] { lowered(strategy, model); });
  };
  EXPECT_EQ(message("tp,sp=1,microbatches=8", gpt), "no error");
  const TemporaryFolder folder;
  EXPECT_EQ(
      message("tp,sp=1,microbatches=8", folder.file("gpt.json", without_positions(gpt))),
      "strategy 'tp,tp=2,sp=1,microbatches=8': sp=1 needs the samples of a microbatch, or "
      "their positions, to be a multiple of tp=2, found 1 (global_batch=8, dp=1, microbatches=8) and none that can "
      "be cut in model 'gpt_toy'");
  EXPECT_EQ(message("mesh,dp=2,tp=2,sp=1,order=pp-tp-dp", gpt),
            "strategy 'mesh,dp=2,tp=2,order=pp-tp-dp,sp=1': sp=1 cuts the samples that a replica has: dp must come "
            "before tp in order=pp-tp-dp");
  EXPECT_EQ(message("mesh,dp=2,sp=1", gpt), "strategy 'mesh,dp=2,sp=1': sp=1 needs tp of at least 2, found tp=1");
  EXPECT_EQ(message("tp,sp=2", gpt), "strategy 'tp,sp=2': sp=2 must be a whole number from 0 to 1");
  EXPECT_EQ(message("tp,sp=1", "convnet,global_batch=8"),
            "strategy 'tp,tp=2,sp=1': sp cuts what lies between an imported model's cut layers, but model 'convnet' "
            "isn't imported");
  EXPECT_EQ(
      message("tp,sp=1", toy_path()),
      "strategy 'tp,tp=2,sp=1': sp cuts what lies between an imported model's cut layers, but model 'token_toy' has "
      "none: its import found no pair of layers to cut");
  // One of two norms with the same weight isn't known to treat positions alike.
  Json shared = Json::parse(read_text_file(gpt));
  shared["bodies"]["layer_norm/2"] = Json::parse(without_positions(gpt))["bodies"]["layer_norm/1"];
  Json &first = shared["nodes"][8], &second = shared["nodes"][18];
  ASSERT_EQ(first["name"], "h.0.ln_2");
  ASSERT_EQ(second["name"], "h.1.ln_2");
  second["body"] = "layer_norm/2";
  second["parameters"] = first["parameters"];
  shared["parameters"].erase("h.1.ln_2.weight");
  shared["parameters"].erase("h.1.ln_2.bias");
  const std::string path = folder.file("shared.json", shared.dump());
  EXPECT_EQ(message("tp,sp=1", path), "no error");
  EXPECT_EQ(message("tp,sp=1,microbatches=8", path),
            "model 'gpt_toy': nodes 'h.0.ln_2' and 'h.1.ln_2' share the parameter 'h.0.ln_2.weight', but what they are "
            "played by makes R,R,P and R,R,R of its gradient");
}

/// What a rank has of 7 words is a part of the table and of the logits, in whose place come their exponentials and the
/// gradient. All logits are nowhere.
TEST(ImportedModel, AVocabularyLiesInParts) {
  const std::string gpt = toy_path("gpt_toy");
  const auto specs = [](const Role& role) {
    std::map<std::string, Tensor> found;
    for (const Tensor& tensor : role.tensors) found[tensor.name] = tensor;
    return found;
  };
  struct Part {
    std::vector<std::uint32_t> ranks;
    std::int64_t words = 0;
  };
  const std::map<std::string, std::vector<Part>> expected{{"tp", {{{0}, 4}, {{1}, 3}}},
                                                          {"mesh,tp=4", {{{0, 1, 2}, 2}, {{3}, 1}}}};
  for (const auto& [strategy, parts] : expected) {
    const Program program = lowered(strategy, gpt);
    ASSERT_EQ(program.roles.size(), parts.size());
    EXPECT_EQ(program.mesh.axes.back().rest, Rest::chunks);
    for (std::size_t r = 0; r < parts.size(); ++r) {
      const Role& role = program.roles[r];
      const std::map<std::string, Tensor> tensors = specs(role);
      const Shape mine{8, 4, parts[r].words};
      EXPECT_EQ(role.ranks, parts[r].ranks);
      EXPECT_EQ(tensors.at("wte.weight").spec.shape, (Shape{parts[r].words, 8}));
      EXPECT_EQ(tensors.at("grad.wte.weight").spec.shape, (Shape{parts[r].words, 8}));
      EXPECT_EQ(tensors.at("lm_head#0").spec.shape, mine);
      EXPECT_EQ(tensors.at("loss#0.exponentials").spec.shape, mine);
      EXPECT_EQ(tensors.at("grad.lm_head#0").spec.shape, mine);
      for (const char* in_place : {"loss#0.exponentials", "grad.lm_head#0"})
        EXPECT_EQ(tensors.at(in_place).storage, tensors.at("lm_head#0").storage);
      EXPECT_EQ(tensors.at("loss#0").spec.shape, Shape{});
      // Each has its number of a constant that counts.
      const Tensor& first = tensors.at("tp.first.of7");
      const std::uint32_t tp = program.mesh.axes.back().size;
      EXPECT_EQ(first.whole, Shape{tp});
      EXPECT_EQ(*first.initial.runs, (Runs{{0, static_cast<double>(parts[0].words), tp}}));
      for (const std::uint32_t rank : role.ranks)
        EXPECT_EQ(program.piece_of(first, rank), (std::vector<Range>{{rank % tp, 1}}));
      std::multiset<std::string_view> counting;
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (std::ranges::any_of(role.reads(i), [&](std::uint32_t t) { return role.tensors[t].name == first.name; }))
          counting.insert(program.works[role.work[i]].op.name());
      EXPECT_EQ(counting, (std::multiset<std::string_view>{"class_grad", "class_sums", "embedding", "embedding"}));
    }
  }
  const std::string llama = toy_path("llama_toy");
  EXPECT_EQ(lowered("mesh,tp=4", llama).roles.size(), 1U);  // parts of one size
  // Microbatches have a loss each; its gradient is that of a mean.
  const Program program = lowered("mesh,dp=2,tp=2,microbatches=2", gpt);
  for (const Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.work[i] != kNone && program.works[role.work[i]].op.kind->name == "class_grad")
        EXPECT_EQ(role.scale[i], 0.5);  // of a replica's own samples
  // On one device nothing is cut, and the lookup is PyTorch's.
  for (const Work& work : lowered("single", gpt).works) {
    EXPECT_FALSE(work.op.name().starts_with("class_"));
    if (work.op.body != nullptr) EXPECT_TRUE(!work.op.body->reads_first && work.op.in_parts == nullptr);
  }
}

/// What a backward reads of the logits stays.
TEST(ImportedModel, LogitsThatAreReadAgainKeepTheirPlace) {
  Json file = Json::parse(read_text_file(testing::tests_folder() / "models" / "gpt_toy.json"));
  Json tanh = file["bodies"]["gelu/1"];
  tanh["inputs"] = {"f32[B,4,T]"};
  tanh["forward"] = {"o=tanh(i0)"};
  tanh["backward"] = {"gi0=tanh_backward(g,o)"};
  tanh["units"] = 7;
  file["bodies"]["tanh/1"] = tanh;
  file["nodes"].push_back({{"name", "cap"},
                           {"op", "aten"},
                           {"body", "tanh/1"},
                           {"inputs", Json::array({"lm_head"})},
                           {"parameters", Json::array()}});
  const TemporaryFolder folder;
  const Program program = lowered("tp", folder.file("capped.json", file.dump()));
  for (const Role& role : program.roles) {
    const auto storage = [&](std::string_view name) {
      return std::ranges::find(role.tensors, name, &Tensor::name)->storage;
    };
    EXPECT_NE(storage("loss#0.exponentials"), storage("cap#0"));
    EXPECT_EQ(storage("loss#0.exponentials"), storage("grad.cap#0"));
  }
}

/// Who counts the correct predictions needs all logits, and 6 words don't make four parts that are rounded up to 2.
TEST(ImportedModel, AVocabularyIsWholeWhereItMustBe) {
  const std::filesystem::path gpt = testing::tests_folder() / "models" / "gpt_toy.json";
  std::string text = read_text_file(gpt);
  for (const auto& [from, to] : {std::pair{"\"below\": 7", "\"below\": 6"},
                                 {"\"classes\": 7", "\"classes\": 6"},
                                 {"\"units\": 7", "\"units\": 6"},
                                 {"\"units\": 7", "\"units\": 6"},
                                 {"\"units\": 7", "\"units\": 6"},
                                 {"\"units\": 7", "\"units\": 6"},
                                 {"[7, 8]", "[6, 8]"},
                                 {"f32[7,8]", "f32[6,8]"},
                                 {"g,i0,7,", "g,i0,6,"},
                                 {"bf16[7,8]", "bf16[6,8]"},
                                 {"g,i0,7,", "g,i0,6,"}})
    text = replaced(text, from, to);
  const TemporaryFolder folder;
  const std::string six = folder.file("gpt.json", text);
  for (const Program& program : {lowered("tp", gpt.string() + ",timing=epoch"), lowered("mesh,tp=4", six)}) {
    std::size_t losses = 0;
    for (const Work& work : program.works) {
      EXPECT_FALSE(work.op.name().starts_with("class_"));
      losses += work.op.kind->name == "cross_entropy" && work.op.inputs[0].shape.back() > 5 ? 1 : 0;
      EXPECT_FALSE(work.op.body != nullptr && work.op.body->reads_first);
    }
    EXPECT_EQ(losses, 2U);  // forward, backward
    EXPECT_EQ(program.mesh.axes.back().rest, Rest::forbidden);
  }
  EXPECT_EQ(lowered("mesh,tp=2", six).mesh.axes.back().rest, Rest::forbidden);  // 3 each
  const std::string other =
      folder.file("other.json", replaced(text, "\"in_parts\": \"embedding/2\"", "\"in_parts\": \"linear/5\""));
  EXPECT_EQ(
      message_of([&] { load_model(other); }),
      other +
          ": nodes[0]: node 'wte': body 'linear/5' isn't the node's in parts: it must have units, and the same inputs, "
          "parameters, output and gradients with all of them");
}

}  // namespace
}  // namespace sim
