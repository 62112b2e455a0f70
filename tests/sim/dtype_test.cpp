#include "sim/dtype.hpp"

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

TEST(Dtype, NamesAndSizes) {
  const std::vector<std::tuple<Dtype, std::string_view, std::int64_t>> rows{{Dtype::f32, "f32", 4},
                                                                            {Dtype::f64, "f64", 8},
                                                                            {Dtype::bf16, "bf16", 2},
                                                                            {Dtype::f16, "f16", 2},
                                                                            {Dtype::i64, "i64", 8}};
  for (const auto& [dtype, name, size] : rows) {
    EXPECT_EQ(to_string(dtype), name);
    EXPECT_EQ(dtype_from(name), dtype);
    EXPECT_EQ(size_of(dtype), size) << name;
  }
  EXPECT_EQ(message_of([] { dtype_from("F32"); }), "unknown dtype 'F32'; known: f32, f64, bf16, f16, i64, i32, bool");
  EXPECT_EQ(message_of([] { dtype_from(""); }), "unknown dtype ''; known: f32, f64, bf16, f16, i64, i32, bool");
}

TEST(TensorSpec, CountsElementsAndBytes) {
  const TensorSpec weight{Dtype::f32, {64, 3, 7, 7}};
  EXPECT_EQ(weight.elements(), 64 * 3 * 7 * 7);
  EXPECT_EQ(weight.bytes(), 37632);
  EXPECT_EQ(to_string(weight), "f32[64,3,7,7]");
  EXPECT_EQ(TensorSpec({Dtype::i64, {}}).elements(), 1);  // a scalar
  EXPECT_EQ(TensorSpec({Dtype::i64, {}}).bytes(), 8);
  EXPECT_EQ(TensorSpec({Dtype::bf16, {3, 5}}).bytes(), 30);
}

TEST(TensorSpec, TextRoundTrip) {
  for (const char* text : {"f32[]", "f64[1]", "bf16[2,3]", "f16[4,3,2,1]", "f32[4,3,2,1]nhwc", "i64[1099511627776]",
                           "f32[1048576,1048576]"})
    EXPECT_EQ(to_string(tensor_spec_from(text)), text);
  for (const TensorSpec& spec : {TensorSpec{Dtype::f32, {}}, TensorSpec{Dtype::i64, {7, 1, 9}}})
    EXPECT_EQ(tensor_spec_from(to_string(spec)), spec);
}

TEST(TensorSpec, SaysWhatIsWrongWithAText) {
  const auto message = [](std::string_view text) { return message_of([&] { tensor_spec_from(text); }); };
  for (const char* text : {"", "f32", "f32[", "f32]", "[f32", "f32[1] "})
    EXPECT_EQ(message(text), fmt::format("'{}' is not a tensor type; expected e.g. f32[16,3,32,32]", text));
  EXPECT_EQ(message("f99[1]"), "unknown dtype 'f99'; known: f32, f64, bf16, f16, i64, i32, bool");
  EXPECT_EQ(message("[1]"), "unknown dtype ''; known: f32, f64, bf16, f16, i64, i32, bool");
  for (const char* text :
       {"f32[0]", "f32[-1]", "f32[a]", "f32[,]", "f32[1.5]", "f32[ 1]", "f32[1,,2]", "f32[1]]", "f32[1099511627777]",
        "f32[1048576,1048577]", "f32[99999999999999999999]", "f32[3,1099511627776,1099511627776]"})
    EXPECT_EQ(message(text),
              fmt::format("'{}' is not a tensor type; sizes are positive integers, at most 2^40 elements", text));
  EXPECT_EQ(message("f32[4,3,2]nhwc"), "'f32[4,3,2]nhwc' is not a tensor type; only four dimensions can be nhwc");
  EXPECT_EQ(message("f32[1,]"), "'f32[1,]' is not a tensor type; it ends in a comma");
}

}  // namespace
}  // namespace sim
