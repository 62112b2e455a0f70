#include "backend/rank/initial.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

namespace backend {
namespace {

using Kind = sim::Initial::Kind;
constexpr std::int64_t kClasses = 10;

/// A tensor with its first value; it starts as 77s.
at::Tensor initial(at::ScalarType type, const sim::Shape& shape, const std::string& name, const sim::Initial& how,
                   std::uint64_t seed = 1) {
  at::Tensor tensor = at::full(shape, 77, type);
  set_initial(tensor, {name, {}, 0, 0, how}, {}, seed);
  return tensor;
}

/// A piece of such a tensor.
at::Tensor initial_piece(at::ScalarType type, const sim::Shape& whole, const std::vector<sim::Range>& piece,
                         const sim::Initial& how, std::uint64_t seed) {
  sim::Shape shape;
  for (const sim::Range& range : piece) shape.push_back(range.size);
  at::Tensor tensor = at::full(shape, 77, type);
  set_initial(tensor, {.name = "batch", .initial = how, .whole = whole}, piece, seed);
  return tensor;
}

TEST(Initial, UniformLiesAroundTheCenterAndFillsTheRange) {
  const at::Tensor w = initial(at::kDouble, {300, 700}, "fc.weight", {Kind::uniform, 2.0, 0.25});
  EXPECT_GE(w.min().item<double>(), 1.75);
  EXPECT_LT(w.max().item<double>(), 2.25);
  // Mean of n uniform values: standard deviation 0.25/√(3n); variance of the distribution: 0.25²/3.
  const double n = 300 * 700, spread = 0.25 / std::sqrt(3.0);
  EXPECT_NEAR(w.mean().item<double>(), 2.0, 5 * spread / std::sqrt(n));
  EXPECT_NEAR(w.std().item<double>(), spread, 0.01 * spread);
}

TEST(Initial, ValuesRepeatAfterAPrimeSoThatRowsDiffer) {
  constexpr std::int64_t kPeriod = 65521;
  const at::Tensor w = initial(at::kFloat, {4, 65536}, "fc.weight", {Kind::uniform, 0.0, 1.0}), flat = w.view(-1);
  const std::int64_t more = flat.numel() - kPeriod;
  EXPECT_TRUE(flat.narrow(0, 0, more).equal(flat.narrow(0, kPeriod, more)));
  EXPECT_TRUE(flat.narrow(0, 0, 100).equal(initial(at::kFloat, {100}, "fc.weight", {Kind::uniform, 0.0, 1.0})));
  EXPECT_LT(w[0].eq(w[1]).sum().item<std::int64_t>(), 100);  // two of 2^24 values are equal now and then
}

TEST(Initial, BoundZeroIsTheCenter) {
  EXPECT_TRUE(initial(at::kFloat, {5}, "bn.weight", {Kind::uniform, 1.0, 0.0}).equal(at::full({5}, 1.0F)));
}

TEST(Initial, Float32IsFloat64Rounded) {
  for (const sim::Initial& how : {sim::Initial{Kind::uniform, 0.5, 0.1}, sim::Initial{Kind::model_input},
                                  sim::Initial{Kind::model_input, 1.5, 1.5}}) {
    const at::Tensor exact = initial(at::kDouble, {70, 1000}, "w", how),
                     rounded = initial(at::kFloat, {70, 1000}, "w", how);
    EXPECT_TRUE(rounded.equal(exact.to(at::kFloat)));
    EXPECT_FALSE(rounded.to(at::kDouble).equal(exact));
  }
}

TEST(Initial, DependsOnNameAndSeedOnly) {
  const sim::Initial how{Kind::uniform, 0.0, 1.0};
  const at::Tensor w = initial(at::kDouble, {200}, "a", how, 1);
  EXPECT_TRUE(w.equal(initial(at::kDouble, {20, 10}, "a", how, 1).view(-1)));
  EXPECT_FALSE(w.equal(initial(at::kDouble, {200}, "b", how, 1)));
  EXPECT_FALSE(w.equal(initial(at::kDouble, {200}, "a", how, 2)));
  // Streams that differ share no values at the same place.
  EXPECT_FALSE(w.eq(initial(at::kDouble, {200}, "a", how, std::uint64_t{1} << 32)).any().item<bool>());
}

TEST(Initial, ConstantAndNone) {
  EXPECT_TRUE(initial(at::kLong, {}, "n", {Kind::constant, 3.0}).equal(at::full({}, 3, at::kLong)));
  EXPECT_TRUE(initial(at::kFloat, {2}, "v", {Kind::constant, -0.5}).equal(at::full({2}, -0.5F)));
  EXPECT_TRUE(initial(at::kFloat, {2}, "v", {Kind::none}).equal(at::full({2}, 77.0F)));
}

/// A batch of 12 rows or a weight of 12 rows and 6 columns, whole or in 2, 3 or 4 pieces along either dimension: the same
/// values.
TEST(Initial, ValuesDoNotDependOnThePartition) {
  struct Whole {
    Kind kind;
    at::ScalarType type;
    sim::Shape shape;
  };
  for (const Whole& of :
       {Whole{Kind::model_input, at::kDouble, {12, 6, 5}}, Whole{Kind::model_target, at::kLong, {12}},
        Whole{Kind::model_target, at::kFloat, {12, kClasses}}, Whole{Kind::uniform, at::kFloat, {12, 6}}}) {
    const sim::Initial how{of.kind, 0, 1, kClasses};
    const at::Tensor whole = initial(of.type, of.shape, "batch", how, 5);
    for (std::size_t dim = 0; dim < std::min<std::size_t>(2, of.shape.size()); ++dim)
      for (const std::int64_t parts : {2, 3, 4}) {
        std::vector<at::Tensor> pieces;
        const std::int64_t each = of.shape[dim] / parts;
        for (std::int64_t part = 0; part < parts; ++part) {
          std::vector<sim::Range> piece;
          for (const std::int64_t size : of.shape) piece.push_back({0, size});
          piece[dim] = {part * each, part + 1 == parts ? of.shape[dim] - part * each : each};
          pieces.push_back(initial_piece(of.type, of.shape, piece, how, 5));
        }
        EXPECT_TRUE(at::cat(pieces, static_cast<std::int64_t>(dim)).equal(whole)) << parts << " along " << dim;
      }
    EXPECT_FALSE(whole.equal(initial(of.type, of.shape, "batch", how, 6))) << "another seed";
  }
}

TEST(Initial, InputHasMeanZeroAndVarianceOne) {
  const at::Tensor x = initial(at::kDouble, {400, 500}, "input", {Kind::model_input});
  EXPECT_NEAR(x.mean().item<double>(), 0, 5 / std::sqrt(400.0 * 500));
  EXPECT_NEAR(x.std().item<double>(), 1, 0.01);
  EXPECT_FALSE(x[0].equal(x[1]));
}

TEST(Initial, InputWithABoundLiesInsideIt) {
  const at::Tensor x = initial(at::kFloat, {400, 500}, "input", {Kind::model_input, 1.5, 1.5});
  EXPECT_NEAR(x.mean().item<double>(), 1.5, 0.02);
  EXPECT_GT(x.min().item<double>(), 0);
  EXPECT_LT(x.min().item<double>(), 0.01);
  EXPECT_GT(x.max().item<double>(), 2.99);
  EXPECT_FALSE(x[0].equal(x[1]));
}

TEST(Initial, TargetsAreClassesAndOneHotIsTheSameClasses) {
  const sim::Initial how{.kind = Kind::model_target, .classes = kClasses};
  const at::Tensor classes = initial(at::kLong, {5000}, "target", how);
  EXPECT_EQ(classes.min().item<std::int64_t>(), 0);
  EXPECT_EQ(classes.max().item<std::int64_t>(), kClasses - 1);
  EXPECT_GT(classes.bincount().min().item<std::int64_t>(), 400);  // 500 each ± 21
  const at::Tensor one_hot = initial(at::kDouble, {5000, kClasses}, "target", how);
  EXPECT_TRUE(one_hot.argmax(1).equal(classes));
  EXPECT_TRUE(one_hot.sum(1).equal(at::full({5000}, 1.0, at::kDouble)));
  EXPECT_EQ(one_hot.max().item<double>(), 1);
  EXPECT_EQ(one_hot.min().item<double>(), 0);
}

}  // namespace
}  // namespace backend
