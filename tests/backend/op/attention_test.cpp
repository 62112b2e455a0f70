// An accelerator's attention against the CPU's, which a body names: output, log-sum-exp, gradients, and how they lie in memory.

#include "backend/op/attention.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cctype>
#include <string>
#include <vector>

#include "sim/error.hpp"
#include "tests/backend/op/devices.hpp"

namespace backend {
namespace {

struct Case {
  std::string device;
  at::ScalarType type = at::kFloat;
  std::int64_t heads = 4, shared = 4;  // of q; of k and v
  std::int64_t length = 32, size = 16;
  bool is_causal = false, has_mask = false, positions_first = false;
  std::int64_t more_keys = 0;  // than queries
  [[nodiscard]] std::int64_t keys() const { return length + more_keys; }
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& of = info.param;
  return fmt::format("{}_{}of{}_{}x{}{}{}{}{}", c10::toString(of.type), of.heads, of.shared, of.length, of.size,
                     of.is_causal ? "_causal" : "", of.has_mask ? "_mask" : "",
                     of.positions_first ? "_positions_first" : "", of.more_keys != 0 ? "_more_keys" : "");
}

auto cases_on(const char* device) {
  std::vector<Case> cases;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    cases.push_back({device, type, 4, 4, 32, 16, true});
    cases.push_back({device, type, 4, 2, 64, 64, true});                 // queries share keys, as Llama's
    cases.push_back({device, type, 3, 3, 197, 64, false, false, true});  // torchvision's ViT
    cases.push_back({device, type, 3, 3, 197, 64});
    cases.push_back({device, type, 2, 2, 33, 6});  // no kernel takes heads of that size
    cases.push_back({device, type, 2, 2, 21, 32, false, true});
    cases.push_back({device, type, 2, 2, 24, 32, false, true, false, 8});
    cases.push_back({device, type, 2, 2, 24, 32, true, false, false, 8});
  }
  return testing::ValuesIn(cases);
}

class AttentionOf : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { at::zeros({64}, at::kDouble).exp(); }  // as open_session does

  at::Tensor random(std::initializer_list<std::int64_t> shape) {
    return at::empty(shape, at::kDouble).uniform_(-1, 1, generator_).to(GetParam().type).to(at::kDouble);
  }
  /// Heads as a view of positions, as a body makes them.
  at::Tensor heads(std::int64_t count, std::int64_t length) {
    const Case& of = GetParam();
    if (of.positions_first) return random({length, 2, count, of.size}).permute({1, 2, 0, 3});
    return random({2, length, count, of.size}).transpose(1, 2);
  }

  at::Generator generator_ = at::detail::createCPUGenerator(7);
};

TEST_P(AttentionOf, AnAcceleratorIsTheCpus) {
  const Case& of = GetParam();
  std::string why;
  const std::optional<at::Device> device = test_device(of.device, why);
  if (!device) GTEST_SKIP() << why;
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const at::Tensor q = heads(of.heads, of.length), k = heads(of.shared, of.keys()), v = heads(of.shared, of.keys()),
                   gradient = heads(of.heads, of.length);
  std::optional<at::Tensor> mask;
  if (of.has_mask) mask = random({of.length, of.keys()});
  const auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0, of.is_causal, mask);
  const auto [q_grad, k_grad, v_grad] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(gradient, q, k, v, output, sums, 0, of.is_causal, mask);

  const auto there = [&](const at::Tensor& tensor) { return tensor.to(of.type).to(*device); };
  const auto stack = [&](std::initializer_list<at::Tensor> tensors) {
    torch::jit::Stack made(tensors.begin(), tensors.end());
    made.emplace_back(0.0);
    made.emplace_back(of.is_causal);
    made.emplace_back(mask ? c10::IValue(there(*mask)) : c10::IValue());
    made.emplace_back();
    return made;
  };
  const double allowed = of.type == at::kDouble ? 1e-13 : of.type == at::kFloat ? 1e-5 : 2e-2;
  const auto expect_same = [&](const c10::IValue& found, const at::Tensor& expected, const char* what) {
    const at::Tensor here = found.toTensor().cpu().to(at::kDouble);
    ASSERT_EQ(here.sizes(), expected.sizes()) << what;
    EXPECT_LE((here - expected).norm().item<double>(), allowed * expected.norm().item<double>()) << what;
  };
  const std::string op = "_scaled_dot_product_flash_attention_for_cpu";
  torch::jit::Stack made = stack({there(q), there(k), there(v)});
  attention_of_accelerator(op)(made);
  ASSERT_EQ(made.size(), 2U);
  expect_same(made[0], output, "output");
  expect_same(made[1], sums, "log-sum-exp");
  EXPECT_EQ(made[0].toTensor().strides(), output.strides());
  EXPECT_EQ(made[1].toTensor().scalar_type(), of.type == at::kDouble ? at::kDouble : at::kFloat);

  const at::Tensor saved = made[1].toTensor().contiguous();
  torch::jit::Stack grads = stack({there(gradient), there(q), there(k), there(v), made[0].toTensor(), saved});
  attention_of_accelerator(op + "_backward")(grads);
  ASSERT_EQ(grads.size(), 3U);
  expect_same(grads[0], q_grad, "the queries' gradient");
  expect_same(grads[1], k_grad, "the keys' gradient");
  expect_same(grads[2], v_grad, "the values' gradient");
  EXPECT_EQ(grads[0].toTensor().strides(), q_grad.strides());
  EXPECT_EQ(grads[1].toTensor().strides(), k_grad.strides());
  EXPECT_EQ(grads[2].toTensor().strides(), v_grad.strides());
}

TEST(Attention, OfOtherOpsThereIsNone) { EXPECT_EQ(attention_of_accelerator("gelu"), nullptr); }

INSTANTIATE_TEST_SUITE_P(Grid, AttentionOf, cases_on("cpu"), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, AttentionOf, cases_on("cuda"), name_of);
INSTANTIATE_TEST_SUITE_P(StandinOps, AttentionOf, cases_on("privateuseone"), name_of);

}  // namespace
}  // namespace backend
