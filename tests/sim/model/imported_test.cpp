// Imported models: the texts of bodies, files, and what lowering makes of shared parameters and constants.
#include "sim/model/imported_file.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/lower/lower.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/program/memory.hpp"
#include "sim/program/traffic.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/strategy.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using Json = nlohmann::json;
using testing::message_of;
using testing::replaced;
using testing::TemporaryFolder;

constexpr const char* kGelu =
    "gelu|f32[B,64]||f32[B,64]||o=gelu(i0,approximate=tanh)|gi0=gelu_backward(g,i0,approximate=tanh)|0+64B,0+128B|"
    "0+512B,8+768B|1,2|rows";

std::string toy_path() { return (testing::tests_folder() / "models" / "token_toy.json").string(); }

// ---- Texts ----

TEST(Body, IsWhatItsTextSays) {
  const Body& gelu = body_from(kGelu);
  EXPECT_EQ(gelu.name, "gelu");
  EXPECT_EQ(gelu.output.at({.batch = 16}), (TensorSpec{Dtype::f32, {16, 64}}));
  EXPECT_EQ(gelu.output.batch_dim(), 0);
  EXPECT_EQ(gelu.reads_inputs, std::vector{0});
  EXPECT_TRUE(gelu.reads_parameters.empty() && gelu.reads_saved.empty() && !gelu.reads_output);
  EXPECT_EQ(gelu.input_grads, 1U);
  EXPECT_EQ(gelu.bytes[1].at({.batch = 10}), 7688);
  EXPECT_EQ(gelu.kernels[1], 2);
  EXPECT_EQ(&body_from(kGelu), &gelu);
}

TEST(Body, CallsHaveNamesNumbersSizesAndLists) {
  const Body& body = body_from(
      "x|f32[B,4]||f32[2B,2]|bool[B,4]|t0,s0,_=op.Name(i0,-1,1e-05,2B,B,[1,[B,3]],[],true,none,-inf,key=word)"
      ";o=view(t0,[2B,2])||0+0B,0+0B|0+0B,0+0B|1,0|whole");
  ASSERT_EQ(body.forward.size(), 2U);
  const Call& call = body.forward[0];
  EXPECT_EQ(call.results, (std::vector<std::string>{"t0", "s0", "_"}));
  EXPECT_EQ(call.op, "op");
  EXPECT_EQ(call.overload, "Name");
  ASSERT_EQ(call.arguments.size(), 11U);
  EXPECT_EQ(call.arguments[0].word, "i0");
  EXPECT_TRUE(call.arguments[1].is_integral);
  EXPECT_EQ(call.arguments[1].number, -1);
  EXPECT_FALSE(call.arguments[2].is_integral);
  EXPECT_EQ(call.arguments[2].number, 1e-05);
  EXPECT_EQ(call.arguments[3].size.at({.batch = 8}), 16);
  EXPECT_EQ(call.arguments[4].size.at({.batch = 8}), 8);
  ASSERT_EQ(call.arguments[5].items.size(), 2U);
  EXPECT_EQ(call.arguments[5].items[1].items[0].kind, Argument::Kind::size);
  EXPECT_TRUE(call.arguments[6].items.empty());
  EXPECT_EQ(call.arguments[6].kind, Argument::Kind::list);
  EXPECT_EQ(call.arguments[8].word, "none");
  EXPECT_EQ(call.arguments[9].number, -std::numeric_limits<double>::infinity());
  EXPECT_EQ(call.arguments[10].key, "key");
  EXPECT_FALSE(body.by_rows);
  EXPECT_TRUE(body.backward.empty());
}

TEST(Body, ChangesItsDtypeEverywhere) {
  const Body& wide = body_in(
      body_from("f32x|f32[B]||f32[B]|f32[]|t0=to(i0,f32);o=f32_like(t0);s0=sum(t0,dtype=f32)||0+0B,0+0B|0+0B,0+0B|1,0|"
                "rows|products=matmul:f32:0+1B:0+0B"),
      Dtype::f32, Dtype::f64);
  EXPECT_EQ(wide.inputs[0].dtype, Dtype::f64);
  EXPECT_EQ(wide.forward[0].arguments[1].word, "f64");
  EXPECT_EQ(wide.forward[1].op, "f32_like");
  EXPECT_EQ(wide.forward[2].arguments[1].word, "f64");
  EXPECT_EQ(wide.name, "f32x");
}

TEST(Body, SaysWhatItCantRead) {
  const std::string text = kGelu;
  const auto fails = [&](std::string_view from, std::string_view to) {
    return message_of([&] { body_from(replaced(text, from, to)); });
  };
  EXPECT_EQ(fails("|rows", ""), "body 'gelu': a body has 11 fields, or 13 where it can be cut, found 10");
  EXPECT_EQ(fails("|rows", "|row"), "body 'gelu': 'row' must be rows or whole");
  EXPECT_EQ(fails("f32[B,64]", "f32[B,B]"), "body 'gelu': 'f32[B,B]': only one size can be a multiple of the batch");
  EXPECT_EQ(fails("f32[B,64]", "f32[B,-1]"),
            "body 'gelu': 'f32[B,-1]' is not a tensor type; sizes are positive integers or multiples of the batch (4B) "
            "or the units (4T)");
  EXPECT_EQ(fails("o=gelu(i0,approximate=tanh)", "o=gelu(i0"),
            "body 'gelu': 'o=gelu(i0' is not a call of an ATen op, at 'the end'");
  EXPECT_EQ(fails("o=gelu", "t=gelu"), "body 'gelu': the forward doesn't make the output 'o'");
  EXPECT_EQ(fails("o=gelu", "i0=gelu"), "body 'gelu': the value 'i0' is made twice");
  EXPECT_EQ(fails("gi0=", "gi1="), "body 'gelu': the backward gives 'gi1', but there are 1 inputs");
  EXPECT_EQ(fails("0+64B,", "64,"), "body 'gelu': '64' is not an amount; expected e.g. 0+64B or 0+64B+2T+8BT");
  EXPECT_EQ(fails("||f32", "|f32[3]|f32"), "body 'gelu': the backward doesn't give the parameter's gradient 'gp0'");
  EXPECT_EQ(message_of([] { body_from("x|f32[B]|f32[1]|f32[B]||o=mul.Tensor(i0,p0)||0+1B,0+0B|0+1B,0+0B|1,0|rows"); }),
            "body 'x': parameters need a backward; what isn't trained is a constant");
  EXPECT_EQ(fails("||o=", "|f32[]|o="), "body 'gelu': the forward doesn't make the saved 's0'");
}

TEST(Body, SaysWhatItMultiplies) {
  const std::string text = std::string(kGelu) + "|products=matmul:f32:0+64B:8+128B,attention:bf16:0+1B:0+2B";
  const Body& body = body_from(text);
  ASSERT_EQ(body.products.size(), 2U);
  EXPECT_EQ(body.products[0].kind, ProductKind::matmul);
  EXPECT_EQ(body.products[0].flops[1].at({.batch = 10}), 1288);
  EXPECT_EQ(body.products[1].dtype, Dtype::bf16);
  EXPECT_EQ(body_in(body, Dtype::f32, Dtype::f64).products[0].dtype, Dtype::f64);
  EXPECT_EQ(body_in(body, Dtype::bf16, Dtype::f16).products[1].dtype, Dtype::f16);
  const auto fails = [&](std::string_view from, std::string_view to) {
    return message_of([&] { body_from(replaced(text, from, to)); });
  };
  EXPECT_EQ(fails("attention:", "attend:"),
            "body 'gelu': 'attend:bf16:0+1B:0+2B' are no products; expected e.g. matmul:f32:0+64B:0+128B");
  EXPECT_EQ(fails(":0+2B", ""),
            "body 'gelu': 'attention:bf16:0+1B' are no products; expected e.g. matmul:f32:0+64B:0+128B");
}

TEST(Runs, GoToTextAndBack) {
  const auto runs = runs_from("0+1x64,-7.5x3,2");
  ASSERT_EQ(runs->size(), 3U);
  EXPECT_EQ((*runs)[0], (sim::Run{0, 1, 64}));
  EXPECT_EQ((*runs)[1], (sim::Run{-7.5, 0, 3}));
  EXPECT_EQ(to_string(*runs), "0+1x64,-7.5x3,2");
  for (const char* text : {"", "x3", "1x0", "1,,2", "1+x2", "nan", "1x2x"})
    EXPECT_EQ(message_of([&] { runs_from(text); }), fmt::format("'{}' are no values; expected e.g. 0+1x64,7x3", text));
}

// ---- Rules ----

TEST(Body, IsCutWithItsBatch) {
  const OpInstance op{&op_table().at("aten"),
                      {{"batch", 6}, {"last", 1}, {"units", 1}},
                      {{Dtype::f32, {2, 18}}, {Dtype::f32, {5}}},
                      Precision::f32,
                      &body_from("x|f32[2,3B];f32[5]|f32[4]|f32[B,5]||o=op(i0,i1,p0)|gi0,gi1,gp0=op(g)|0+1B,0+1B|"
                                 "0+1B,0+1B|1,1|rows")};
  const Rule rule = rule_of(op, "batch");
  EXPECT_EQ(rule.inputs, (std::vector{shard(1, 3), replicate()}));
  EXPECT_EQ(rule.output, shard(0));
  EXPECT_EQ(rule.grad_inputs, (std::vector{shard(1, 3), partial()}));
  EXPECT_EQ(rule.grad_parameters, std::vector{partial()});
  const OpInstance mine = part_of(op, rule, {"dp", 3}, 1);
  EXPECT_EQ(mine.signature().output.shape, (Shape{2, 5}));
  EXPECT_EQ(mine.inputs[0].shape, (Shape{2, 6}));
  EXPECT_EQ(mine.demand(Pass::forward).flops, 2);
}

/// A packed column of three blocks, 4 units of 2 features each, with a bias.
constexpr const char* kColumn =
    "linear|f32[B,8]|f32[3x2T,8];f32[3x2T]|f32[B,3x2T]||t0=view(p0,[6T,8]);t1=t(t0);t2=view(p1,[6T]);"
    "t3=addmm(t2,i0,t1);o=view(t3,[B,3,2T])|t0=view(g,[B,6T]);t1=view(p0,[6T,8]);gi0=mm(t0,t1);t2=t(t0);t3=mm(t2,i0);"
    "gp0=view(t3,[3,2T,8]);t4=sum.dim_IntList(t0,[0]);gp1=view(t4,[3,2T])|0+0B+0T+96BT,0+0B+6T+192BT|"
    "0+32B+216T+24BT,0+64B+432T+48BT|1,3|rows|units=4|sums=gi0";
constexpr const char* kRow =
    "linear|f32[B,2T]|f32[8,2T];f32[8]|f32[B,8]||t0=t(p0);o=addmm(p1,i0,t0,beta=L)|gi0=mm(g,p0);t0=t(g);gp0=mm(t0,i0);"
    "gp1=sum.dim_IntList(g,[0])|0+0B+0T+32BT,0+8B+0T+64BT|32+32B+64T+8BT,32+64B+128T+16BT|1,3|rows|units=4|sums=o";

TEST(Body, SizesInUnitsSayWhatIsCut) {
  const Body& column = body_from(kColumn);
  EXPECT_EQ(column.units, 4);
  EXPECT_EQ(column.parameters[0].at({.units = 4}).shape, (Shape{3, 8, 8}));
  EXPECT_EQ(column.parameters[0].in_module({.units = 4}).shape, (Shape{24, 8}));
  EXPECT_EQ(column.parameters[1].in_module({.units = 4}).shape, Shape{24});
  EXPECT_EQ(column.output.at({.batch = 5, .units = 2}).shape, (Shape{5, 3, 4}));
  EXPECT_EQ(column.output.units_dim(), 2);
  EXPECT_EQ(column.flops[1].at({.batch = 5, .units = 2}), 6 * 2 + 192 * 5 * 2);
  EXPECT_TRUE(!column.sums_output && column.sums_inputs == 1 && column.sums_parameters == 0 && !column.reads_last);
  const Body& row = body_from(kRow);
  EXPECT_TRUE(row.sums_output && row.sums_inputs == 0 && row.reads_last);
  const PartSize& beta = row.forward[1].arguments[3].size;
  EXPECT_TRUE(beta.at({.is_last = true}) == 1 && beta.at({.is_last = false}) == 0);
}

TEST(Body, UnitsThatDontFitSayWhatIsWrong) {
  const auto message = [](std::string_view from, std::string_view to) {
    return message_of([&] { body_from(replaced(kRow, from, to)); });
  };
  EXPECT_EQ(message("units=4", "units=1"), "body 'linear': 'units=1' must be a whole number, at least 2");
  EXPECT_EQ(message("sums=o", "sums=o,gp0"),
            "body 'linear': 'gp0' is no sum: o, or gradients gi0, gp0, … of what isn't cut");
  EXPECT_EQ(message("sums=o", "sums=gp1"), "body 'linear': the output must be cut, or a sum");
  EXPECT_EQ(message("|units=4|sums=o", ""), "body 'linear': sizes in T, and units= and sums=, need each other");
  EXPECT_EQ(message("|units=4", ""), "body 'linear': a body has 11 fields, or 13 where it can be cut, found 12");
  EXPECT_EQ(message("0+8B+0T+64BT", "0+8B+0T"),
            "body 'linear': '0+8B+0T' is not an amount; expected e.g. 0+64B or 0+64B+2T+8BT");
  EXPECT_EQ(message("f32[8,2T]", "f32[4T,2T]"),
            "body 'linear': 'f32[4T,2T]': only one size can be a multiple of the units");
  EXPECT_EQ(message("f32[8,2T]", "f32[8,3x2]"),
            "body 'linear': 'f32[8,3x2]': only one size can have blocks, and these are multiples of the units: 3x64T");
}

/// Megatron's: a column's input is whole and its gradient a sum, a row's output is a sum and its gradient whole.
TEST(Aten, ColumnsAndRowsArePlayedInParts) {
  const auto instance = [](const char* text, const Shape& x) {
    OpInstance op{&op_table().at("aten"), {{"batch", 6}, {"last", 1}, {"units", 4}}, {{Dtype::f32, x}}};
    op.body = &body_from(text);
    return op;
  };
  const OpInstance column = instance(kColumn, {6, 8}), row = instance(kRow, {6, 8});
  const Axis tp{"tp", 2};
  const Rule of_column = rule_of(column, "units"), of_row = rule_of(row, "units");
  EXPECT_EQ(of_column.inputs, std::vector{replicate()});
  EXPECT_EQ(of_column.parameters, (std::vector{shard(1, 2), shard(1, 2)}));
  EXPECT_EQ(of_column.output, shard(2, 2));
  EXPECT_EQ(of_column.grad_inputs, std::vector{partial()});
  EXPECT_EQ(of_row.inputs, std::vector{shard(1, 2)});
  EXPECT_EQ(of_row.parameters, (std::vector{shard(1, 2), replicate()}));
  EXPECT_EQ(of_row.output, partial());
  EXPECT_EQ(of_row.grad_output, replicate());
  EXPECT_EQ(of_row.grad_parameters, (std::vector{shard(1, 2), replicate()}));
  EXPECT_EQ(part_of(column, of_column, tp, 0), part_of(column, of_column, tp, 1));
  const OpInstance first = part_of(row, of_row, tp, 0), last = part_of(row, of_row, tp, 1);
  EXPECT_TRUE(first.integer("last") == 0 && last.integer("last") == 1 && first.integer("units") == 2);
  EXPECT_EQ(first.signature().parameters[0].spec.shape, (Shape{8, 4}));
  EXPECT_EQ(first.demand(Pass::forward).flops, row.demand(Pass::forward).flops / 2);
  // Of a part of the samples, and both in any order.
  const Axis dp{"dp", 3};
  const OpInstance both = part_of(first, rule_of(first, "batch"), dp, 0);
  EXPECT_EQ(both, part_of(part_of(row, rule_of(row, "batch"), dp, 0), of_row, tp, 0));
  EXPECT_EQ(both.inputs[0].shape, (Shape{2, 4}));
}

// ---- Files and lowering ----

Program lowered(const std::string& strategy, const std::string& model = toy_path()) {
  const Model loaded = load_model(model);
  return lower(loaded, parse_strategy(strategy, loaded));
}

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

/// Four sums for each block: after attention and after the MLP, forward and backward (Megatron's f and g), each of the
/// activations [samples, positions, width]; one of the embedding's output, one of the gradient of the head's input. The
/// loss needs the largest logit, and of each target two sums.
TEST(ImportedModel, TensorParallelBlocksSumFourTimes) {
  const std::string gpt = (testing::tests_folder() / "models" / "gpt_toy.json").string();
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
  const std::string gpt = (testing::tests_folder() / "models" / "gpt_toy.json").string();
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
  const std::string llama = (testing::tests_folder() / "models" / "llama_toy.json").string();
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
  const std::string llama = (testing::tests_folder() / "models" / "llama_toy.json").string();
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
  const std::string gpt = (testing::tests_folder() / "models" / "gpt_toy.json").string();
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

/// What is computed anew, and what ZeRO gathers together: blocks are the file's units, with all that is in them.
TEST(ImportedModel, ItsUnitsAreBlocks) {
  const std::string gpt = (testing::tests_folder() / "models" / "gpt_toy.json").string();
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

/// What a rank has of 7 words is a part of the table and of the logits, in whose place come their exponentials and the
/// gradient. All logits are nowhere.
TEST(ImportedModel, AVocabularyLiesInParts) {
  const std::string gpt = (testing::tests_folder() / "models" / "gpt_toy.json").string();
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
  const std::string llama = (testing::tests_folder() / "models" / "llama_toy.json").string();
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
                                 {"[7, 8]", "[6, 8]"},
                                 {"f32[7,8]", "f32[6,8]"},
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
          "parameters and output with all of them");
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
            "inputs[0]: an input i64 needs 'below', the first number that it can't have; f32 has none");
  EXPECT_EQ(fails([](Json& f) { f["inputs"][0]["name"] = "ids"; }),
            "inputs[0]: the first input, and it only, is named 'input'; found 'ids'");
  EXPECT_EQ(fails([](Json& f) { f["constants"]["c1"]["values"]["arange"] = {0}; }),
            "constants: c1: values: 'arange' must be two numbers");
  EXPECT_EQ(fails([](Json& f) { f["constants"]["c0"]["values"]["runs"][0][1] = 2; }),
            "constants: c0: values: 5 values for a tensor f32[4,1]");
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
            "nodes[3]: node 'fc': 'stride' isn't known of an imported op; name, op, body, half, in_parts, inputs, "
            "parameters");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["linear/1"]["output"] = "f32[B,4,15]"; }),
            "model 'token_toy', node 'fc.act': input 0 of body 'gelu' must be f32[2,4,16], found f32[2,4,15]");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["gelu/1"]["forward"][0] = "o=gelu(i0"; }),
            "bodies: gelu/1: body 'gelu': 'o=gelu(i0' is not a call of an ATen op, at 'the end'");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["gelu/1"]["forward"][0] = "o=gelu( i0)"; }),
            "bodies: gelu/1: 'o=gelu( i0)' has spaces, quotes, '|' or ';'");
  EXPECT_EQ(fails([](Json& f) { f["bodies"]["mul/1"]["backward"].push_back("gi2=sum(g)"); }),
            "model 'token_toy', node 'scale': body 'mul' makes the gradient of input 2, which needs none");
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
            "model 'M': memory_format=channels_last isn't known of imported ops");
}

// ---- Half precision ----

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
  constexpr double kParameters = 4.0 * (7 * 8 + 16 * 8 + 16 + 8 * 16 + 8 + 8);
  // Each of two ranks sends half of them for the forward, and half of the gradients; the backward reads the copies.
  EXPECT_EQ(sent("zero3,dp=2", ",precision=bf16"), kParameters);
  const double stages = sent("pipeline,pp=2,cut=proj", ""), in_half = sent("pipeline,pp=2,cut=proj", ",precision=bf16");
  // One rank sends the projection forth, the other its gradient back.
  EXPECT_EQ(stages - in_half, (4.0 - 2.0) * kRows * 8);
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

TEST(ImportedHalf, ParametersStayF32) {
  const Model model = load_model(toy_path() + ",precision=bf16");
  EXPECT_EQ(message_of([&] { parse_strategy("zero3,dp=2,param_dtype=half", model); }),
            "strategy 'zero3,dp=2,param_dtype=half': param_dtype=half: imported ops cast parameters that are f32, as "
            "autocast does; use param_dtype=f32");
  EXPECT_EQ(message_of([&] { parse_strategy("deepspeed_stage_2,dp=2", model); }),
            "strategy 'deepspeed_stage_2,dp=2': DeepSpeed makes the whole model half precision: imported ops cast "
            "parameters that are f32, as autocast does; use zero1, zero2 or zero3");
  EXPECT_NO_THROW(parse_strategy("deepspeed_stage_2,dp=2", load_model(toy_path())));
  EXPECT_NO_THROW(lowered("zero3,dp=2,reduce_dtype=half", toy_path() + ",precision=bf16"));
  EXPECT_EQ(load_model(toy_path() + ",precision=fp16").loss_scale, 65536);
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

TEST(ImportedModel, AnOpThatSeesSamplesTogetherIsntCut) {
  const TemporaryFolder folder;
  Json file = Json::parse(read_text_file(toy_path()));
  file["bodies"]["gelu/1"]["rows"] = false;
  const std::string path = folder.file("m.json", file.dump());
  EXPECT_NO_THROW(lowered("single", path));
  EXPECT_EQ(message_of([&] { lowered("ddp,dp=2", path); }),
            "model 'token_toy', node 'fc.act': op 'gelu' has no rule 'batch': what it makes of a sample depends on the "
            "others; it can be played whole only");
}

}  // namespace
}  // namespace sim
