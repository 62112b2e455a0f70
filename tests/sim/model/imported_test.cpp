// Imported models: their files, and what lowering makes of shared parameters and constants.
#include "sim/model/imported_file.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "sim/lower/lower.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/strategy.hpp"
#include "tests/sim/model/toys.hpp"

namespace sim {
namespace {

using Json = nlohmann::json;
using testing::llama_with_tables;
using testing::lowered;
using testing::message_of;
using testing::replaced;
using testing::TemporaryFolder;
using testing::toy_path;

TEST(ImportedModel, ItsSharedParameterIsOne) {
  const Model model = load_model(toy_path());
  EXPECT_EQ(parameter_count(model), 7 * 8 + 16 * 8 + 16 + 8 * 16 + 8 + 8);
  const Program program = lowered("single");
  const Role& role = program.roles[0];
  EXPECT_EQ(std::ranges::count(role.tensors, "wte.weight", &Tensor::name), 1);
  std::size_t updates = 0, additions = 0;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    const Work* work = role.work[i] == kNone ? nullptr : &program.works[role.work[i]];
    updates += role.kind[i] == InstructionKind::update ? work->op.inputs.size() : 0;
    if (work != nullptr && work->op.kind->name == "accumulate" &&
        role.tensors[role.reads(i)[0]].name == "grad.wte.weight")
      ++additions;
  }
  EXPECT_EQ(updates, 6U);    // parameters, each once; none of the frozen table
  EXPECT_EQ(additions, 1U);  // two nodes read it
}

TEST(ImportedModel, ItsTextComesBack) {
  for (const char* strategy : {"single", "ddp,dp=2", "zero3,dp=2", "ddp,dp=2,microbatches=2"})
    for (const char* keys : {"", ",precision=bf16", ",precision=fp16", ",precision=tf32"}) {
      const Program program = lowered(strategy, toy_path() + keys);
      EXPECT_EQ(to_text(program_from_text(to_text(program))), to_text(program)) << strategy << keys;
    }
}

TEST(ImportedModel, NumbersOfAnInputMayLieBetweenZeroAndABound) {
  const TemporaryFolder folder;
  Json file = Json::parse(read_text_file(toy_path("contrast_toy")));
  file["inputs"][0]["below"] = 3;
  const std::string path = folder.file("m.json", file.dump());
  const Program program = lowered("ddp,dp=2", path);
  for (const Program& each : {program, program_from_text(to_text(program))})
    for (const Tensor& tensor : each.roles[0].tensors) {
      if (tensor.initial.kind != Initial::Kind::model_input) continue;
      const double half = tensor.name == "input" ? 1.5 : 0;  // "other" has no bound
      EXPECT_EQ(tensor.initial.center, half);
      EXPECT_EQ(tensor.initial.bound, half);
    }
  file["inputs"][0].erase("below");
  file["inputs"][1]["below"] = 0.5;
  EXPECT_EQ(load_model(folder.file("m.json", file.dump())).given.front().initial.bound, 0.25);
  for (const double below : {-1.0, 2e9}) {
    file["inputs"][1]["below"] = below;
    EXPECT_EQ(
        message_of([&] { load_model(folder.file("m.json", file.dump())); }),
        path +
            ": inputs[1]: 'below' must be between 0 and 1e9: numbers of an input f32 lie between 0 and it, without "
            "it on both sides");
  }
}

/// What a rank computes is its part of the batch; constants are whole, and nobody sends or updates them.
TEST(ImportedModel, RanksHaveTheirPartOfTheBatch) {
  const Program program = lowered("ddp,dp=2");
  for (const Role& role : program.roles)
    for (const Tensor& tensor : role.tensors) {
      if (tensor.name == "input") EXPECT_EQ(tensor.spec.shape, (Shape{4, 4}));
      if (tensor.name == "gain") EXPECT_EQ(tensor.spec.shape, (Shape{4, 1, 8}));
      if (tensor.name == "c0") EXPECT_EQ(tensor.spec.shape, (Shape{4, 1}));
    }
  for (const Work& work : program.works)
    if (work.op.body != nullptr) EXPECT_EQ(work.op.integer("batch"), 4);
}

/// Tied weights: both stages send their gradient to the other, and add what comes.
TEST(ImportedModel, StagesThatShareAParameterExchangeItsGradient) {
  const Program program = lowered("pipeline,pp=2,microbatches=2");
  for (const Role& role : program.roles) {
    std::vector<std::string> about;
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_posted(role.kind[i]) && program.names[role.node[i]] == "wte.weight")
        about.emplace_back(to_string(role.kind[i]));
    EXPECT_EQ(about, (std::vector<std::string>{"send", "recv"})) << role.name;
    EXPECT_EQ(std::ranges::count(role.tensors, "wte.weight", &Tensor::name), 1) << role.name;
  }
  const auto message = [](const std::string& strategy) { return message_of([&] { lowered(strategy); }); };
  EXPECT_EQ(
      message("mesh,pp=2,dp=2,zero=1,microbatches=2"),
      "model 'token_toy': nodes on stages 0, 1 share the parameter 'wte.weight'; allowed: on two stages, and without "
      "ZeRO, Heat, DASO, accumulate=every, loss_scale and max_grad_norm. Cut the model so that they are on one");
}

/// What only detached branches and indices lead to has no backward, and nobody sends its gradient.
TEST(ImportedModel, DetachedBranchesGetNoGradient) {
  const std::string path = toy_path("quantised_toy");
  const Model model = load_model(path);
  const std::vector<std::uint32_t> grads = model.grads();
  std::vector<std::string> without;
  for (std::size_t n = 0; n < model.nodes.size(); ++n)
    if (grads[n] == 0) without.push_back(model.nodes[n].name);
  EXPECT_EQ(without, (std::vector<std::string>{"cdist", "argmin", "sub_2", "abs", "randperm", "index", "randn_like",
                                               "randint", "mul", "add_2", "mul_2"}));
  const auto cdist = static_cast<std::size_t>(model.node_index("cdist"));
  EXPECT_TRUE(model.has_parameters(cdist));
  EXPECT_EQ(grads[cdist], 0U);

  const Program program = lowered("pipeline,pp=2,microbatches=2,cut=randn_like", path);
  std::vector<std::string> sent;  // from the second stage
  const Role& last = program.roles.back();
  for (std::uint32_t i = 0; i < last.size(); ++i)
    if (last.kind[i] == InstructionKind::send) sent.emplace_back(program.names[last.node[i]]);
  EXPECT_EQ(sent, (std::vector<std::string>{"code", "view_as_real", "code", "view_as_real"}));
  EXPECT_EQ(message_of([&] { lowered("pipeline,pp=2,cut=argmin", path); }),
            "model 'quantised_toy': nodes on stages 0, 1 share the parameter 'code.weight', which gets a gradient on 1 "
            "only: cut the model so that they are on one");
}

/// Rotary embeddings' angles: each stage that reads them makes them from the constants, as a module on each would.
TEST(ImportedModel, WhatConstantsSayIsNotSent) {
  const TemporaryFolder folder;
  write_text_file(folder / "llama.json", llama_with_tables());
  const std::string path = (folder / "llama.json").string();
  const auto named = [](const Program& program, const Role& role, InstructionKind kind) {
    std::multiset<std::string> names;
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == kind && role.node[i] != kNone) names.insert(program.names[role.node[i]]);
    return names;
  };
  const Program program = lowered("pipeline,pp=2,microbatches=2,cut=layers.0.self_attn.add", path);
  for (const Role& role : program.roles) {
    for (const char* table : {"rotary.cos", "rotary.sin"}) {
      EXPECT_EQ(named(program, role, InstructionKind::compute).count(table), 2U) << role.name << ", once a microbatch";
      EXPECT_EQ(named(program, role, InstructionKind::send).count(table), 0U) << role.name;
    }
    EXPECT_EQ(std::ranges::count(role.tensors, "c0", &Tensor::name), 1) << role.name;
  }
  // Where one stage alone reads them, it alone makes them, though they come first.
  const Program late = lowered("pipeline,pp=2,microbatches=2,cut=embed_tokens", path);
  EXPECT_EQ(named(late, late.roles[0], InstructionKind::compute).count("rotary.cos"), 0U);
  EXPECT_EQ(named(late, late.roles[1], InstructionKind::compute).count("rotary.cos"), 2U);
  // A rank with several parts makes them once.
  const Program both =
      lowered("interleaved,pp=2,microbatches=2,cut=embed_tokens+layers.0.self_attn.mul+layers.0.self_attn.add", path);
  for (const Role& role : both.roles)
    EXPECT_EQ(named(both, role, InstructionKind::compute).count("rotary.cos"), 2U) << role.name;
  // What is drawn must be the same on all: it is sent.
  for (const char* op :
       {"randn_like", "bernoulli", "normal_functional", "uniform", "_standard_gamma", "native_dropout"}) {
    Json file = Json::parse(read_text_file(path));
    file["bodies"]["cos/1"]["forward"] = {fmt::format("o={}(i0)", op)};
    write_text_file(folder / "drawn.json", file.dump());
    const Program drawn =
        lowered("pipeline,pp=2,microbatches=2,cut=layers.0.self_attn.add", (folder / "drawn.json").string());
    EXPECT_EQ(named(drawn, drawn.roles[0], InstructionKind::send).count("rotary.cos"), 2U) << op;
  }
  // Nor is it what a stage is for.
  const Model model = load_model(path);
  for (const std::uint32_t pp : {2U, 12U, 28U}) {
    const std::vector<std::uint32_t> stages =
        stages_of(model, parse_strategy(fmt::format("pipeline,pp={},microbatches=2", pp), model));
    std::set<std::uint32_t> busy;
    for (std::size_t n = 2; n < stages.size(); ++n) busy.insert(stages[n]);  // the tables come first
    EXPECT_EQ(busy.size(), pp);
  }
  EXPECT_EQ(
      message_of([&] { lowered("pipeline,pp=29,microbatches=2", path); }),
      fmt::format("strategy 'pipeline,pp=29,schedule=gpipe,microbatches=2': pp=29 stages, but model '{}' has 28 nodes",
                  model.name));
  EXPECT_EQ(message_of([&] { lowered("pipeline,pp=2,microbatches=2,cut=rotary.sin", path); }),
            fmt::format("strategy 'pipeline,pp=2,schedule=gpipe,microbatches=2,cut=rotary.sin': cut 'rotary.sin' "
                        "leaves a stage of model "
                        "'{}' empty; cuts go in the model's order",
                        model.name));
}

/// FSDP2 cuts parameters by their rows; PyTorch's refuses one that has none.
TEST(ImportedModel, ANumberHasNoRows) {
  EXPECT_EQ(
      message_of([] { lowered("fsdp,dp=2", toy_path("contrast_toy")); }),
      "strategy 'fsdp,dp=2': parameter 'temperature' of model 'contrast_toy' is a single number, without rows to cut "
      "(PyTorch's fully_shard refuses it, too): give it the shape [1], or use zero3");
  EXPECT_EQ(message_of([] { lowered("zero3,dp=2", toy_path("contrast_toy")); }), "no error");
}

/// What is computed anew, and what ZeRO gathers together: blocks are the file's units, with all that is in them.
TEST(ImportedModel, ItsUnitsAreBlocks) {
  const std::string gpt = toy_path("gpt_toy");
  const Model model = load_model(gpt);
  ASSERT_EQ(model.units, (std::vector<std::string>{"h.0", "h.1"}));
  const std::vector<std::uint32_t> segments =
      layout_of(model, parse_strategy("ddp,dp=2,recompute=block", model)).segment_of;
  const std::vector<std::uint32_t> units =
      layout_of(model, parse_strategy("zero3,dp=2,units=block", model)).parameters.cut.value().unit_of;
  for (std::size_t n = 1; n < model.nodes.size(); ++n) {
    const auto block = [&](std::size_t node) { return model.nodes[node].name.substr(0, 4); };
    if (!block(n).starts_with("h.")) continue;
    EXPECT_EQ(segments[n] == segments[n - 1], block(n) == block(n - 1)) << model.nodes[n].name;
    EXPECT_EQ(units[n] == units[n - 1], block(n) == block(n - 1)) << model.nodes[n].name;
  }
  EXPECT_NE(segments[static_cast<std::size_t>(model.node_index("h.1.add_2"))],
            segments[static_cast<std::size_t>(model.node_index("ln_f"))]);
}

TEST(ImportedModel, BadFilesSayWhatIsWrong) {
  const TemporaryFolder folder;
  const Json good = Json::parse(read_text_file(toy_path()));
  const auto fails = [&](const std::function<void(Json&)>& spoil) {
    Json file = good;
    spoil(file);
    const std::string path = folder.file("m.json", file.dump());
    const std::string message = message_of([&] { load_model(path); });
    return message.starts_with(path) ? message.substr(path.size() + 2) : message;
  };
  EXPECT_EQ(fails([](Json& f) { f["inputs"][0]["shape"][0] = 8; }),
            "inputs[0]: 'shape' must begin with \"B\", the batch");
  EXPECT_EQ(fails([](Json& f) { f["inputs"][0].erase("below"); }),
            "inputs[0]: 'below' must be at least 1, the first number that an input i64 can't have");
  EXPECT_EQ(fails([](Json& f) { f["inputs"][0]["name"] = "ids"; }),
            "inputs[0]: the first input, and it only, is named 'input'; found 'ids'");
  EXPECT_EQ(fails([](Json& f) { f["constants"]["c1"]["values"]["arange"] = {0}; }),
            "constants: c1: values: 'arange' must be two numbers");
  EXPECT_EQ(fails([](Json& f) { f["constants"]["c0"]["values"]["runs"][0][1] = 2; }),
            "constants: c0: values: 5 values for a tensor f32[4,1]");
  EXPECT_EQ(fails([](Json& f) { f["constants"]["c0"]["values"]["runs"][0][0] = "-inf"; }), "no error");
  EXPECT_EQ(fails([](Json& f) { f["constants"]["c0"]["values"]["runs"][0][0] = "nan"; }),
            "constants: c0: values: 'runs' must be pairs [value, how many], found [\"nan\",1]");
  const auto with_list = [&](const char* constant, const Json& values) {
    return fails([&](Json& f) { f["constants"][constant]["values"] = {{"list", values}}; });
  };
  EXPECT_EQ(with_list("c0", {1, "inf", 2, 3}), "no error");
  EXPECT_EQ(with_list("c0", {1, "1", 2, 3}), "constants: c0: values: 'list' must be a list of numbers, found \"1\"");
  EXPECT_EQ(with_list("c1", {1, "inf", 2, 3}),
            "constants: c1: values: 'list' must be a list of numbers, found \"inf\"");
  EXPECT_EQ(fails([](Json& f) { f["nodes"][0]["body"] = "embed/1"; }), "nodes[0]: node 'wte': unknown body 'embed/1'");
  EXPECT_EQ(fails([](Json& f) { f["nodes"][0]["parameters"][0] = "x"; }),
            "nodes[0]: node 'wte': unknown parameter 'x'; the file's 'parameters' lists them");
  EXPECT_EQ(fails([](Json& f) { f["nodes"][3]["parameters"][0] = "wte.weight"; }),
            "nodes[3]: node 'fc': parameter 'wte.weight' is f32[7,8], body 'linear' takes f32[16,8]");
  EXPECT_EQ(fails([](Json& f) {
              f["nodes"][3]["inputs"] = {"scale", "scale"};
              f["nodes"][3].erase("half");
            }),
            "nodes[3]: node 'fc': op 'aten' takes 1 inputs, found 2");
  EXPECT_EQ(fails([](Json& f) { f["nodes"][3]["stride"] = 2; }),
            "nodes[3]: node 'fc': 'stride' isn't known of an imported op; name, op, body, half, half_parameters, "
            "in_parts, inputs, "
            "parameters");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["linear/1"]["output"] = "f32[B,4,15]"; }),
            "model 'token_toy', node 'fc.act': input 0 of body 'gelu' must be f32[2,4,16], found f32[2,4,15]");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["gelu/1"]["forward"][0] = "o=gelu(i0"; }),
            "bodies: gelu/1: body 'gelu': 'o=gelu(i0' is not a call of an ATen op, at 'the end'");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["gelu/1"]["forward"][0] = "o=gelu( i0)"; }),
            "bodies: gelu/1: 'o=gelu( i0)' has spaces, quotes, '|' or ';'");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["mul/1"]["backward"].push_back("gi2=sum(g)"); }),
            "model 'token_toy', node 'scale': body 'mul' makes the gradient of input 2, which needs none");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["gelu/1"]["backward"].back() = "t9=gelu_backward(g,i0)"; }),
            "model 'token_toy', node 'proj': body 'linear' makes the gradient of input 0, which needs none");
  EXPECT_EQ(
      fails([](Json& f) {
        for (const Json& node : f["nodes"])
          if (node["name"] == "proj")
            for (Json& call : f["bodies"][node["body"].get<std::string>()]["backward"])
              if (const auto text = call.get<std::string>(); text.starts_with("gi0="))
                call = replaced(text, "gi0=", "t9=");
      }),
      "model 'token_toy': the parameter 'fc.bias' gets no gradient: the loss depends on it through nothing that has "
      "one; what isn't trained is a constant");
  EXPECT_EQ(fails([](Json& f) {
              f["target"]["shape"] = {"B", 5};
            }),
            "model 'token_toy', node 'loss': op 'cross_entropy' needs a target i64[2,4], found i64[2,5]");
}

TEST(ImportedModel, KeysThatItCantFollowAreRefused) {
  const auto message = [](const std::string& keys) {
    const std::string text = toy_path() + "," + keys;
    return replaced(message_of([&] { load_model(text); }), text, "M");
  };
  EXPECT_EQ(message("timing=tutorial"),
            "model 'M': timing=tutorial makes random images and one class each; this model takes others");
  EXPECT_EQ(message("memory_format=channels_last"),
            "model 'M': memory_format=channels_last needs a model with input [channels, height, width]");
}

TEST(ImportedModel, ChannelsLieLastUntilADimensionMoves) {
  const Model model = load_model("unet,memory_format=channels_last");
  EXPECT_EQ(load_model(model.text()).text(), model.text());
  std::size_t moved = 0;
  for (const OpInstance& op : model.instances(2)) {
    const TensorSpec output = op.signature().output;
    const bool moves = op.name().starts_with("permute");
    moved += moves;
    EXPECT_EQ(output.channels_last, output.shape.size() == 4 && !moves) << op.name() << " " << to_string(output);
    for (const ParameterSpec& parameter : op.signature().parameters)
      EXPECT_EQ(parameter.spec.channels_last, parameter.spec.shape.size() == 4) << op.name();
  }
  EXPECT_EQ(moved, 1U);
}

/// As under PyTorch's DDP: each rank has its own.
TEST(ImportedModel, AnOpThatSeesSamplesTogetherSeesARanksOwn) {
  const TemporaryFolder folder;
  Json file = Json::parse(read_text_file(toy_path()));
  file["bodies"]["gelu/1"]["rows"] = false;
  const std::string path = folder.file("m.json", file.dump());
  const Model model = load_model(path);
  std::vector<std::string> by_part;
  for (const OpInstance& op : model.instances(2))
    for (const Rule& rule : rules_of(op))
      if (rule.by_part) by_part.push_back(fmt::format("{} {}", op.name(), rule.name));
  EXPECT_EQ(by_part, (std::vector<std::string>{"gelu batch"}));
  EXPECT_NO_THROW(lowered("ddp,dp=2", path));
}

}  // namespace
}  // namespace sim
