// Every optimizer row of sim's op table: some steps against torch::optim on the CPU.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "backend/op/op.hpp"
#include "sim/model/op/op.hpp"
#include "tests/backend/op/devices.hpp"

namespace backend {
namespace {

struct Case {
  std::string op;
  sim::Attributes attributes;
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.op;
    for (const auto& [name, value] : c.attributes) *out << ' ' << name << '=' << value;
  }
};

const std::vector<Case> kCases{
    {"sgd", {{"lr", 0.1}}},
    {"sgd", {{"lr", 0.1}, {"weight_decay", 0.01}}},
    {"sgd", {{"lr", 0.1}, {"momentum", 0.9}}},
    {"sgd", {{"lr", 0.1}, {"momentum", 0.5}, {"weight_decay", 0.1}}},
    {"adam", {}},
    {"adamw", {}},
    {"adamw", {{"lr", 0.02}, {"beta1", 0.8}, {"beta2", 0.9}, {"eps", 1e-3}, {"weight_decay", 0.1}}},
    {"adam", {{"lr", 0.02}, {"beta1", 0.8}, {"beta2", 0.9}, {"eps", 1e-3}, {"weight_decay", 0.1}}},
};

class OptimizerTest : public testing::TestWithParam<std::tuple<Case, std::string, sim::Shape, std::string>> {};

TEST_P(OptimizerTest, StepsLikeTorchOptim) {
  const auto& [c, dtype_name, shape, device_name] = GetParam();
  std::string why;
  const std::optional<at::Device> found = test_device(device_name, why);
  if (!found) GTEST_SKIP() << why;
  const at::Device device = *found;
  const sim::Dtype dtype = sim::dtype_from(dtype_name);
  const at::ScalarType type = dtype == sim::Dtype::f32 ? at::kFloat : at::kDouble;
  const double tolerance = dtype == sim::Dtype::f32 ? 1e-6 : 1e-14;
  const std::vector<sim::Shape> shapes{shape, {4}};  // updated together
  sim::OpInstance op{&sim::op_table().at(c.op), {}, {}};
  for (const sim::Shape& of : shapes) op.inputs.push_back({dtype, of});
  op.attributes = sim::complete_attributes(*op.kind, c.attributes, "test");
  at::Generator generator = at::detail::createCPUGenerator(3);
  const auto random = [&](const sim::Shape& of) { return at::empty(of, type).uniform_(-1, 1, generator); };

  const std::size_t count = shapes.size();
  std::vector<at::Tensor> reads, expected;
  for (const sim::Shape& of : shapes) {
    reads.push_back(random(of).to(device));
    expected.push_back(reads.back().cpu().to(at::kDouble, false, /*copy=*/true).requires_grad_());
  }
  const std::function<void()> reference_step = op_kernels().at(c.op).reference_step(op, expected);
  reads.resize(2 * count);
  for (const sim::SavedSpec& state : op.signature().saved)
    reads.push_back(
        at::zeros(state.spec.shape, state.spec.dtype == sim::Dtype::f32 ? at::kFloat : at::kDouble).to(device));
  for (int step = 0; step < 4; ++step) {
    std::vector<at::Tensor> gradients;
    for (std::size_t k = 0; k < count; ++k) {
      gradients.push_back(random(shapes[k]));
      reads[count + k] = gradients[k].to(device, false, /*copy=*/true);
    }
    {
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      std::vector<at::Tensor> writes(reads.begin(), reads.begin() + static_cast<std::ptrdiff_t>(count));
      writes.insert(writes.end(), reads.begin() + static_cast<std::ptrdiff_t>(2 * count), reads.end());
      op_kernels().at(c.op).run({op, sim::Pass::update, 0}, {reads, writes});
    }
    for (std::size_t k = 0; k < count; ++k) {
      EXPECT_TRUE(reads[count + k].cpu().equal(gradients[k])) << "the gradient has changed";
      expected[k].mutable_grad() = gradients[k].to(at::kDouble, false, /*copy=*/true);
    }
    reference_step();
    for (std::size_t k = 0; k < count; ++k) {
      const double error = (reads[k].cpu().to(at::kDouble) - expected[k].detach()).abs().max().item<double>();
      EXPECT_LE(error, tolerance) << "step " << step << ", parameter " << k;
    }
  }
}

auto all_cases_on(const char* device) {
  return testing::Combine(testing::ValuesIn(kCases), testing::Values("f64", "f32"),
                          testing::Values(sim::Shape{1}, sim::Shape{3, 5, 7}, sim::Shape{64, 33}),
                          testing::Values(device));
}
TEST_ON_DEVICES(OptimizerTest, all_cases_on);

TEST(OptimizerTable, EveryOptimizerIsInTheGrid) {
  for (const sim::OpKind& kind : sim::op_table()) {
    if (kind.role != sim::OpRole::optimizer) continue;
    EXPECT_TRUE(std::any_of(kCases.begin(), kCases.end(), [&](const Case& c) { return c.op == kind.name; }))
        << kind.name;
  }
}

}  // namespace
}  // namespace backend
