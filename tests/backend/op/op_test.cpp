// Every row of sim's op table, forward and backward, against autograd on the CPU.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "backend/machine/allocator.hpp"
#include "backend/op/op.hpp"
#include "sim/error.hpp"
#include "sim/model/op/op.hpp"
#include "tests/backend/op/devices.hpp"

namespace backend {
namespace {

struct Case {
  std::string op;
  sim::Attributes attributes;
  std::vector<sim::Shape> inputs;
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.op;
    for (const auto& [name, value] : c.attributes) *out << ' ' << name << '=' << value;
    for (const sim::Shape& shape : c.inputs) *out << ' ' << sim::to_string(sim::TensorSpec{sim::Dtype::f64, shape});
  }
};

const std::vector<Case> kCases{
    {"conv2d", {{"out_channels", 5}, {"kernel_size", 3}}, {{2, 3, 7, 9}}},
    {"conv2d", {{"out_channels", 4}, {"kernel_size", 3}, {"stride", 2}, {"padding", 1}, {"bias", 0}}, {{3, 2, 9, 8}}},
    {"conv2d", {{"out_channels", 6}, {"kernel_size", 1}, {"stride", 2}}, {{2, 4, 5, 5}}},
    {"conv2d", {{"out_channels", 6}, {"kernel_size", 3}, {"groups", 3}, {"padding", 2}}, {{1, 3, 4, 6}}},
    {"conv2d", {{"out_channels", 4}, {"kernel_size", 3}, {"dilation", 2}, {"padding", 2}}, {{2, 2, 7, 7}}},
    {"conv2d",
     {{"out_channels", 8}, {"kernel_size", 7}, {"stride", 2}, {"padding", 3}, {"bias", 0}},
     {{16, 3, 11, 11}}},
    {"linear", {{"out_features", 4}}, {{3, 5}}},
    {"linear", {{"out_features", 1}, {"bias", 0}}, {{1, 7}}},
    {"batch_norm", {}, {{4, 3, 5, 2}}},
    {"batch_norm", {{"eps", 0.1}, {"momentum", 0.7}}, {{2, 1, 1, 1}}},
    {"batch_norm", {}, {{4, 3}}},
    {"batch_norm", {}, {{4, 3, 5}}},
    {"batch_norm", {}, {{2, 3, 4, 5, 2}}},
    {"relu", {}, {{3, 5}}},
    {"relu", {{"inplace", 1}}, {{2, 3, 5, 1}}},
    {"max_pool", {{"kernel_size", 2}}, {{2, 3, 6, 7}}},
    {"max_pool", {{"kernel_size", 3}, {"stride", 2}, {"padding", 1}}, {{2, 3, 7, 8}}},
    {"adaptive_avg_pool", {{"output_size", 1}}, {{2, 3, 5, 7}}},
    {"adaptive_avg_pool", {{"output_size", 3}}, {{2, 3, 7, 5}}},
    {"adaptive_avg_pool", {{"output_size", 7}}, {{1, 2, 1, 3}}},
    {"flatten", {}, {{2, 3, 5, 7}}},
    {"add", {}, {{3, 5}, {3, 5}}},
    {"add", {{"inplace", 1}}, {{2, 3, 4, 1}, {2, 3, 4, 1}}},
    {"softmax", {}, {{3, 5}}},
    {"softmax", {{"dim", 2}}, {{2, 3, 5}}},
    {"mse_loss", {}, {{3, 5}, {3, 5}}},
    {"mse_loss", {}, {{1, 1}, {1, 1}}},
    {"cross_entropy", {}, {{4, 5}, {4}}},
    {"cross_entropy", {}, {{1, 2}, {1}}},
    {"mean_loss", {}, {{3, 5}, {3, 5}}},
    {"sum_loss", {}, {{3, 5}, {3, 5}}},
};

/// Which of the tensors a backward reads. `writes`: the forward's, output and saved.
at::Tensor operand_of(const sim::Operand& operand, const std::vector<at::Tensor>& inputs,
                      const std::vector<at::Tensor>& parameters, const std::vector<at::Tensor>& writes) {
  const auto index = static_cast<std::size_t>(operand.index);
  switch (operand.from) {
    case sim::Operand::From::input:
      return inputs.at(index);
    case sim::Operand::From::output:
      return writes.at(index);
    case sim::Operand::From::parameter:
      return parameters.at(index);
    case sim::Operand::From::saved:
      return writes.at(1 + index);
  }
  return {};
}

class OpTest : public testing::TestWithParam<std::tuple<Case, std::string, std::string>> {
 protected:
  const Case& test_case() const { return std::get<0>(GetParam()); }
  sim::Dtype dtype() const { return sim::dtype_from(std::get<1>(GetParam())); }
  double tolerance() const { return dtype() == sim::Dtype::f64 ? 1e-13 : 1e-5; }

  void SetUp() override {
    std::string why;
    const std::optional<at::Device> device = test_device(std::get<2>(GetParam()), why);
    if (!device) GTEST_SKIP() << why;
    device_ = *device;
    op_.kind = &sim::op_table().at(test_case().op);
    op_.attributes = sim::complete_attributes(*op_.kind, test_case().attributes, "test");
    for (const sim::Shape& shape : test_case().inputs) op_.inputs.push_back({dtype(), shape});
    if (op_.kind->takes_class_indices) op_.inputs[1].dtype = sim::Dtype::i64;
    signature_ = op_.signature();

    for (const sim::TensorSpec& spec : op_.inputs) inputs_.push_back(random(spec));
    for (const sim::ParameterSpec& p : signature_.parameters) parameters_.push_back(random(p.spec));
    for (const sim::BufferSpec& b : signature_.buffers) buffers_.push_back(random(b.spec));
  }

  at::Tensor random(const sim::TensorSpec& spec) {
    const at::Tensor tensor = at::empty(spec.shape, scalar_type(spec.dtype));
    // Integers are classes (or a counter).
    if (spec.dtype == sim::Dtype::i64)
      tensor.random_(0, test_case().inputs[0].back(), generator_);
    else
      tensor.uniform_(-1, 2, generator_);
    return tensor.to(device_);
  }

  /// The same values on the CPU under autograd, in float64; integers stay as they are.
  static std::vector<at::Tensor> leaves(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& tensor : tensors)
      copies.push_back(tensor.is_floating_point() ? tensor.cpu().to(at::kDouble, false, /*copy=*/true).requires_grad_()
                                                  : tensor.cpu().clone());
    return copies;
  }
  static std::vector<at::Tensor> copies(const std::vector<at::Tensor>& tensors) {
    std::vector<at::Tensor> result;
    for (const at::Tensor& tensor : tensors) result.push_back(tensor.clone());
    return result;
  }

  /// Plays the kernel as the executor does.
  void run(sim::Pass pass, std::uint32_t grads, const std::vector<at::Tensor>& reads, std::vector<at::Tensor>& writes,
           double scale = 1) const {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    op_kernels().at(test_case().op).run({op_, pass, grads}, {reads, writes, scale});
  }

  void expect_is(const at::Tensor& found, const sim::TensorSpec& spec, const std::string& what) const {
    ASSERT_TRUE(found.defined()) << what;
    EXPECT_EQ(found.scalar_type(), scalar_type(spec.dtype)) << what;
    EXPECT_EQ(found.sizes().vec(), spec.shape) << what;
    EXPECT_TRUE(found.is_contiguous()) << what;
    EXPECT_EQ(static_cast<std::int64_t>(found.storage().nbytes()), spec.bytes()) << what;
  }
  void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what) const {
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    const at::Tensor want = expected.detach().to(at::kDouble);
    const double error = (found.cpu().to(at::kDouble) - want).abs().max().item<double>();
    EXPECT_LE(error, tolerance() * std::max(1.0, want.norm().item<double>())) << what << '\n' << found << '\n' << want;
  }

  static bool equal(const at::Tensor& a, const at::Tensor& b) { return a.cpu().equal(b.cpu()); }

  at::Device device_ = at::kCPU;
  at::Generator generator_ = at::detail::createCPUGenerator(7);
  sim::OpInstance op_;
  sim::Signature signature_;
  std::vector<at::Tensor> inputs_, parameters_, buffers_;
};

TEST_P(OpTest, ForwardAndBackwardEqualAutograd) {
  std::vector<at::Tensor> expected_inputs = leaves(inputs_), expected_parameters = leaves(parameters_),
                          expected_buffers;
  for (const at::Tensor& buffer : leaves(buffers_)) expected_buffers.push_back(buffer.detach());
  const at::Tensor expected =
      op_kernels().at(test_case().op).reference(op_, {expected_inputs, expected_parameters, expected_buffers});

  // Forward.
  std::vector<at::Tensor> inputs = copies(inputs_), buffers = copies(buffers_), reads = inputs;
  reads.insert(reads.end(), parameters_.begin(), parameters_.end());
  reads.insert(reads.end(), buffers.begin(), buffers.end());
  std::vector<at::Tensor> writes(1 + signature_.saved.size());
  writes.insert(writes.end(), buffers.begin(), buffers.end());
  run(sim::Pass::forward, 0, reads, writes);
  expect_is(writes[0], signature_.output, "output");
  expect_near(writes[0], expected, "output");
  for (std::size_t i = 0; i < signature_.saved.size(); ++i)
    expect_is(writes[1 + i], signature_.saved[i].spec, signature_.saved[i].name);
  EXPECT_EQ(writes[0].is_alias_of(inputs[0]), signature_.storage != sim::OutputStorage::fresh);
  for (std::size_t i = 0; i < buffers.size(); ++i)
    expect_near(buffers[i], expected_buffers[i], signature_.buffers[i].name);
  for (std::size_t i = signature_.storage == sim::OutputStorage::in_place ? 1 : 0; i < inputs.size(); ++i)
    EXPECT_TRUE(equal(inputs[i], inputs_[i])) << "input " << i << " has changed";

  // Backward: every combination of wanted gradients, and every loss with two scales.
  const bool is_loss = op_.kind->role == sim::OpRole::loss;
  const at::Tensor grad_output = is_loss ? at::Tensor() : random(signature_.output);
  expected.backward(is_loss ? at::Tensor() : grad_output.cpu().to(at::kDouble));
  if (signature_.backward_is_alias) {
    for (const at::Tensor& input : expected_inputs) expect_near(grad_output.view(input.sizes()), input.grad(), "alias");
    return;
  }
  std::vector<at::Tensor> backward_reads;
  std::vector<std::uint32_t> needed_for;  // gradients
  if (!is_loss) {
    backward_reads.push_back(grad_output);
    needed_for.push_back(0xffffffffU);
  }
  for (const sim::Operand& operand : signature_.backward_reads) {
    needed_for.push_back(operand.grads);
    backward_reads.push_back(operand_of(operand, inputs, parameters_, writes));
  }
  const std::vector<at::Tensor> before = copies(backward_reads);
  std::vector<std::uint32_t> masks{1};
  if (!signature_.parameters.empty()) masks = {1, sim::kParameterGrads, sim::kParameterGrads | 1};
  for (const std::uint32_t grads : masks)
    for (const double scale : is_loss ? std::vector{1.0, 0.25} : std::vector{1.0}) {
      const bool input = grads & 1U, parameters = grads & sim::kParameterGrads;
      std::vector<at::Tensor> gradients((input ? 1 : 0) + (parameters ? parameters_.size() : 0));
      std::vector<at::Tensor> needed;
      for (std::size_t i = 0; i < backward_reads.size(); ++i)
        if ((needed_for[i] & grads) != 0) needed.push_back(backward_reads[i]);
      run(sim::Pass::backward, grads, needed, gradients, scale);
      std::size_t next = 0;
      if (input) {
        expect_is(gradients[next], op_.inputs[0], "gradient of the input");
        expect_near(gradients[next++], expected_inputs[0].grad() * scale, "gradient of the input");
      }
      if (parameters)
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
          expect_is(gradients[next], signature_.parameters[i].spec, "gradient of " + signature_.parameters[i].name);
          expect_near(gradients[next++], expected_parameters[i].grad() * scale,
                      "gradient of " + signature_.parameters[i].name);
        }
      for (std::size_t i = 0; i < before.size(); ++i)
        EXPECT_TRUE(equal(backward_reads[i], before[i])) << "backward has changed what it reads: operand " << i;
    }
}

auto all_cases_on(const char* device) {
  return testing::Combine(testing::ValuesIn(kCases), testing::Values("f64", "f32"), testing::Values(device));
}
TEST_ON_DEVICES(OpTest, all_cases_on);

/// Matrix ops multiply in half precision and give their gradients in f32; what comes in half precision goes on so, losses
/// and softmax but in f32. PyTorch's autocast is what they are compared with, on an accelerator's rules of what is cast.
TEST(Autocast, KernelsEqualPyTorchs) {
  const at::Generator generator = at::detail::createCPUGenerator(7);
  for (const sim::Precision precision : {sim::Precision::bf16, sim::Precision::fp16})
    for (const Case& c : kCases)
      for (const bool is_half : {false, true}) {
        SCOPED_TRACE(testing::PrintToString(c) + " " + std::string(to_string(precision)) + (is_half ? " half" : ""));
        const sim::Dtype half = precision == sim::Precision::bf16 ? sim::Dtype::bf16 : sim::Dtype::f16;
        const sim::OpKind& kind = sim::op_table().at(c.op);
        if (c.attributes.contains("inplace")) continue;
        sim::OpInstance op{&kind, sim::complete_attributes(kind, c.attributes, "test"), {}};
        if (kind.matrix) op.precision = precision;
        for (const sim::Shape& shape : c.inputs) op.inputs.push_back({is_half ? half : sim::Dtype::f32, shape});
        const bool is_loss = kind.role == sim::OpRole::loss;
        if (is_loss) op.inputs[1].dtype = kind.takes_class_indices ? sim::Dtype::i64 : sim::Dtype::f32;
        const sim::Signature signature = op.signature();
        const auto random = [&](const sim::TensorSpec& spec) {
          const at::Tensor tensor = at::empty(spec.shape, scalar_type(spec.dtype));
          return spec.dtype == sim::Dtype::i64 ? tensor.random_(0, c.inputs[0].back(), generator)
                                               : tensor.uniform_(-1, 2, generator);
        };
        std::vector<at::Tensor> inputs, parameters, buffers, expected_buffers, reads;
        for (const sim::TensorSpec& spec : op.inputs) inputs.push_back(random(spec));
        for (const sim::ParameterSpec& p : signature.parameters) parameters.push_back(random(p.spec));
        for (const sim::BufferSpec& b : signature.buffers) {
          buffers.push_back(random(b.spec));
          expected_buffers.push_back(buffers.back().clone());
        }
        const auto leaves = [](const std::vector<at::Tensor>& tensors) {
          std::vector<at::Tensor> copies;
          for (const at::Tensor& tensor : tensors)
            copies.push_back(tensor.clone().requires_grad_(tensor.is_floating_point()));
          return copies;
        };
        const std::vector<at::Tensor> expected_inputs = leaves(inputs), expected_parameters = leaves(parameters);
        at::autocast::set_autocast_dtype(at::kCPU, scalar_type(half));
        at::autocast::set_autocast_enabled(at::kCPU, true);
        at::Tensor expected =
            op_kernels().at(c.op).reference(op, {expected_inputs, expected_parameters, expected_buffers});
        at::autocast::set_autocast_enabled(at::kCPU, false);
        at::autocast::clear_cache();

        const at::AutoDispatchBelowADInplaceOrView no_autograd;
        reads = inputs;
        reads.insert(reads.end(), parameters.begin(), parameters.end());
        reads.insert(reads.end(), buffers.begin(), buffers.end());
        std::vector<at::Tensor> writes(1 + signature.saved.size());
        writes.insert(writes.end(), buffers.begin(), buffers.end());
        op_kernels().at(c.op).run({op, sim::Pass::forward, 0}, {reads, writes});
        ASSERT_EQ(writes[0].scalar_type(), scalar_type(signature.output.dtype));
        for (std::size_t i = 0; i < signature.saved.size(); ++i) {
          EXPECT_EQ(writes[1 + i].scalar_type(), scalar_type(signature.saved[i].spec.dtype));
          EXPECT_EQ(writes[1 + i].sizes().vec(), signature.saved[i].spec.shape);
        }
        const double epsilon = half == sim::Dtype::bf16 ? 1.0 / 128 : 1.0 / 1024;
        const auto expect_near = [&](const at::Tensor& found, const at::Tensor& want, const std::string& what) {
          const double error = (found.to(at::kDouble) - want.detach().to(at::kDouble)).abs().max().item<double>();
          EXPECT_LE(error, 2 * epsilon * std::max(1.0, want.detach().to(at::kDouble).norm().item<double>())) << what;
        };
        expect_near(writes[0], expected, "output");
        for (std::size_t b = 0; b < buffers.size(); ++b) expect_near(buffers[b], expected_buffers[b], "buffer");
        if (signature.backward_is_alias) continue;
        const at::Tensor grad_output = is_loss ? at::Tensor() : random(signature.output);
        std::vector<at::Tensor> backward_reads;
        if (!is_loss) backward_reads.push_back(grad_output);
        for (const sim::Operand& operand : signature.backward_reads) {
          backward_reads.push_back(operand_of(operand, inputs, parameters, writes));
        }
        std::vector<at::Tensor> gradients(1 + parameters.size());
        // A loss scale that halves, of a tensor.
        if (is_loss) backward_reads.push_back(at::full({}, 0.5, at::kFloat));
        op_kernels().at(c.op).run({op, sim::Pass::backward, sim::kParameterGrads | 1},
                                  {backward_reads, gradients, is_loss ? 0.25 : 1.0});
        expected.backward(is_loss ? at::full({}, 0.125, expected.options()) : grad_output.to(expected.scalar_type()));
        ASSERT_EQ(gradients[0].scalar_type(), scalar_type(op.inputs[0].dtype));
        expect_near(gradients[0], expected_inputs[0].grad(), "gradient of the input");
        for (std::size_t p = 0; p < parameters.size(); ++p) {
          ASSERT_EQ(gradients[1 + p].scalar_type(), at::kFloat);
          expect_near(gradients[1 + p], expected_parameters[p].grad(), "gradient of a parameter");
        }
      }
}

/// The first layer's input needs no gradient: the pass must not compute it, and so needs less memory by at least its
/// size.
TEST(OpTable, AnUnwantedInputGradientIsNotComputed) {
  install_counting_allocator();
  constexpr std::uint32_t kRank = 2000;
  const AllocationOwner owner(kRank);
  const auto peak_bytes = [&](const sim::OpInstance& op, std::uint32_t grads) {
    const sim::Signature signature = op.signature();
    const auto zeros = [](const sim::TensorSpec& spec) { return at::zeros(spec.shape, scalar_type(spec.dtype)); };
    std::vector<at::Tensor> reads{zeros(signature.output), zeros(op.inputs[0]), zeros(signature.parameters[0].spec)};
    for (const sim::SavedSpec& saved : signature.saved) reads.push_back(zeros(saved.spec));
    std::vector<at::Tensor> writes(3);
    const std::int64_t before = rank_bytes(kRank).live;
    reset_peak(kRank);
    op_kernels().at(op.kind->name).run({op, sim::Pass::backward, grads}, {reads, writes});
    return rank_bytes(kRank).peak - before;
  };
  const std::vector<Case> cases{
      {"conv2d", {{"out_channels", 8}, {"kernel_size", 3}, {"padding", 1}}, {{16, 8, 32, 32}}},
      {"linear", {{"out_features", 64}}, {{256, 512}}},
      {"batch_norm", {}, {{16, 8, 32, 32}}}};
  for (const Case& c : cases) {
    sim::OpInstance op{&sim::op_table().at(c.op), {}, {{sim::Dtype::f32, c.inputs[0]}}};
    op.attributes = sim::complete_attributes(*op.kind, c.attributes, "test");
    EXPECT_GE(peak_bytes(op, sim::kParameterGrads | 1) - peak_bytes(op, sim::kParameterGrads), op.inputs[0].bytes())
        << c.op;
  }
}

TEST(OpTable, EveryLayerAndLossIsInTheGrid) {
  for (const sim::OpKind& kind : sim::op_table()) {
    if (kind.role != sim::OpRole::layer && kind.role != sim::OpRole::loss) continue;
    if (kind.inputs == sim::OpKind::kAsBody) continue;  // imported_test has them
    EXPECT_TRUE(std::any_of(kCases.begin(), kCases.end(), [&](const Case& c) { return c.op == kind.name; }))
        << kind.name;
  }
}

TEST(OpTable, HasAKernelForEveryRowInTheSameOrder) {
  std::vector<std::string_view> kinds, kernels;
  for (const sim::OpKind& kind : sim::op_table()) kinds.push_back(kind.name);
  for (const OpKernel& kernel : op_kernels()) kernels.push_back(kernel.name);
  EXPECT_EQ(kernels, kinds);
}

TEST(OpTable, EveryRowHasTheReferenceOfItsRole) {
  for (const sim::OpKind& kind : sim::op_table()) {
    const OpKernel& kernel = op_kernels().at(kind.name);
    const bool in_graph = kind.role == sim::OpRole::layer || kind.role == sim::OpRole::loss;
    EXPECT_EQ(kernel.reference != nullptr, in_graph) << kind.name;
    EXPECT_EQ(kernel.reference_step != nullptr, kind.role == sim::OpRole::optimizer) << kind.name;
  }
}

/// Helpers have no autograd to compare with; what each must do is its equation.
using Helper = void (*)();
sim::Work work_of(const char* kind, const sim::Attributes& attributes, const at::Tensor& x) {
  return {{&sim::op_table().at(kind), attributes, {{sim::Dtype::f64, x.sizes().vec()}}}};
}
void accumulate_adds_in_place() {
  const at::Tensor total = at::tensor({1.0, 2.0, 3.0}), part = at::tensor({10.0, 20.0, 30.0});
  std::vector<at::Tensor> reads{total, part}, writes{total};
  op_kernels().at("accumulate").run({}, {reads, writes});
  EXPECT_TRUE(writes[0].is_same(total));
  EXPECT_TRUE(total.equal(at::tensor({11.0, 22.0, 33.0})));
  EXPECT_TRUE(part.equal(at::tensor({10.0, 20.0, 30.0})));
}
void scaled_copy_writes_into_what_is_there() {
  const at::Tensor source = at::tensor({1.0F, 2.0F, 3.0F, 4.0F}).view({2, 2}), bucket = at::zeros(6, at::kFloat);
  for (const double scale : {1.0, 0.5}) {
    std::vector<at::Tensor> reads{source}, writes{bucket.narrow(0, 1, 4)};
    op_kernels().at("scaled_copy").run({}, {reads, writes, scale});
    EXPECT_TRUE(writes[0].is_alias_of(bucket));
    EXPECT_TRUE(bucket.equal(at::tensor({0.0F, 1.0F, 2.0F, 3.0F, 4.0F, 0.0F}) * scale)) << bucket;
  }
  std::vector<at::Tensor> reads{bucket.narrow(0, 1, 4)}, writes(1);
  op_kernels().at("scaled_copy").run({}, {reads, writes, 4});
  EXPECT_FALSE(writes[0].is_alias_of(bucket));
  EXPECT_TRUE(writes[0].equal(source.view(-1) * 2)) << writes[0];
}
void cast_changes_the_type() {
  const at::Tensor source = at::tensor({1.0F, 2.0F, 3.0F, 258.0F}), sent = at::zeros(4, at::kBFloat16);
  std::vector<at::Tensor> reads{source}, writes{sent};
  op_kernels().at("cast").run({}, {reads, writes});
  EXPECT_TRUE(writes[0].is_same(sent));
  EXPECT_TRUE(sent.equal(source.to(at::kBFloat16)));
  std::vector<at::Tensor> back{at::zeros(4, at::kFloat)};
  op_kernels().at("cast").run({}, {writes, back, 0.5});
  EXPECT_TRUE(back[0].equal(sent.to(at::kFloat) * 0.5)) << back[0];
}
void blend_moves_towards_what_was_sent() {
  const at::Tensor a = at::tensor({4.0, 8.0}), b = at::tensor({16.0}).view({1, 1}),
                   sums = at::tensor({100.0, 200.0, 300.0});
  std::vector<at::Tensor> reads{a, b, sums.narrow(0, 0, 2), sums.narrow(0, 2, 1)}, writes{a, b};
  op_kernels().at("blend").run(work_of("blend", {{"keep", 0.5}, {"take", 0.25}}, sums), {reads, writes});
  EXPECT_TRUE(writes[0].is_same(a) && writes[1].is_same(b));
  EXPECT_TRUE(a.equal(at::tensor({27.0, 54.0}))) << a;
  EXPECT_TRUE(b.equal(at::tensor({83.0}).view({1, 1}))) << b;
}
void count_nans_refuses_them() {
  const at::Tensor x = at::ones(5, at::kFloat);
  std::vector<at::Tensor> reads{x}, writes;
  op_kernels().at("count_nans").run({}, {reads, writes});
  x[3] = std::numeric_limits<float>::quiet_NaN();
  try {
    op_kernels().at("count_nans").run({}, {reads, writes});
    ADD_FAILURE() << "a NaN passes";
  } catch (const sim::RunError& error) {
    EXPECT_STREQ(error.what(), "1 of 5 parameters are NaN");
  }
}
void unscale_divides_and_finds() {
  const at::Tensor a = at::tensor({4.0F, 8.0F}), b = at::tensor({16.0F}).view({1, 1}), scale = at::full({}, 4.0F),
                   found = at::full({}, 7.0F);
  std::vector<at::Tensor> reads{a, b, scale}, writes{a, b, found};
  op_kernels().at("unscale").run({}, {reads, writes});
  EXPECT_TRUE(a.equal(at::tensor({1.0F, 2.0F}))) << a;
  EXPECT_EQ(b.item<float>(), 4);
  EXPECT_EQ(found.item<float>(), 0);
  b.fill_(std::numeric_limits<float>::infinity());
  op_kernels().at("unscale").run({}, {reads, writes});
  EXPECT_EQ(found.item<float>(), 1);
}
void square_norm_is_of_all() {
  const at::Tensor a = at::tensor({1.0, 2.0}), b = at::tensor({4.0}).view({1, 1}), norm = at::zeros({}, at::kDouble);
  std::vector<at::Tensor> reads{a, b}, writes{norm};
  op_kernels().at("square_norm").run({}, {reads, writes, 0.5});
  EXPECT_NEAR(norm.item<double>(), 10.5, 1e-12);
}
void clip_shortens_what_is_too_long() {
  for (const double square : {100.0, 0.25}) {
    const at::Tensor a = at::tensor({1.0, 2.0}), b = at::tensor({4.0}).view({1, 1});
    std::vector<at::Tensor> reads{a, b, at::full({}, square, at::kDouble)}, writes{a, b};
    op_kernels().at("clip").run(work_of("clip", {{"max_norm", 2}}, at::zeros(3)), {reads, writes});
    EXPECT_NEAR(a[1].item<double>(), square == 100 ? 2 * 2 / (10 + 1e-6) : 2, 1e-12);
    EXPECT_NEAR(b.item<double>(), square == 100 ? 4 * 2 / (10 + 1e-6) : 4, 1e-12);
  }
}
void update_scale_is_grad_scalers() {
  const at::Tensor scale = at::full({}, 1024.0F), growth = at::full({}, 1999, at::kInt), found = at::zeros({});
  std::vector<at::Tensor> reads{scale, growth, found}, writes{scale, growth};
  op_kernels().at("update_scale").run({}, {reads, writes});
  EXPECT_EQ(scale.item<float>(), 2048);
  EXPECT_EQ(growth.item<int>(), 0);
  op_kernels().at("update_scale").run({}, {reads, writes});
  EXPECT_EQ(scale.item<float>(), 2048);
  EXPECT_EQ(growth.item<int>(), 1);
  found.fill_(1);
  op_kernels().at("update_scale").run({}, {reads, writes});
  EXPECT_EQ(scale.item<float>(), 1024);
  EXPECT_EQ(growth.item<int>(), 0);
}
void fill_writes_zeros() {
  const at::Tensor x = at::ones(5, at::kDouble), part = x.narrow(0, 3, 2);
  std::vector<at::Tensor> writes{part};
  op_kernels().at("fill").run({}, {{}, writes});
  EXPECT_TRUE(writes[0].is_same(part));
  EXPECT_TRUE(x.equal(at::tensor({1.0, 1.0, 1.0, 0.0, 0.0})));
}
void make_input_is_standard_normal() {
  const at::Tensor x = at::zeros({100, 100}, at::kFloat);
  std::vector<at::Tensor> writes{x};
  op_kernels().at("make_input").run({}, {{}, writes, 1, /*seed=*/7});
  EXPECT_TRUE(writes[0].is_same(x));
  EXPECT_NEAR(x.mean().item<double>(), 0, 0.05);  // five standard errors
  EXPECT_NEAR(x.var().item<double>(), 1, 0.08);
  const at::Tensor first = x.clone();
  op_kernels().at("make_input").run({}, {{}, writes, 1, /*seed=*/8});
  EXPECT_FALSE(x.equal(first));
  op_kernels().at("make_input").run({}, {{}, writes, 1, /*seed=*/7});
  EXPECT_TRUE(x.equal(first));
}
void make_target_makes_classes() {
  const at::Tensor indices = at::zeros(1000, at::kLong), one_hot = at::ones({1000, 3}, at::kFloat);
  for (const at::Tensor& target : {indices, one_hot}) {
    std::vector<at::Tensor> writes{target};
    op_kernels()
        .at("make_target")
        .run({{&sim::op_table().at("make_target"), {{"classes", 3}}, {}}}, {{}, writes, 1, 7});
  }
  EXPECT_TRUE(one_hot.argmax(1).equal(indices));
  EXPECT_TRUE(one_hot.sum(1).equal(at::ones(1000, at::kFloat)));
  for (int c = 0; c < 3; ++c) EXPECT_NEAR(indices.eq(c).sum().item<double>(), 1000 / 3., 75) << c;
}
void read_result_changes_nothing() {
  const at::Tensor loss = at::full({}, 0.5), prediction = at::tensor({0.1, 0.9, 0.8, 0.2}).view({2, 2}),
                   target = at::ones(2, at::kLong);
  std::vector<at::Tensor> reads{loss, prediction, target}, writes;
  op_kernels().at("read_result").run({}, {reads, writes});
  EXPECT_EQ(loss.item<double>(), 0.5);
}
/// Parts of 4 and of 3 classes that find out together what one device does, loss and gradient.
void class_ops_are_cross_entropy() {
  for (const sim::Dtype dtype : {sim::Dtype::f64, sim::Dtype::f32, sim::Dtype::bf16})
    for (const bool has_loss_scale : {false, true}) {
      const double scale = 0.25, tolerance = dtype == sim::Dtype::f64 ? 1e-12 : dtype == sim::Dtype::f32 ? 1e-6 : 1e-3;
      const at::Tensor target = at::tensor({0, 3, 4, 6, 2, 5}, at::kLong).view({3, 2});
      const at::Tensor logits = (at::rand({3, 2, 7}, at::kDouble) * 20 - 10).to(scalar_type(dtype));
      const at::Tensor leaf = logits.to(at::kDouble).requires_grad_();
      const at::Tensor expected = at::cross_entropy_loss(leaf.view({6, 7}), target.view(-1));
      const double loss_scale = has_loss_scale ? 8 : 1;
      expected.backward(at::full({}, scale * loss_scale, at::kDouble));
      struct Rank {
        at::Tensor logits, first, exponentials;
        sim::OpInstance op;
      };
      std::vector<Rank> ranks;
      const at::AutoDispatchBelowADInplaceOrView no_autograd;
      const auto run = [](const char* kind, sim::OpInstance op, std::vector<at::Tensor> reads, std::size_t results,
                          double times = 1) {
        op.kind = &sim::op_table().at(kind);
        std::vector<at::Tensor> writes(results);
        op_kernels().at(kind).run({op}, {reads, writes, times});
        return writes;
      };
      at::Tensor largest, sums;
      for (const auto& [first, size] : {std::pair{0, 4}, {4, 3}}) {
        Rank& rank = ranks.emplace_back();
        rank.logits = logits.narrow(2, first, size).contiguous();
        rank.first = at::full({1}, first, at::kLong);
        rank.op = {nullptr, {}, {{dtype, {3, 2, size}}, {sim::Dtype::i64, {3, 2}}}};
        const at::Tensor own = run("class_max", rank.op, {rank.logits}, 1)[0];
        largest = largest.defined() ? at::maximum(largest, own) : own;
      }
      EXPECT_EQ(largest.scalar_type(), dtype == sim::Dtype::f64 ? at::kDouble : at::kFloat);
      for (Rank& rank : ranks) {
        const bool is_in_place = dtype == sim::Dtype::f64;
        rank.op.attributes["inplace"] = is_in_place ? 1 : 0;
        const std::vector<at::Tensor> made = run("class_sums", rank.op, {rank.logits, largest, target, rank.first}, 2);
        sums = sums.defined() ? sums + made[1] : made[1];
        rank.exponentials = made[0];
        EXPECT_LE(made[0].max().item<double>(), 1);
        EXPECT_EQ(made[0].is_alias_of(rank.logits), is_in_place);
      }
      EXPECT_EQ(sums.sizes(), (std::vector<std::int64_t>{3, 2, 2}));
      const at::Tensor loss = run("class_loss", {}, {sums}, 1)[0];
      EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 100 * tolerance);
      std::vector<at::Tensor> gradients;
      for (Rank& rank : ranks) {
        std::vector<at::Tensor> reads{rank.exponentials, sums, target, rank.first};
        if (has_loss_scale) reads.push_back(at::full({}, loss_scale, at::kFloat));
        gradients.push_back(run("class_grad", rank.op, reads, 1, scale)[0]);
        EXPECT_EQ(gradients.back().is_alias_of(rank.exponentials), dtype != sim::Dtype::bf16);
        EXPECT_EQ(gradients.back().scalar_type(), scalar_type(dtype));
      }
      EXPECT_LE((at::cat(gradients, 2).to(at::kDouble) - leaf.grad()).abs().max().item<double>(), 10 * tolerance);
    }
}
/// Parts of 3 samples and of 1 that find out together what one device does: output, statistics, all gradients.
void norm_ops_are_batch_norm() {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  for (const at::MemoryFormat order : {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast})
    for (const sim::Dtype dtype : {sim::Dtype::f64, sim::Dtype::f32, sim::Dtype::bf16}) {
      const double tolerance = dtype == sim::Dtype::f64 ? 1e-12 : dtype == sim::Dtype::f32 ? 1e-5 : 3e-2;
      const at::ScalarType wide = dtype == sim::Dtype::f64 ? at::kDouble : at::kFloat;
      const auto random = [&](const std::vector<std::int64_t>& shape) { return at::rand(shape, at::kDouble) * 4 + 1; };
      const auto near = [&](const at::Tensor& found, const at::Tensor& expected) {
        ASSERT_EQ(found.sizes(), expected.sizes());
        EXPECT_LE((found.to(at::kDouble) - expected).abs().max().item<double>(),
                  tolerance * std::max(1.0, expected.abs().max().item<double>()));
      };
      const auto given = [&](const at::Tensor& tensor) {
        return tensor.to(scalar_type(dtype)).contiguous(order).to(at::kDouble);
      };
      const at::Tensor x = given(random({4, 3, 5, 2})), grad_output = given(random({4, 3, 5, 2})),
                       weight = random({3}).to(at::kFloat).to(at::kDouble), bias = random({3});
      const double eps = 1e-3, momentum = 0.2, n = 40;
      const at::Tensor mean = x.mean(at::IntArrayRef({0, 2, 3})), var = x.var(at::IntArrayRef({0, 2, 3}), false);
      const auto by_channel = [](const at::Tensor& numbers) { return numbers.view({1, 3, 1, 1}); };
      const at::Tensor invstd = (var + eps).rsqrt(), normal = (x - by_channel(mean)) * by_channel(invstd),
                       sum = grad_output.sum(at::IntArrayRef({0, 2, 3})),
                       sum_normal = (grad_output * normal).sum(at::IntArrayRef({0, 2, 3}));

      const auto run = [&](const char* kind, const sim::Attributes& attributes, std::vector<at::Tensor> reads,
                           std::size_t results) {
        sim::OpInstance op{&sim::op_table().at(kind), attributes, {}};
        for (int i = 0; i < op.kind->inputs; ++i) {
          const at::Tensor& read = reads[static_cast<std::size_t>(i)];
          op.inputs.push_back({read.scalar_type() == at::kBFloat16 ? sim::Dtype::bf16
                               : read.scalar_type() == at::kFloat  ? sim::Dtype::f32
                                                                   : sim::Dtype::f64,
                               read.sizes().vec()});
        }
        std::vector<at::Tensor> writes(results);
        op_kernels().at(kind).run({op}, {reads, writes});
        const sim::Signature signature = op.signature();
        EXPECT_EQ(writes[0].sizes().vec(), signature.output.shape) << kind;
        EXPECT_EQ(writes[0].scalar_type(), scalar_type(signature.output.dtype)) << kind;
        for (std::size_t k = 0; k < signature.saved.size(); ++k) {
          EXPECT_EQ(writes[1 + k].sizes().vec(), signature.saved[k].spec.shape) << kind;
          EXPECT_EQ(writes[1 + k].scalar_type(), scalar_type(signature.saved[k].spec.dtype)) << kind;
        }
        return writes;
      };
      const auto part = [&](const at::Tensor& whole, int rank) {
        return whole.narrow(0, rank == 0 ? 0 : 3, rank == 0 ? 3 : 1).to(scalar_type(dtype)).contiguous(order);
      };
      std::vector<at::Tensor> stats, outputs, sums, gradients, grad_weights, grad_biases;
      for (const int rank : {0, 1}) stats.push_back(run("norm_stats", {}, {part(x, rank)}, 1)[0]);
      EXPECT_EQ(stats[1][6].item<double>(), 10);
      std::vector<std::vector<at::Tensor>> saved;
      const at::Tensor own_weight = weight.to(wide), own_bias = bias.to(wide);
      for (const int rank : {0, 1}) {
        const at::Tensor running_mean = at::ones({3}, wide), running_var = at::ones({3}, wide),
                         batches = at::zeros({}, at::kLong);
        saved.push_back(run("norm_apply", {{"eps", eps}, {"momentum", momentum}},
                            {part(x, rank), at::stack(stats), own_weight, own_bias, running_mean, running_var, batches},
                            7));
        outputs.push_back(saved.back()[0]);
        EXPECT_TRUE(outputs.back().is_contiguous(order));
        near(running_mean, mean * momentum + (1 - momentum));
        near(running_var, var * (momentum * n / (n - 1)) + (1 - momentum));
        EXPECT_EQ(batches.item<std::int64_t>(), 1);
        const std::vector<at::Tensor> made =
            run("norm_sums", {{"parameters", rank == 0 ? 1.0 : 0.0}},
                {part(grad_output, rank), part(x, rank), saved.back()[1], saved.back()[2]}, rank == 0 ? 3 : 1);
        sums.push_back(made[0]);
        if (rank == 0) {
          near(made[1], made[0].narrow(0, 3, 3).to(at::kDouble));  // the weight's gradient, of the rank's samples
          near(made[2], made[0].narrow(0, 0, 3).to(at::kDouble));
        }
      }
      near(at::cat(outputs), normal * by_channel(weight) + by_channel(bias));
      const at::Tensor all_sums = sums[0] + sums[1];
      near(all_sums, at::cat({sum, sum_normal}));
      for (const int rank : {0, 1}) {
        const std::vector<at::Tensor>& kept = saved[static_cast<std::size_t>(rank)];
        gradients.push_back(
            run("norm_grad", {},
                {part(grad_output, rank), part(x, rank), own_weight, kept[1], kept[2], kept[3], all_sums}, 1)[0]);
        EXPECT_TRUE(gradients.back().is_contiguous(order));
      }
      near(at::cat(gradients),
           by_channel(weight * invstd) * (grad_output - by_channel(sum / n) - normal * by_channel(sum_normal / n)));
    }
}
void slice_takes_a_part() {
  const at::Tensor x = at::rand({3, 5, 2}, at::kDouble), y = at::zeros({3, 2, 2}, at::kDouble);
  std::vector<at::Tensor> reads{x}, writes{y};
  op_kernels().at("slice").run(work_of("slice", {{"dim", 1}, {"begin", 3}, {"size", 2}}, x), {reads, writes});
  EXPECT_TRUE(y.equal(x.narrow(1, 3, 2)));
}
/// Into blocks that lie one after the other, the last one larger, and back.
void pack_and_unpack_are_inverse() {
  const at::Tensor x = at::rand({3, 5, 2}, at::kDouble), flat = at::zeros(30, at::kDouble),
                   again = at::zeros({3, 5, 2}, at::kDouble);
  const sim::Attributes in_blocks{{"dim", 1}, {"parts", 2}, {"block", 2}};
  std::vector<at::Tensor> whole{x},
      blocks{flat.narrow(0, 0, 12).view({3, 2, 2}), flat.narrow(0, 12, 18).view({3, 3, 2})}, result{again};
  op_kernels().at("pack").run(work_of("pack", in_blocks, x), {whole, blocks});
  EXPECT_TRUE(flat.equal(at::cat({x.narrow(1, 0, 2).reshape(-1), x.narrow(1, 2, 3).reshape(-1)})));
  op_kernels().at("unpack").run(work_of("unpack", in_blocks, x), {blocks, result});
  EXPECT_TRUE(again.equal(x));
}
void cat_puts_one_after_the_other() {
  const at::Tensor a = at::rand({2, 3}, at::kDouble), b = at::rand({}, at::kDouble), all = at::zeros(7, at::kDouble);
  std::vector<at::Tensor> reads{a, b}, writes{all};
  op_kernels().at("cat").run(work_of("cat", {}, all), {reads, writes});
  EXPECT_TRUE(all.equal(at::cat({a.view(-1), b.view(-1)})));
}
/// Seven rows and one on three ranks: 3, 3 and 1, and 1, 0 and 0.
void chunk_in_and_split_out_are_inverse() {
  const at::Tensor a = at::arange(14, at::kDouble).view({7, 2}), b = at::full({1}, 20, at::kDouble),
                   table = at::full(3 * 7, -1, at::kDouble), all_a = at::full(18, -1, at::kDouble),
                   all_b = at::full(3, -1, at::kDouble);
  std::vector<at::Tensor> gradients{a, b}, whole{table}, parameters{all_a, all_b};
  op_kernels().at("chunk_in").run(work_of("chunk_in", {{"parts", 3}}, table), {gradients, whole});
  EXPECT_TRUE(table.equal(
      at::tensor({0., 1., 2., 3., 4., 5., 20., 6., 7., 8., 9., 10., 11., 0., 12., 13., 0., 0., 0., 0., 0.})))
      << table;
  op_kernels().at("split_out").run(work_of("split_out", {{"parts", 3}}, table), {whole, parameters});
  EXPECT_TRUE(all_a.narrow(0, 0, 14).equal(a.view(-1))) << all_a;
  EXPECT_TRUE(all_b.equal(at::tensor({20., 0., 0.}))) << all_b;
}
const std::map<std::string_view, Helper> kHelpers{{"accumulate", accumulate_adds_in_place},
                                                  {"scaled_copy", scaled_copy_writes_into_what_is_there},
                                                  {"cast", cast_changes_the_type},
                                                  {"blend", blend_moves_towards_what_was_sent},
                                                  {"count_nans", count_nans_refuses_them},
                                                  {"unscale", unscale_divides_and_finds},
                                                  {"square_norm", square_norm_is_of_all},
                                                  {"clip", clip_shortens_what_is_too_long},
                                                  {"update_scale", update_scale_is_grad_scalers},
                                                  {"fill", fill_writes_zeros},
                                                  {"slice", slice_takes_a_part},
                                                  {"pack", pack_and_unpack_are_inverse},
                                                  {"unpack", pack_and_unpack_are_inverse},
                                                  {"cat", cat_puts_one_after_the_other},
                                                  {"split_out", chunk_in_and_split_out_are_inverse},
                                                  {"chunk_in", chunk_in_and_split_out_are_inverse},
                                                  {"make_input", make_input_is_standard_normal},
                                                  {"make_target", make_target_makes_classes},
                                                  {"read_result", read_result_changes_nothing},
                                                  {"class_max", class_ops_are_cross_entropy},
                                                  {"class_sums", class_ops_are_cross_entropy},
                                                  {"class_loss", class_ops_are_cross_entropy},
                                                  {"class_grad", class_ops_are_cross_entropy},
                                                  {"norm_stats", norm_ops_are_batch_norm},
                                                  {"norm_apply", norm_ops_are_batch_norm},
                                                  {"norm_sums", norm_ops_are_batch_norm},
                                                  {"norm_grad", norm_ops_are_batch_norm}};

TEST(OpTable, EveryHelperDoesWhatItsEquationSays) {
  for (const sim::OpKind& kind : sim::op_table()) {
    if (kind.role != sim::OpRole::helper) continue;
    const auto found = kHelpers.find(kind.name);
    ASSERT_NE(found, kHelpers.end()) << kind.name;
    found->second();
  }
}

/// LibTorch's own choice, in sim's words. The padding is kernel_size - 1.
std::string_view conv2d_kernel_of_libtorch(const sim::OpInstance& conv) {
  const auto both = [&](std::string_view attribute) { return std::vector<c10::SymInt>(2, conv.integer(attribute)); };
  const at::ScalarType type = scalar_type(conv.inputs[0].dtype);
  const at::native::ConvBackend chosen = at::native::select_conv_backend(
      at::zeros(conv.inputs[0].shape, type), at::zeros(conv.signature().parameters[0].spec.shape, type), std::nullopt,
      both("stride"), both("padding"), both("dilation"), /*transposed=*/false,
      /*output_padding=*/std::vector<c10::SymInt>(2, 0), conv.integer("groups"), {});
  if (chosen == at::native::ConvBackend::Mkldnn) return "oneDNN";
  return conv.integer("kernel_size") > 1 || conv.integer("stride") > 1 ? "im2col" : "matrix product";
}

/// `fitted` has a fit for each of LibTorch's kernels; LibTorch itself says which one a shape gets.
TEST(CpuKernels, Conv2dIsLibTorchsChoice) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const sim::OpKind& kind = sim::op_table().at("conv2d");
  std::vector<sim::Attributes> all_attributes;
  for (const double kernel : {1, 3, 5})
    for (const double stride : {1, 2})
      for (const double dilation : {1, 2})
        for (const double groups : {1, 4})
          all_attributes.push_back({{"out_channels", 16},
                                    {"kernel_size", kernel},
                                    {"stride", stride},
                                    {"padding", kernel - 1},
                                    {"dilation", dilation},
                                    {"groups", groups}});
  std::vector<sim::TensorSpec> inputs;
  for (const sim::Dtype dtype : {sim::Dtype::f32, sim::Dtype::f64})
    for (const std::int64_t batch : {1, 2, 15, 16})
      for (const std::int64_t size : {8, 40}) inputs.push_back({dtype, {batch, 16, size, size}});
  std::map<std::string_view, int> seen;
  for (const sim::Attributes& attributes : all_attributes)
    for (const sim::TensorSpec& input : inputs) {
      const sim::OpInstance conv{&kind, sim::complete_attributes(kind, attributes, "test"), {input}};
      const std::string_view expected = conv2d_kernel_of_libtorch(conv);
      for (const sim::Pass pass : {sim::Pass::forward, sim::Pass::backward}) {
        const std::string_view kernel = kind.cpu_kernel(conv, pass).name;
        EXPECT_EQ(kernel.substr(0, kernel.find(',')), expected) << sim::work_key({conv, pass, 1});
      }
      ++seen[expected];
    }
  at::set_num_threads(threads);
  EXPECT_GT(seen["oneDNN"], 50);
  EXPECT_GT(seen["im2col"], 50);
  EXPECT_GT(seen["matrix product"], 10);
}

/// MKL takes another path for few pixels of output, and a gemv for one.
TEST(CpuKernels, Conv2dIsClassedByItsPixels) {
  const sim::OpKind& kind = sim::op_table().at("conv2d");
  for (const double stride : {1, 2})
    for (const auto& [width, pixels] :
         {std::pair{1, ", one pixel"}, {2, ", few pixels"}, {11, ", few pixels"}, {12, ""}}) {
      const sim::Attributes attributes{{"out_channels", 16}, {"kernel_size", 1}, {"stride", stride}};
      const sim::TensorSpec input{sim::Dtype::f64, {2, 16, 1, static_cast<std::int64_t>(stride) * width}};
      const sim::OpInstance conv{&kind, sim::complete_attributes(kind, attributes, "test"), {input}};
      EXPECT_EQ(kind.cpu_kernel(conv, sim::Pass::forward).name,
                (stride == 1 ? "matrix product" : "im2col") + std::string(pixels));
    }
}

}  // namespace
}  // namespace backend
