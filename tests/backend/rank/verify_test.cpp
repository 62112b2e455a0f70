#include "backend/rank/verify.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "sim/error.hpp"

namespace backend {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double distance(const at::Tensor& a, const at::Tensor& b) { return (a - b).norm().item<double>(); }

/// 24 samples, or as many as are said, in equal pieces.
std::vector<sim::Range> pieces(std::int64_t count, std::int64_t samples = 24) {
  std::vector<sim::Range> list;
  for (std::int64_t piece = 0; piece < count; ++piece) list.push_back({piece * samples / count, samples / count});
  return list;
}

class ReferenceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }  // OpenMP's threads crawl where others compute too
};

/// Without batch norm the mean of the parts' gradients is the gradient of the whole batch.
TEST_F(ReferenceTest, WithoutBatchNormThePartitionDoesNotMatter) {
  for (const char* text : {"toy_mlp,dtype=f64,global_batch=24", "convnet,dtype=f64,global_batch=24"}) {
    const sim::Model model = sim::load_model(text);
    const Reference whole = execute_reference(model, {pieces(1), 1, 3, 2});
    for (const Partition& partition :
         {Partition{pieces(2), 1, 3, 2}, Partition{pieces(1), 4, 3, 2}, Partition{pieces(3), 2, 3, 2}}) {
      const Reference parts = execute_reference(model, partition);
      ASSERT_EQ(parts.losses.size(), 3U);
      for (std::size_t step = 0; step < 3; ++step) EXPECT_NEAR(parts.losses[step], whole.losses[step], 1e-14) << text;
      ASSERT_EQ(parts.tensors.size(), whole.tensors.size());
      for (const auto& [name, tensor] : whole.tensors)
        EXPECT_LE(distance(parts.tensors.at(name), tensor), 1e-11) << text << ' ' << name;
    }
  }
}

// Batch norm: each part has the statistics of its own samples.
TEST_F(ReferenceTest, OnlyWithBatchNormThePartsAreFarFromTheWhole) {
  const sim::Model without = sim::load_model("convnet,dtype=f64,global_batch=16");
  EXPECT_FALSE(distance_from_whole_batch(without, {pieces(2, 16), 1, 1, 2}).has_value());
  const sim::Model with = sim::load_model("resnet18,image=32,dtype=f64,global_batch=16");
  EXPECT_EQ(distance_from_whole_batch(with, {pieces(1, 16), 1, 1, 2}), 0);
  const double of_two = distance_from_whole_batch(with, {pieces(2, 16), 1, 1, 2}).value();
  EXPECT_GT(of_two, 0.1);  // 1.33 of normal samples in PyTorch
  EXPECT_LT(of_two, 3);
  // Microbatches cut alike: the same gradient.
  EXPECT_NEAR(distance_from_whole_batch(with, {pieces(1, 16), 2, 1, 2}).value(), of_two, 1e-9);
}

// With sync=1 a microbatch's samples of all pieces are seen together, whichever rows these are.
TEST_F(ReferenceTest, SyncedBatchNormsSeeAMicrobatchOfAllPieces) {
  const sim::Model synced = sim::load_model(PARAGAUGE_TESTS_DIR "/models/synced_toy.json,dtype=f64,global_batch=16");
  EXPECT_FALSE(distance_from_whole_batch(synced, {pieces(2, 16), 1, 1, 2}).has_value());
  EXPECT_GT(distance_from_whole_batch(synced, {pieces(2, 16), 2, 1, 2}).value(), 0.01);
  EXPECT_GT(distance_from_whole_batch(synced, {pieces(1, 16), 2, 1, 2}).value(), 0.01);
}

/// A last bit stays a last bit, but where steps are so large that a small difference becomes a great one.
TEST_F(ReferenceTest, ALastBitGrowsWhereStepsAreTooLarge) {
  const auto moved = [](const std::string& keys) {
    return moved_by_a_last_bit(sim::load_model("toy_mlp,dtype=f64,global_batch=24" + keys), {pieces(2), 1, 12});
  };
  const double small = moved(",optimizer=sgd:lr=0.01"), large = moved(",optimizer=sgd:lr=10");
  EXPECT_GT(small, 0);
  EXPECT_LT(small, 1e-13);
  EXPECT_GT(large, 100 * small);
}

/// loss(p − lr·g) = loss(p) − lr·‖g‖² + O(lr²), and p has moved by lr·g.
TEST_F(ReferenceTest, GradientsAreTheSlopeOfTheLoss) {
  const double lr = 1e-6;
  const sim::Model model = sim::load_model("toy_mlp,dtype=f64,global_batch=24,optimizer=sgd:lr=1e-6");
  const Reference first = execute_reference(model, {pieces(2), 3, 1});
  const Reference second = execute_reference(model, {pieces(2), 3, 2});
  double square = 0;
  int parameters = 0;
  for (const auto& [name, gradient] : first.tensors) {
    if (!name.starts_with("gradient ")) continue;
    ++parameters;
    square += gradient.square().sum().item<double>();
    const std::string parameter = "parameter " + name.substr(9);
    const at::Tensor moved = first.tensors.at(parameter) - second.tensors.at(parameter);
    EXPECT_LE(distance(moved, second.tensors.at(name) * lr), 1e-15) << name;
    EXPECT_LE(distance(gradient, second.tensors.at(name)), 1e-4 * gradient.norm().item<double>())
        << name << ": the step is tiny";
  }
  EXPECT_EQ(parameters, 4);
  EXPECT_GT(square, 1e-3);
  EXPECT_NEAR((first.losses[0] - second.losses[1]) / (lr * square), 1, 1e-3);
}

TEST_F(ReferenceTest, EveryReplicaHasItsOwnRunningStatistics) {
  const sim::Model model = sim::load_model("resnet18,image=32,dtype=f64,global_batch=8,optimizer=sgd:lr=0.01");
  const std::string mean = "buffer bn1.running_mean", count = "buffer bn1.num_batches_tracked";
  const auto execute = [&](std::int64_t steps, bool broadcast) {
    return execute_reference(model, {pieces(2, 8), 2, steps, 1, broadcast}).of_piece;
  };

  const auto once = execute(1, true), apart = execute(2, false), together = execute(2, true);
  EXPECT_GT(distance(once[0].at(mean), once[1].at(mean)), 1e-4) << "other samples, other statistics";
  EXPECT_EQ(once[1].at(count).item<std::int64_t>(), 2) << "one per microbatch";
  EXPECT_EQ(together[1].at(count).item<std::int64_t>(), 4);
  EXPECT_EQ(distance(apart[0].at(mean), together[0].at(mean)), 0) << "replica 0 takes nobody's";
  // m ← 0.9·m + 0.1·batch mean, twice per step: replica 1 has kept 0.9² of the difference between the two starts.
  EXPECT_LE(distance(apart[1].at(mean) - together[1].at(mean), (once[1].at(mean) - once[0].at(mean)) * 0.81), 1e-14);
}

/// A reference by hand: one gradient, a parameter, a tensor that is rounding only, and a buffer per replica.
Reference by_hand() {
  Reference reference;
  reference.losses = {2.0, 1.0};
  reference.tensors = {{"gradient w", at::tensor({3.0, 4.0})},
                       {"gradient b", at::tensor({1e-17})},
                       {"parameter w", at::tensor({1.0, 0.0})}};
  reference.of_piece = {{{"buffer mean", at::tensor({2.0})}}, {{"buffer mean", at::tensor({4.0})}}};
  return reference;
}

using Tensors = std::vector<NamedPiece>;

TEST(Compare, ErrorsAreRelativeToTheNorm) {
  const Reference reference = by_hand();
  const std::vector<VerifiedTensor> rows = compare(reference, 1,
                                                   Tensors{{"gradient w", {}, at::tensor({3.0, 4.5})},
                                                           {"parameter w", {}, at::tensor({1.0F, 0.0F})},
                                                           {"buffer mean", {}, at::tensor({4.4})}});
  ASSERT_EQ(rows.size(), 3U);
  EXPECT_EQ(rows[0].name, "gradient w");
  EXPECT_DOUBLE_EQ(rows[0].relative_error, 0.1);  // 0.5 / ‖(3, 4)‖
  EXPECT_EQ(rows[1].relative_error, 0);
  EXPECT_DOUBLE_EQ(rows[2].relative_error, (4.4 - 4.0) / 4.0);
  EXPECT_DOUBLE_EQ(compare(reference, 0, Tensors{{"buffer mean", {}, at::tensor({4.4})}})[0].relative_error,
                   (4.4 - 2.0) / 2.0);
}

TEST(Compare, PiecesAreComparedWithPieces) {
  const Tensors second{{"gradient w", {{1, 1}}, at::tensor({4.5})}};
  const std::vector<VerifiedTensor> rows = compare(by_hand(), 0, second);
  EXPECT_DOUBLE_EQ(rows[0].relative_error, 0.1);  // of the whole tensor's norm
  EXPECT_EQ(rows[0].piece, (std::vector<std::int64_t>{1, 1}));
  EXPECT_THROW(compare(by_hand(), 0, Tensors{{"gradient w", {{1, 1}}, at::zeros(2, at::kDouble)}}), sim::InternalError);
}

TEST(Compare, SomeElementsOfAPieceAreComparedInMemoryOrder) {
  Reference reference = by_hand();
  reference.tensors["gradient w"] = at::arange(16, at::kDouble).view({2, 2, 2, 2});
  // Rows 1 to 2, channels last: 8 12 9 13 10 14 11 15.
  const NamedPiece some{"gradient w", {{1, 1}, {0, 2}, {0, 2}, {0, 2}}, at::tensor({9.0, 13.0}), {2, 2}, true};
  const std::vector<VerifiedTensor> rows = compare(reference, 0, std::vector{some});
  EXPECT_EQ(rows[0].relative_error, 0);
  EXPECT_EQ(rows[0].elements, 2);
  EXPECT_EQ(rows[0].piece, (std::vector<std::int64_t>{1, 1, 0, 2, 0, 2, 0, 2, 2, 2}));
}

TEST(Compare, RoundingIsNotRelativeToItself) {
  const auto error = [](double found) {
    return compare(by_hand(), 0, Tensors{{"gradient b", {}, at::tensor({found})}})[0].relative_error;
  };
  EXPECT_LT(error(-1e-17), 1e-14);
  EXPECT_NEAR(error(5e-6), 1e-3, 1e-12);  // 5e-6 / (1e-3 · 5)
}

TEST(Compare, NotANumberIsInfinitelyWrong) {
  for (const double bad : {std::nan(""), kInfinity})
    EXPECT_EQ(compare(by_hand(), 0, Tensors{{"gradient w", {}, at::tensor({3.0, bad})}})[0].relative_error, kInfinity);
}

TEST(Compare, AnUnknownNameOrShapeIsOurError) {
  EXPECT_THROW(compare(by_hand(), 0, Tensors{{"gradient v", {}, at::zeros(2, at::kDouble)}}), sim::InternalError);
  EXPECT_THROW(compare(by_hand(), 0, Tensors{{"gradient w", {}, at::zeros(3, at::kDouble)}}), sim::InternalError);
}

TEST(Verdict, TakesTheWorstOfAllRanksAndMissesNothing) {
  const std::vector<std::vector<VerifiedTensor>> ranks{{{"gradient w", 1e-12, {}, 2}, {"parameter w", 0, {}, 2}},
                                                       {{"gradient w", 3e-12, {}, 2}, {"buffer mean", 1e-13, {}, 1}}};
  const std::vector<VerifiedTensor> rows = verdict(by_hand(), std::vector{2.0, 1.1}, ranks);
  std::map<std::string, double> errors;
  for (const VerifiedTensor& row : rows) errors[row.name] = row.relative_error;
  ASSERT_EQ(rows.size(), 6U);
  EXPECT_EQ(rows[0].name, "loss step 0");
  EXPECT_EQ(errors["loss step 0"], 0);
  EXPECT_NEAR(errors["loss step 1"], 0.1, 1e-12);
  EXPECT_EQ(errors["gradient w"], 3e-12);
  EXPECT_EQ(errors["parameter w"], 0);
  EXPECT_EQ(errors["buffer mean"], 1e-13);
  EXPECT_EQ(errors["gradient b"], kInfinity) << "nobody has compared it";
  const auto of_pieces = [](const std::vector<std::vector<VerifiedTensor>>& found) {
    for (const VerifiedTensor& row : verdict(by_hand(), std::vector{2.0, 1.1}, found))
      if (row.name == "gradient w") return row.relative_error;
    return kInfinity;
  };
  EXPECT_EQ(of_pieces({{{"gradient w", 1e-12, {0, 1}, 1}}, {{"gradient w", 2e-12, {1, 1}, 1}}}), 2e-12);
  EXPECT_EQ(of_pieces({{{"gradient w", 1e-12, {0, 1}, 1}}, {{"gradient w", 1e-12, {0, 1}, 1}}}), kInfinity)
      << "both have the same piece";
  EXPECT_EQ(verdict(by_hand(), std::vector{2.0, std::nan("")}, ranks)[1].relative_error, kInfinity);
  EXPECT_THROW(verdict(by_hand(), std::vector{2.0}, ranks), sim::InternalError);
}

}  // namespace
}  // namespace backend
