#include "backend/rank/run.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>

namespace backend {
namespace {

/// What rank 0 has broadcast comes out on the other ranks, in that order.
class RecordedControl final : public Control {
 public:
  std::string broadcast(const std::string& text) override {
    if (is_rank_0)
      texts_.push_back(text);
    else
      EXPECT_TRUE(text.empty() || text == "null") << text;
    std::string first = texts_.front();
    if (!is_rank_0) texts_.pop_front();
    return first;
  }
  void broadcast_into(const at::Tensor& tensor) override {
    EXPECT_TRUE(tensor.is_contiguous());
    if (is_rank_0) {
      tensors_.push_back(tensor.clone());
      return;
    }
    ASSERT_FALSE(tensors_.empty());
    EXPECT_EQ(tensor.sizes(), tensors_.front().sizes());
    EXPECT_EQ(tensor.scalar_type(), tensors_.front().scalar_type());
    tensor.copy_(tensors_.front());
    tensors_.pop_front();
  }
  std::vector<std::string> gather(const std::string& /*text*/) override { return {}; }

  [[nodiscard]] bool is_empty() const { return texts_.empty() && tensors_.empty(); }

  bool is_rank_0 = true;

 private:
  std::deque<std::string> texts_;
  std::deque<at::Tensor> tensors_;
};

void expect_equal(const Reference::Tensors& a, const Reference::Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(b.at(name), tensor)) << name;
}

TEST(ShareReference, EveryRankHasRank0s) {
  Reference rank0s;
  rank0s.losses = {0.5, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()};
  rank0s.tensors["gradient conv.weight"] =
      at::rand({3, 2, 5, 5}, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
  rank0s.tensors["parameter \"odd\" of one"] = at::rand({7}, at::kDouble);
  rank0s.tensors["parameter none"] = at::empty({0, 4}, at::kDouble);
  rank0s.of_piece = {
      {{"buffer bn.running_mean", at::rand({4}, at::kDouble)}, {"buffer bn.steps", at::full({}, 3, at::kLong)}},
      {{"buffer bn.running_mean", at::rand({4}, at::kDouble)}},
      {}};
  RecordedControl control;
  expect_equal(share_reference(control, rank0s).tensors, rank0s.tensors);
  control.is_rank_0 = false;
  const Reference others = share_reference(control, std::nullopt);
  EXPECT_TRUE(control.is_empty());
  ASSERT_EQ(others.losses.size(), 3U);
  EXPECT_EQ(others.losses[0], 0.5);
  EXPECT_TRUE(std::isnan(others.losses[1]));
  EXPECT_EQ(others.losses[2], rank0s.losses[2]);
  expect_equal(others.tensors, rank0s.tensors);
  ASSERT_EQ(others.of_piece.size(), 3U);
  for (std::size_t piece = 0; piece < 3; ++piece) expect_equal(others.of_piece[piece], rank0s.of_piece[piece]);
}

}  // namespace
}  // namespace backend
