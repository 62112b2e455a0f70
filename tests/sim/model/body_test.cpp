// Bodies of imported ops: their texts, and what is a part of them.
#include "sim/model/op/body.hpp"

#include <gtest/gtest.h>

#include "sim/model/initial.hpp"
#include "sim/model/op/rule.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::replaced;

constexpr const char* kGelu =
    "gelu|f32[B,64]||f32[B,64]||o=gelu(i0,approximate=tanh)|gi0=gelu_backward(g,i0,approximate=tanh)|0+64B,0+128B|"
    "0+512B,8+768B|1,2|rows";

// ---- Texts ----

/// Of calls on four dimensions.
DimensionOrder order_of(const std::string& calls) {
  return body_from("x|f32[B,3,4,4]||f32[B,3,4,4]||" + calls + "||0+0B,0+0B|0+0B,0+0B|1,0|rows").order;
}

TEST(Body, SaysWhatItMakesOfChannelsThatLieLast) {
  EXPECT_EQ(order_of("o=relu(i0)"), DimensionOrder::kept);
  EXPECT_EQ(order_of("t0=permute(i0,[0,2,3,1]);o=permute(t0,[0,3,1,2])"), DimensionOrder::changed);
  EXPECT_EQ(order_of("t0=transpose(i0,2,3);o=view(t0,[B,3,4,4])"), DimensionOrder::needed);
  OpInstance relu{
      &op_table().at("aten"), {{"batch", 2}, {"last", 1}, {"units", 1}}, {{Dtype::f32, {2, 3, 4, 4}, true}}};
  relu.body =
      &body_from("x|f32[B,3,4,4]||f32[B,3,4,4]|f32[B,3]|o,s0=relu(i0)|gi0=relu(s0)|0+0B,0+0B|0+0B,0+0B|1,1|rows");
  EXPECT_TRUE(relu.signature().output.channels_last);
  EXPECT_FALSE(relu.signature().saved[0].spec.channels_last) << "has no pixels";
  relu.body = &body_from("x|f32[B,3,4,4]||f32[B,3,4,4]||o=view(i0,[B,3,4,4])||0+0B,0+0B|0+0B,0+0B|1,0|rows");
  EXPECT_FALSE(relu.signature().output.channels_last);
}

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

TEST(Body, ComparesSamplesInside) {
  const Body& body = body_from(
      "x|f32[B,4]||f32[]|f32[B,B];f32[3BB]|s0=op(i0,BB,2BB,B-1,4B-1,[BB,B-1]);s1=view(s0,[BB]);o=sum(s0)||"
      "0+8B+3BB,1+0B|0+16B+4BB,0+0B|1,0|whole|products=matmul:f32:0+0B+8BB:0+0B");
  constexpr Extent kSeven{.batch = 7};
  EXPECT_EQ(body.saved[0].at(kSeven), (TensorSpec{Dtype::f32, {7, 7}}));
  EXPECT_EQ(body.saved[1].at(kSeven), (TensorSpec{Dtype::f32, {147}}));
  std::vector<std::int64_t> sizes;
  for (std::size_t a = 1; a < 5; ++a) sizes.push_back(body.forward[0].arguments[a].size.at(kSeven));
  for (const Argument& size : body.forward[0].arguments[5].items) sizes.push_back(size.size.at(kSeven));
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{49, 98, 6, 27, 49, 6}));
  EXPECT_EQ(body.flops[0].at(kSeven), 8 * 7 + 3 * 49);
  EXPECT_EQ(body.bytes[0].at(kSeven), 16 * 7 + 4 * 49);
  EXPECT_EQ(body.products[0].flops[0].at(kSeven), 8 * 49);
  EXPECT_EQ(body.saved[1].at({.batch = 2'000'000'000}).shape[0], std::numeric_limits<std::int64_t>::max());
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
  EXPECT_EQ(fails("f32[B,64]", "f32[B,B]"),
            "body 'gelu': 'f32[B,B]': only one size of what ops read and give can be a multiple of the batch");
  EXPECT_EQ(fails("f32[B,64]", "f32[BB]"),
            "body 'gelu': 'f32[BB]': only one size of what ops read and give can be a multiple of the batch");
  EXPECT_EQ(fails("f32[B,64]", "f32[B,-1]"),
            "body 'gelu': 'f32[B,-1]' is not a tensor type; sizes are positive integers or multiples of the batch (4B) "
            "or the units (4T)");
  EXPECT_EQ(fails("o=gelu(i0,approximate=tanh)", "o=gelu(i0"),
            "body 'gelu': 'o=gelu(i0' is not a call of an ATen op, at 'the end'");
  EXPECT_EQ(fails("o=gelu", "t=gelu"), "body 'gelu': the forward doesn't make the output 'o'");
  EXPECT_EQ(fails("o=gelu", "i0=gelu"), "body 'gelu': the value 'i0' is made twice");
  EXPECT_EQ(fails("approximate=tanh", "9007199254740994"),
            "body 'gelu': '9007199254740994' is too large; whole numbers up to 2^53");
  EXPECT_EQ(fails("approximate=tanh", "9223372036854775807B"),
            "body 'gelu': '9223372036854775807' is too large; whole numbers up to 2^53");
  for (const char* of_i64 : {"9223372036854775807", "-9223372036854775808"})
    EXPECT_EQ(fails("approximate=tanh", of_i64), "no error");
  EXPECT_EQ(fails("gi0=", "gi1="), "body 'gelu': the backward gives 'gi1', but there are 1 inputs");
  EXPECT_EQ(fails("0+64B,", "64,"),
            "body 'gelu': '64' is not an amount; expected e.g. 0+64B, 0+64B+8BB or 0+64B+2T+8BT");
  EXPECT_EQ(fails("||f32", "|f32[3]|f32"), "body 'gelu': the backward doesn't give the parameter's gradient 'gp0'");
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

TEST(Body, HasTheLargestNumberOfItsDtype) {
  const std::string text =
      "masked_fill|bf16[B,8];bool[B,8]||bf16[B,8]||o=masked_fill.Scalar(i0,i1,-3.3895313892515355e+38)||"
      "0+8B,0+0B|0+40B,0+0B|1,0|rows";
  EXPECT_EQ(body_in(body_from(text), Dtype::bf16, Dtype::f16).forward[0].arguments[2].number, -65504);
  EXPECT_EQ(body_in(body_from(text), Dtype::bf16, Dtype::f64).forward[0].arguments[2].number, -3.3895313892515355e+38);
}

TEST(Body, MayHaveABackwardOfItsOwn) {
  EXPECT_FALSE(body_from(kGelu).own_backward);
  for (const char* before : {"", "|products=matmul:f32:0+64B:8+128B"}) {
    const Body& body = body_from(std::string(kGelu) + before + "|own");
    EXPECT_TRUE(body.own_backward);
    EXPECT_TRUE(body_in(body, Dtype::f32, Dtype::f64).own_backward);
    EXPECT_EQ(body.products.size(), *before == 0 ? 0U : 1U);
  }
}

TEST(Runs, GoToTextAndBack) {
  const auto runs = runs_from("0+1x64,-7.5x3,2");
  ASSERT_EQ(runs->size(), 3U);
  EXPECT_EQ((*runs)[0], (sim::Run{0, 1, 64}));
  EXPECT_EQ((*runs)[1], (sim::Run{-7.5, 0, 3}));
  EXPECT_EQ(to_string(*runs), "0+1x64,-7.5x3,2");
  EXPECT_EQ(to_string(*runs_from("-infx2,inf")), "-infx2,inf");
  for (const char* text : {"", "x3", "1x0", "1,,2", "1+x2", "0+infx2", "nan", "1x2x"})
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
            "body 'linear': '0+8B+0T' is not an amount; expected e.g. 0+64B, 0+64B+8BB or 0+64B+2T+8BT");
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

}  // namespace
}  // namespace sim
