// Every rule of every op kind (sim/model/op/rule.hpp): what the coordinates of an axis play by the real kernels, put
// together, is the whole op, forward and every gradient, in float64.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "backend/op/op.hpp"
#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"
#include "tests/backend/op/parts.hpp"

namespace backend {
namespace {

using Tensors = std::vector<at::Tensor>;

sim::OpInstance op_of(const std::string& name, const sim::Attributes& attributes,
                      const std::vector<sim::Shape>& inputs) {
  const sim::OpKind& kind = sim::op_table().at(name);
  sim::OpInstance op{&kind, sim::complete_attributes(kind, attributes, "test"), {}};
  for (const sim::Shape& shape : inputs) op.inputs.push_back({sim::Dtype::f64, shape});
  if (kind.takes_class_indices) op.inputs[1].dtype = sim::Dtype::i64;
  return op;
}

/// Every kind that has rules; every size that is cut is `d`.
std::vector<sim::OpInstance> ops(std::int64_t d) {
  const auto channels = static_cast<double>(d);
  const sim::Shape image{d, d, 5, 6}, cube{d, d, d}, rows{d, d};
  return {
      op_of("conv2d", {{"out_channels", channels}, {"kernel_size", 3}, {"padding", 1}}, {image}),
      op_of("conv2d", {{"out_channels", channels}, {"kernel_size", 2}, {"stride", 2}, {"bias", 0}}, {image}),
      op_of("conv2d", {{"out_channels", 2 * channels}, {"kernel_size", 3}, {"groups", channels}}, {{d, 3 * d, 5, 6}}),
      op_of("linear", {{"out_features", channels}}, {rows}),
      op_of("linear", {{"out_features", channels}, {"bias", 0}}, {rows}),
      op_of("batch_norm", {}, {{2 * d, d, 3, 2}}),
      op_of("batch_norm", {}, {{2 * d, d}}),
      op_of("batch_norm", {{"sync", 1}}, {{2 * d, d}}),
      op_of("relu", {}, {{d, d, d, d}}),
      op_of("relu", {{"inplace", 1}}, {rows}),
      op_of("max_pool", {{"kernel_size", 2}}, {image}),
      op_of("adaptive_avg_pool", {{"output_size", 2}}, {image}),
      op_of("flatten", {}, {image}),
      op_of("add", {}, {cube, cube}),
      op_of("add", {{"inplace", 1}}, {rows, rows}),
      op_of("softmax", {}, {rows}),
      op_of("softmax", {{"dim", 2}}, {cube}),
      op_of("mse_loss", {}, {rows, rows}),
      op_of("cross_entropy", {}, {rows, {d}}),
      op_of("mean_loss", {}, {rows, rows}),
      op_of("sum_loss", {}, {rows, rows})};
}

class RuleTest : public testing::TestWithParam<std::tuple<std::int64_t, std::uint32_t>> {
 protected:
  at::Tensor random(const sim::TensorSpec& spec) {
    if (spec.dtype == sim::Dtype::i64)
      return at::empty(spec.shape, at::kLong).random_(0, std::get<0>(GetParam()), generator_);
    return at::empty(spec.shape, at::kDouble).uniform_(-1, 2, generator_);
  }
  static void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
    ASSERT_EQ(found.sizes(), expected.sizes()) << what;
    const at::Tensor want = expected.detach().to(at::kDouble);
    EXPECT_LE((found - want).abs().max().item<double>(), 1e-12 * std::max(1.0, want.norm().item<double>())) << what;
  }
  void play(const sim::OpInstance& whole, const sim::Rule& rule, const sim::Axis& axis);

  at::Generator generator_ = at::detail::createCPUGenerator(11);
};

/// A coordinate's tensors.
struct Part {
  sim::OpInstance op;
  Tensors inputs, parameters, buffers, saved, gradients;  // the latter: of the first input, of the parameters
  at::Tensor output;
};

Tensors contiguous(const Tensors& tensors) {
  Tensors copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
  return copies;
}

void run(const Part& part, sim::Pass pass, const Tensors& reads, Tensors& writes, double scale = 1) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  op_kernels().at(part.op.kind->name).run({part.op, pass, sim::kParameterGrads | 1}, {reads, writes, scale});
}

void run_forward(Part& part) {
  const sim::Signature signature = part.op.signature();
  // Kernels that work in place change the copy that they are given; the backward reads what was there after it.
  Tensors reads = part.inputs;
  reads.insert(reads.end(), part.parameters.begin(), part.parameters.end());
  reads.insert(reads.end(), part.buffers.begin(), part.buffers.end());
  Tensors writes(1 + signature.saved.size());
  writes.insert(writes.end(), part.buffers.begin(), part.buffers.end());
  run(part, sim::Pass::forward, reads, writes);
  part.output = writes[0];
  EXPECT_EQ(part.output.sizes().vec(), signature.output.shape);
  part.saved.assign(writes.begin() + 1, writes.begin() + 1 + static_cast<std::ptrdiff_t>(signature.saved.size()));
}

/// `scale`: the part of the whole loss that this one's is.
void run_backward(Part& part, const at::Tensor& grad_output, double scale) {
  const sim::Signature signature = part.op.signature();
  const bool is_loss = part.op.kind->role == sim::OpRole::loss;
  if (signature.backward_is_alias) {
    part.gradients = {grad_output.view(part.inputs[0].sizes())};
    return;
  }
  Tensors reads;
  if (!is_loss) reads.push_back(grad_output);
  for (const sim::Operand& operand : signature.backward_reads) {
    const auto index = static_cast<std::size_t>(operand.index);
    const std::map<sim::Operand::From, const Tensors*> from{{sim::Operand::From::input, &part.inputs},
                                                            {sim::Operand::From::parameter, &part.parameters},
                                                            {sim::Operand::From::saved, &part.saved}};
    reads.push_back(operand.from == sim::Operand::From::output ? part.output : from.at(operand.from)->at(index));
  }
  part.gradients.resize(1 + part.parameters.size());
  run(part, sim::Pass::backward, reads, part.gradients, is_loss && !part.op.kind->is_sum ? scale : 1);
}

/// All coordinates beside the reference: the whole op under autograd or, of a rule by part, each part under autograd.
void RuleTest::play(const sim::OpInstance& whole, const sim::Rule& rule, const sim::Axis& axis) {
  const sim::Signature signature = whole.signature();
  const OpKernel& kernel = op_kernels().at(whole.kind->name);
  const bool is_loss = whole.kind->role == sim::OpRole::loss;
  Tensors inputs, parameters, buffers;
  for (const sim::TensorSpec& input : whole.inputs) inputs.push_back(random(input));
  for (const sim::ParameterSpec& parameter : signature.parameters) parameters.push_back(random(parameter.spec));
  for (const sim::BufferSpec& buffer : signature.buffers) buffers.push_back(random(buffer.spec));
  Tensors leaves;  // inputs, parameters
  for (const Tensors* of : {&inputs, &parameters})
    for (const at::Tensor& tensor : *of)
      leaves.push_back(tensor.is_floating_point() ? tensor.clone().requires_grad_() : tensor.clone());
  const auto leaf = [&](bool is_parameter, std::size_t i) { return leaves[is_parameter ? inputs.size() + i : i]; };

  std::vector<Part> parts;
  std::vector<double> shares;
  Tensors expected_parts, expected_buffers;
  for (std::uint32_t at = 0; at < axis.size; ++at) {
    Part& part = parts.emplace_back();
    part.op = sim::part_of(whole, rule, axis, at);
    Tensors inputs_leaves, parameter_leaves;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      part.inputs.push_back(cut(inputs[i], rule.inputs[i], axis, at));
      inputs_leaves.push_back(cut(leaf(false, i), rule.inputs[i], axis, at));
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const at::Tensor mine = cut(parameters[i], rule.parameters[i], axis, at);
      if (!mine.defined()) continue;
      part.parameters.push_back(mine);
      parameter_leaves.push_back(cut(leaf(true, i), rule.parameters[i], axis, at));
    }
    for (std::size_t i = 0; i < buffers.size(); ++i) part.buffers.push_back(cut(buffers[i], rule.buffers[i], axis, at));
    for (Tensors* tensors : {&part.inputs, &part.parameters, &part.buffers}) *tensors = contiguous(*tensors);
    const sim::Signature local = part.op.signature();
    ASSERT_EQ(part.parameters.size(), local.parameters.size());
    for (std::size_t i = 0; i < part.parameters.size(); ++i)
      EXPECT_EQ(part.parameters[i].sizes().vec(), local.parameters[i].spec.shape);
    shares.push_back(static_cast<double>(part.inputs[0].numel()) / static_cast<double>(inputs[0].numel()));
    if (rule.by_part) {
      Tensors own_buffers = contiguous(part.buffers);
      expected_parts.push_back(kernel.reference(part.op, {inputs_leaves, parameter_leaves, own_buffers}));
      for (const at::Tensor& buffer : own_buffers) expected_buffers.push_back(buffer);
    }
    run_forward(part);
  }

  const auto joined = [&](const auto& of, const sim::Placement& placement) {
    Tensors all;
    for (const Part& part : parts) all.push_back(of(part));
    return put_together(all, placement, shares);
  };
  Tensors whole_buffers = contiguous(buffers);
  const at::Tensor expected = rule.by_part
                                  ? put_together(expected_parts, rule.output, shares)
                                  : kernel.reference(whole, {std::span(leaves).first(inputs.size()),
                                                             std::span(leaves).subspan(inputs.size()), whole_buffers});
  expect_near(joined([](const Part& part) { return part.output; }, rule.output), expected, "output");
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (rule.by_part)
      for (std::size_t at = 0; at < parts.size(); ++at)
        expect_near(parts[at].buffers[i], expected_buffers[at * buffers.size() + i], "buffer");
    else
      expect_near(joined([&](const Part& part) { return part.buffers[i]; }, rule.buffers[i]), whole_buffers[i],
                  "buffer");
  }

  const at::Tensor grad_output = is_loss ? at::Tensor() : random(signature.output);
  expected.backward(grad_output);
  for (std::uint32_t at = 0; at < axis.size; ++at)
    run_backward(parts[at], is_loss ? at::Tensor() : cut(grad_output, rule.grad_output, axis, at).contiguous(),
                 shares[at]);
  expect_near(joined([](const Part& part) { return part.gradients[0]; }, rule.grad_inputs[0]), leaf(false, 0).grad(),
              "gradient of the input");
  for (std::size_t i = 0; i < parameters.size(); ++i)
    expect_near(
        joined([&](const Part& part) { return part.gradients.size() > 1 + i ? part.gradients[1 + i] : at::Tensor(); },
               rule.grad_parameters[i]),
        leaf(true, i).grad(), "gradient of " + signature.parameters[i].name);
}

TEST_P(RuleTest, PartsPutTogetherAreTheWhole) {
  const auto [d, n] = GetParam();
  std::set<std::string_view> kinds;
  for (const sim::OpInstance& op : ops(d)) {
    kinds.insert(op.kind->name);
    const std::vector<sim::Rule> rules = sim::rules_of(op);
    EXPECT_FALSE(rules.empty()) << op.kind->name;
    for (const sim::Rule& rule : rules) {
      if (rule.together) continue;  // its ops are tested with the helpers
      for (const sim::Rest rest : {sim::Rest::forbidden, sim::Rest::to_last, sim::Rest::chunks}) {
        if (rest == sim::Rest::forbidden && d % n != 0) continue;
        SCOPED_TRACE(fmt::format("{} {} of {}, {} parts, rest {}", op.kind->name, rule.name, d, n, to_string(rest)));
        play(op, rule, {"x", n, rest});
      }
    }
  }
  for (const sim::OpKind& kind : sim::op_table())
    if (kind.inputs != sim::OpKind::kAsBody) {  // imported_test has them
      EXPECT_EQ(kinds.contains(kind.name), kind.rules != nullptr) << kind.name;
    }
}
INSTANTIATE_TEST_SUITE_P(Grid, RuleTest, testing::Combine(testing::Values(7, 12), testing::Values(2, 3, 4)));

TEST(Rules, AnUnknownOneIsRefused) {
  const sim::OpInstance op = op_of("linear", {{"out_features", 4}}, {{3, 5}});
  try {
    sim::rule_of(op, "rows");
    FAIL();
  } catch (const sim::ConfigError& error) {
    EXPECT_STREQ(error.what(), "op 'linear' has no rule 'rows'; known: batch, output, input");
  }
}

}  // namespace
}  // namespace backend
