// Imported models in half precision.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
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

/// By node: the dtypes of its output and of what it saves.
std::map<std::string, std::string> dtypes_of(const Model& model) {
  std::map<std::string, std::string> dtypes;
  const std::vector<OpInstance> ops = model.instances(8);
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const Signature s = ops[n].signature();
    std::string text(to_string(s.output.dtype));
    for (const SavedSpec& saved : s.saved) text += fmt::format(" {}", to_string(saved.spec.dtype));
    for (const ParameterSpec& parameter : s.parameters) EXPECT_NE(parameter.spec.dtype, half_of(model.precision));
    dtypes[model.nodes[n].name] = text;
  }
  return dtypes;
}

// As torch.autocast has it on GPUs: what multiplies keeps copies of what it multiplies, and gives half precision; a sum of
// that and of f32 is f32; the loss computes in f32.
TEST(ImportedHalf, DtypesAreAutocasts) {
  for (const auto& [precision, half] : {std::pair{"bf16", "bf16"}, {"fp16", "f16"}}) {
    const auto dtypes = dtypes_of(load_model(fmt::format("{},precision={}", toy_path(), precision)));
    const std::map<std::string, std::string> expected{{"wte", "f32"},
                                                      {"pos.expand", "f32"},
                                                      {"scale", "f32"},
                                                      {"fc", fmt::format("{0} {0} {0}", half)},
                                                      {"fc.act", half},
                                                      {"proj", fmt::format("{0} {0}", half)},
                                                      {"drop", fmt::format("{} bool", half)},
                                                      {"residual", "f32"},
                                                      {"head", fmt::format("{0} {0} {0}", half)},
                                                      {"loss", "f32 f32 f32"}};
    EXPECT_EQ(dtypes, expected);
  }
  const auto wide = dtypes_of(load_model(toy_path() + ",precision=bf16,dtype=f64"));  // casts are copies
  EXPECT_EQ(wide.at("fc"), "f64 f64 f64");
  EXPECT_EQ(wide.at("residual"), "f64");
}

/// What the forwards keep for the backwards, and what is sent.
TEST(ImportedHalf, MemoryAndWireAreByHand) {
  const auto program = [](const std::string& strategy, const std::string& precision) {
    return lowered(strategy, toy_path() + precision);
  };
  const auto kept = [&](const std::string& precision) {
    const Model model = load_model(toy_path() + precision);
    const std::vector<NodeSummary> nodes = summarize(model, 8);
    std::map<std::string, std::int64_t> bytes;
    for (const NodeSummary& node : nodes) bytes[node.name] = node.activation_bytes;
    return bytes;
  };
  const auto f32 = kept(""), half = kept(",precision=bf16");
  constexpr std::int64_t kRows = 8 * 4;
  // Outputs, and of what multiplies the copies of its factors; but in bf16 the projection's input has been that.
  EXPECT_EQ(f32.at("fc"), 4 * kRows * 16);
  EXPECT_EQ(half.at("fc"), 2 * kRows * 16 + 2 * kRows * 8 + 2 * 16 * 8);
  EXPECT_EQ(half.at("fc.act"), 2 * kRows * 16);
  EXPECT_EQ(half.at("proj"), 2 * kRows * 8 + 2 * 8 * 16);
  EXPECT_EQ(half.at("drop"), 2 * kRows * 8 + kRows * 8);  // and the mask
  EXPECT_EQ(f32.at("residual"), 4 * kRows * 8);
  EXPECT_EQ(half.at("residual"), 4 * kRows * 8);
  EXPECT_EQ(half.at("head"), 2 * kRows * 7 + 2 * kRows * 8 + 2 * 7 * 8);
  // Gradients are f32's, and so is what replicas send; between stages goes what the last layer gives.
  const auto sent = [&](const std::string& strategy, const std::string& precision) {
    return traffic_of(program(strategy, precision)).sent_bytes;
  };
  EXPECT_EQ(sent("ddp,dp=2", ",precision=bf16"), sent("ddp,dp=2", ""));
  constexpr double kParameters = 4.0 * (7 * 8 + 16 * 8 + 16 + 8 * 16 + 8 + 8), kFrozen = 4.0 * 4 * 8;
  // Each of two ranks sends half of them for the forward, and half of the gradients; the backward reads the copies. Of the
  // table that isn't trained half for the forward.
  EXPECT_EQ(sent("zero3,dp=2", ",precision=bf16"), kParameters + kFrozen / 2);
  const double stages = sent("pipeline,pp=2,cut=proj", ""), in_half = sent("pipeline,pp=2,cut=proj", ",precision=bf16");
  // One rank sends the projection forth, the other its gradient back.
  EXPECT_EQ(stages - in_half, (4.0 - 2.0) * kRows * 8);
}

// Weights that `fc`, `proj` and `head` keep in bf16.
TEST(ImportedHalf, CopiesOfParametersAreNoActivations) {
  const auto at = [](const Program& program, TensorClass of) {
    std::int64_t bytes = 0;
    for (const Storage& storage : program.roles[0].storages) bytes += storage.tensor_class == of ? storage.bytes : 0;
    return bytes;
  };
  const Model model = load_model(toy_path() + ",precision=bf16");
  std::int64_t copies = 0, saved = 0;
  for (const OpInstance& op : model.instances(8))
    for (const SavedSpec& s : op.signature().saved) (s.is_copy ? copies : saved) += s.spec.bytes();
  EXPECT_GT(copies, 0);
  EXPECT_GT(saved, 0);
  const Program half = lowered("single", toy_path() + ",precision=bf16"), f32 = lowered("single", toy_path());
  EXPECT_EQ(at(half, TensorClass::copy), copies);
  EXPECT_EQ(at(f32, TensorClass::copy), 0);
  const Role& role = half.roles[0];
  const MemoryUses uses = uses_at_peak(role);
  const std::int64_t at_peak = uses[static_cast<std::size_t>(MemoryUse::parameter_copies)];
  EXPECT_GT(at_peak, 0);
  EXPECT_LE(at_peak, copies);  // in the midst of the backward
  EXPECT_EQ(at_peak, peak_memory(role).at_peak[static_cast<std::size_t>(TensorClass::copy)]);
  EXPECT_EQ(sum_of(uses), peak_memory(role).peak_bytes);
}

TEST(ImportedHalf, WhatTheFileDoesntSayIsRefused) {
  const TemporaryFolder folder;
  const auto message = [&](const std::function<void(Json&)>& spoil, const std::string& keys = ",precision=bf16") {
    Json file = Json::parse(read_text_file(toy_path()));
    spoil(file);
    const std::string path = folder.file("m.json", file.dump());
    const std::string text = message_of([&] { load_model(path + keys); });
    return text.find(path) == std::string::npos ? text : replaced(text, path, "M");
  };
  const auto erase = [](Json& f) {
    f.erase("half");
    for (Json& node : f["nodes"]) node.erase("half");
  };
  EXPECT_EQ(message(erase, ""), "no error");
  EXPECT_EQ(message(erase, ",precision=tf32"), "no error");
  EXPECT_EQ(
      message(erase),
      "model 'M,precision=bf16': precision=bf16: the file is of an older importer, which didn't say what autocast "
      "does to its ops; f32, tf32 or ieee");
  EXPECT_EQ(
      message(
          [&](Json& f) {
            erase(f);
            f["half"] = "what autocast does inside op 'lstm' isn't known, at module 'lstm'";
          },
          ",precision=fp16"),
      "model 'M,precision=fp16': precision=fp16: what autocast does inside op 'lstm' isn't known, at module 'lstm'; "
      "f32, tf32 or ieee");
  EXPECT_EQ(message([](Json& f) { f["nodes"][3]["half"] = "linear/9"; }),
            "M: nodes[3]: node 'fc': unknown body 'linear/9' for half precision");
  EXPECT_EQ(message([](Json& f) { f["nodes"][3]["half"] = "gelu/half1"; }),
            "M: nodes[3]: node 'fc': body 'gelu/half1' for half precision takes other inputs or parameters than the "
            "node has");
  EXPECT_EQ(message([](Json& f) {
              f["half"]["add/half1"]["products"] = {{"matmul", {{0, 1}, {0, 1}}}};
            }),
            "M: half: add/half1: products: 'matmul' must be one of matmul, convolution, attention and a dtype: "
            "\"matmul f32\"");
  EXPECT_EQ(message([](Json& f) { f["half"]["linear/half1"]["output"] = "f32[B,4,16]"; }),
            "model 'token_toy', node 'fc.act': input 0 of body 'gelu' must be bf16[2,4,16], found f32[2,4,16]");
}

TEST(ImportedHalf, ParametersStayF32WhereTheFileDoesntSay) {
  const Model model = load_model(toy_path() + ",precision=bf16");
  EXPECT_EQ(message_of([&] { parse_strategy("zero3,dp=2,param_dtype=half", model); }),
            "strategy 'zero3,dp=2,param_dtype=half': param_dtype=half: the file doesn't say what its ops are with "
            "parameters in half precision: import it with --half-parameters; otherwise use param_dtype=f32");
  EXPECT_EQ(
      message_of([&] { parse_strategy("deepspeed_stage_2,dp=2", model); }),
      "strategy 'deepspeed_stage_2,dp=2': DeepSpeed makes the whole model half precision: the file doesn't say "
      "what its ops are with parameters in half precision: import it with --half-parameters; otherwise use zero1, "
      "zero2 or zero3");
  EXPECT_NO_THROW(parse_strategy("deepspeed_stage_2,dp=2", load_model(toy_path())));
  EXPECT_EQ(message_of([&] { parse_strategy("zero3,dp=2,reduce_dtype=half", model); }),
            "strategy 'zero3,dp=2,reduce_dtype=half': reduce_dtype=half needs param_dtype=half here");
  EXPECT_EQ(load_model(toy_path() + ",precision=fp16").loss_scale, 65536);
}

/// GPT-2's architecture: where parameters are bf16 nothing is left in f32, and nothing is copied.
TEST(ImportedHalf, ParametersInHalfPrecision) {
  for (const auto& [precision, half] : {std::pair{"bf16", Dtype::bf16}, {"fp16", Dtype::f16}}) {
    const Model halved =
        load_model(fmt::format("{},precision={}", toy_path("gpt_toy"), precision)).with_half_parameters();
    const std::vector<OpInstance> ops = halved.instances(8);
    for (std::size_t n = 0; n + 1 < ops.size(); ++n) {
      SCOPED_TRACE(halved.nodes[n].name);
      const Signature s = ops[n].signature();
      EXPECT_EQ(s.output.dtype, half);
      for (const ParameterSpec& parameter : s.parameters) EXPECT_EQ(parameter.spec.dtype, half);
      for (const SavedSpec& saved : s.saved) EXPECT_FALSE(saved.is_copy);
    }
    EXPECT_EQ(halved.nodes[static_cast<std::size_t>(halved.node_index("h.0.add"))].kind->name, "add");
  }
  const Model f32 = load_model(toy_path("gpt_toy")),
              wide = load_model(toy_path("gpt_toy") + ",dtype=f64,precision=bf16");
  for (const OpInstance& op : wide.with_half_parameters().instances(8))
    EXPECT_EQ(op.signature().output.dtype, Dtype::f64);
  // Weights and sums travel as two bytes instead of four (under autocast the backward reads the copies, and gathers
  // less); who updates has four.
  const auto sent = [&](const std::string& strategy, const std::string& keys) {
    return traffic_of(lowered(strategy, toy_path("gpt_toy") + keys)).sent_bytes;
  };
  for (const char* strategy : {"zero3,dp=2,units=layer", "fsdp,dp=2"}) {
    SCOPED_TRACE(strategy);
    EXPECT_DOUBLE_EQ(sent(std::string(strategy) + ",param_dtype=half", ",precision=bf16"), sent(strategy, "") / 2);
  }
  const Program program = lowered("zero3,dp=2,param_dtype=half", toy_path("gpt_toy") + ",precision=bf16");
  std::int64_t weights = 0, parameters = 0;
  for (const Storage& storage : program.roles[0].storages)
    if (storage.persistent && storage.tensor_class == TensorClass::weight) weights += storage.bytes;
  for (const auto& [name, parameter] : f32.parameters) parameters += parameter.spec.elements();
  EXPECT_GE(weights, 4 * parameters / 2);
  EXPECT_LE(weights, 4 * (parameters / 2 + static_cast<std::int64_t>(program.roles[0].units.size())));
}

TEST(ImportedHalf, BodiesOfHalfParametersThatDontFitAreRefused) {
  const TemporaryFolder folder;
  const auto message = [&](const std::function<void(Json&)>& spoil, const std::string& keys = ",precision=bf16") {
    Json file = Json::parse(read_text_file(toy_path("gpt_toy")));
    spoil(file);
    const std::string path = folder.file("m.json", file.dump());
    const std::string text = message_of([&] { load_model(path + keys); });
    return text.find(path) == std::string::npos ? text : replaced(text, path, "M");
  };
  const std::size_t linear = 4;  // h.0.attn.c_attn
  const Json gpt = Json::parse(read_text_file(toy_path("gpt_toy")));
  const std::string name = gpt["nodes"][linear]["half_parameters"], embedding = gpt["nodes"][0]["half_parameters"];
  EXPECT_EQ(message([](Json&) {}), "no error");
  EXPECT_EQ(message([&](Json& f) { f["nodes"][linear]["half_parameters"] = "linear/9"; }),
            "M: nodes[4]: node 'h.0.attn.c_attn': unknown body 'linear/9' for half precision");
  EXPECT_EQ(message([&](Json& f) { f["nodes"][linear]["half_parameters"] = embedding; }),
            "M: nodes[4]: node 'h.0.attn.c_attn': body 'embedding/halved1' for half precision takes other inputs or "
            "parameters than the node has");
  EXPECT_EQ(message([&](Json& f) { f["half_parameters"][name]["parameters"][0] = "bf16[3x2T,9]"; }),
            "M: nodes[4]: node 'h.0.attn.c_attn': body 'linear' for half precision has other shapes or gradients than "
            "the node's");
  EXPECT_EQ(message([&](Json& f) { f["half_parameters"][name]["parameters"][1] = "f32[3x2T]"; }),
            "M: nodes[4]: node 'h.0.attn.c_attn': parameters of body 'linear' must be bf16, found f32");
  EXPECT_EQ(message([&](Json& f) { f["half_parameters"][embedding]["output"] = "f32[B,4,8]"; }),
            "M: nodes[0]: node 'wte': body 'embedding' takes and gives other types than the one in parts does in bf16");
  EXPECT_EQ(message([&](Json& f) { f["half_parameters"][name]["output"] = "f32[B,4,3x2T]"; }),
            "model 'gpt_toy', node 'h.0.attn.attention': input 0 of body 'attention' must be bf16[2,4,3,8], found "
            "f32[2,4,3,8]");
  EXPECT_EQ(message([&](Json& f) { f["half_parameters"][name]["output"] = "f32[B,4,3x2T]"; }, ""), "no error");
  EXPECT_EQ(message([](Json& f) { f["constants"]["c0"]["halved"] = true; }),
            "M: constants: c0: 'halved' is for f32, found i64");
  // A reason why there are none; and nothing of autocast.
  const auto none = [](Json& f) {
    f["half_parameters"] = "it fails";
    for (Json& node : f["nodes"]) node.erase("half_parameters");
  };
  EXPECT_EQ(message(none), "no error");
  const auto nothing = [](Json& f) {
    f["half"] = "it fails, too";
    for (Json& node : f["nodes"]) node.erase("half");
  };
  EXPECT_EQ(message(nothing), "model 'M,precision=bf16': precision=bf16: it fails, too; f32, tf32 or ieee");
  EXPECT_EQ(message(nothing, ""), "no error");
}

/// A precision is told of an op where it changes what it does: so a profile has both.
TEST(ImportedHalf, WorksSayTheirPrecision) {
  const auto precisions = [](const std::string& keys) {
    std::map<std::string, std::string> found;
    const Model model = load_model(toy_path() + keys);
    const std::vector<OpInstance> ops = model.instances(8);
    for (std::size_t n = 0; n < ops.size(); ++n) found[model.nodes[n].name] = to_string(ops[n].precision);
    return found;
  };
  EXPECT_EQ(precisions(",precision=bf16")["fc"], "bf16");
  EXPECT_EQ(precisions(",precision=bf16")["residual"], "bf16");
  EXPECT_EQ(precisions(",precision=bf16")["wte"], "f32");  // it's the same
  EXPECT_EQ(precisions(",precision=tf32")["fc"], "tf32");
  EXPECT_EQ(precisions(",precision=tf32")["fc.act"], "f32");
  EXPECT_EQ(precisions(",precision=ieee")["fc"], "f32");
}

}  // namespace
}  // namespace sim
