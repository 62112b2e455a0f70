// Every imported op of a model: its body's calls, forward and backward, against autograd, and cut with the batch.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <vector>

#include "backend/op/op.hpp"
#include "backend/rank/initial.hpp"
#include "sim/error.hpp"
#include "sim/model/model.hpp"
#include "sim/model/op/rule.hpp"
#include "tests/backend/op/parts.hpp"

namespace backend {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Models, and such in half precision, whose casts are copies in f64.
class ImportedOps : public testing::TestWithParam<const char*> {
 protected:
  ImportedOps() : model_(sim::load_model(fmt::format(PARAGAUGE_TESTS_DIR "/models/{},dtype=f64", GetParam()))) {}

  at::Tensor random(const sim::TensorSpec& spec) {
    if (sim::is_float(spec.dtype)) return at::empty(spec.shape, at::kDouble).uniform_(-1, 2, generator_);
    return at::empty(spec.shape, scalar_type(spec.dtype)).random_(0, 2, generator_);
  }
  /// A constant's own values (of an index table, say), any others of all else.
  at::Tensor input(std::size_t node, std::size_t k, const sim::TensorSpec& spec) {
    const int source = model_.nodes[node].inputs[k];
    if (source == sim::kModelInput && model_.input_values.classes > 0)
      return at::empty(spec.shape, at::kLong).random_(0, model_.input_values.classes, generator_);
    if (source >= 0 || model_.is_per_sample(source)) return random(spec);
    at::Tensor constant = at::empty(spec.shape, scalar_type(spec.dtype));
    set_initial(constant, {"constant", spec, 0, 0, model_.source_initial(source)}, {}, 1);
    return constant;
  }

  sim::Model model_;
  at::Generator generator_ = at::detail::createCPUGenerator(5);
};

struct Played {
  at::Tensor output;
  Tensors gradients;  // of the inputs that have one, of the parameters
};

/// Forward and backward as the executor plays them.
Played play(const sim::OpInstance& op, std::uint32_t grads, const Tensors& inputs, const Tensors& parameters,
            const at::Tensor& grad_output, const at::Tensor& first = {}) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const sim::Signature signature = op.signature();
  const OpKernel& kernel = op_kernels().at(op.kind->name);
  Tensors reads = inputs, writes(1 + signature.saved.size());
  reads.insert(reads.end(), parameters.begin(), parameters.end());
  if (op.body->reads_first) reads.push_back(first);
  kernel.run({op, sim::Pass::forward}, {.reads = reads, .writes = writes, .is_exact = true});
  Played played{writes[0], {}};
  EXPECT_TRUE(played.output.is_contiguous());
  EXPECT_EQ(played.output.sizes().vec(), signature.output.shape);
  if (grads == 0) return played;
  reads = {grad_output};
  for (const sim::Operand& operand : signature.backward_reads) {
    const auto index = static_cast<std::size_t>(operand.index);
    reads.push_back(operand.from == sim::Operand::From::input       ? inputs[index]
                    : operand.from == sim::Operand::From::parameter ? parameters[index]
                    : operand.from == sim::Operand::From::output    ? played.output
                                                                    : writes[1 + index]);
  }
  if (op.body->reads_first) reads.push_back(first);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (grads >> i & 1U) played.gradients.emplace_back();
  played.gradients.resize(played.gradients.size() + parameters.size());
  kernel.run({op, sim::Pass::backward, grads}, {.reads = reads, .writes = played.gradients, .is_exact = true});
  return played;
}

void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(found.defined()) << what;
  ASSERT_EQ(found.sizes(), expected.sizes()) << what;
  EXPECT_LE((found - expected).abs().max().item<double>(),
            1e-10 * std::max(1.0, expected.to(at::kDouble).norm().item<double>()))
      << what;
}

TEST_P(ImportedOps, GradientsAreAutograds) {
  const std::vector<sim::OpInstance> ops = model_.instances(4);
  const std::vector<std::uint32_t> all_grads = model_.grads();
  std::size_t tested = 0;
  for (std::size_t n = 0; n < ops.size(); ++n) {
    if (ops[n].body == nullptr) continue;
    SCOPED_TRACE(model_.nodes[n].name);
    const sim::Signature signature = ops[n].signature();
    const std::uint32_t grads = all_grads[n];
    Tensors inputs, parameters, leaves;
    for (std::size_t k = 0; k < ops[n].inputs.size(); ++k) {
      inputs.push_back(input(n, k, ops[n].inputs[k]));
      leaves.push_back(inputs.back().clone().requires_grad_((grads >> k & 1U) != 0));
    }
    for (const sim::ParameterSpec& parameter : signature.parameters) {
      parameters.push_back(random(parameter.spec));
      leaves.push_back(parameters.back().clone().requires_grad_());
    }
    const at::Tensor grad_output = random(signature.output),
                     expected = op_kernels().at("aten").reference(
                         ops[n], {std::span(leaves).first(inputs.size()), std::span(leaves).subspan(inputs.size())});
    const Played played = play(ops[n], grads, inputs, parameters, grad_output);
    expect_near(played.output, expected.detach(), "output");
    ++tested;
    if (grads == 0) continue;
    expected.backward(grad_output);
    std::size_t next = 0;
    for (const at::Tensor& leaf : leaves) {
      if (!leaf.requires_grad()) continue;
      expect_near(played.gradients.at(next), leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf),
                  fmt::format("gradient {}", next));
      ++next;
    }
    EXPECT_EQ(next, played.gradients.size());
  }
  EXPECT_GT(tested, 0U);
}

TEST_P(ImportedOps, PartsOfTheBatchPutTogetherAreTheWhole) {
  const std::vector<sim::OpInstance> ops = model_.instances(5);
  const sim::Axis axis{"dp", 2, sim::Rest::chunks};
  for (std::size_t n = 0; n < ops.size(); ++n) {
    if (ops[n].body == nullptr || sim::rules_of(ops[n]).empty()) continue;
    SCOPED_TRACE(model_.nodes[n].name);
    const sim::Rule rule = sim::rule_of(ops[n], "batch");
    if (rule.by_part) continue;
    Tensors inputs, parameters;
    for (std::size_t k = 0; k < ops[n].inputs.size(); ++k) inputs.push_back(input(n, k, ops[n].inputs[k]));
    for (const sim::ParameterSpec& parameter : ops[n].signature().parameters)
      parameters.push_back(random(parameter.spec));
    const at::Tensor whole = play(ops[n], 0, inputs, parameters, {}).output;
    Tensors parts;
    for (std::uint32_t at = 0; at < axis.size; ++at) {
      Tensors mine;
      for (std::size_t k = 0; k < inputs.size(); ++k)
        mine.push_back(cut(inputs[k], rule.inputs[k], axis, at).contiguous());
      parts.push_back(play(sim::part_of(ops[n], rule, axis, at), 0, mine, parameters, {}).output);
    }
    expect_near(put_together(parts, rule.output), whole, "output");
  }
}

/// Forward and every gradient, of heads, of features and of a vocabulary; and of positions.
TEST_P(ImportedOps, PartsOfTheUnitsPutTogetherAreTheWhole) {
  const std::vector<sim::OpInstance> ops = model_.instances(3);
  const std::vector<std::uint32_t> all_grads = model_.grads();
  const sim::Axis axis{"tp", 2, sim::Rest::chunks};
  std::size_t tested = 0, of_positions = 0;
  for (std::size_t n = 0; n < ops.size(); ++n) {
    if (ops[n].body == nullptr || (ops[n].body->units == 1 && ops[n].in_parts == nullptr)) continue;
    SCOPED_TRACE(model_.nodes[n].name);
    const bool has_positions = ops[n].body->has_positions;
    of_positions += has_positions ? 1 : 0;
    const sim::Rule rule = sim::rule_of(ops[n], has_positions ? "positions" : "units");
    const std::int64_t units = (ops[n].in_parts != nullptr ? ops[n].in_parts : ops[n].body)->units;
    const sim::Signature signature = ops[n].signature();
    const std::uint32_t grads = all_grads[n];
    Tensors inputs, parameters;
    for (std::size_t k = 0; k < ops[n].inputs.size(); ++k) inputs.push_back(input(n, k, ops[n].inputs[k]));
    for (const sim::ParameterSpec& parameter : signature.parameters) parameters.push_back(random(parameter.spec));
    const at::Tensor grad_output = random(signature.output);
    const Played whole = play(ops[n], grads, inputs, parameters, grad_output);
    const auto part = [&](const at::Tensor& x, const sim::Placement& placement, std::uint32_t at) {
      return cut(x, placement, axis, at).contiguous();
    };
    Tensors outputs;
    std::vector<Tensors> gradients(whole.gradients.size());
    for (std::uint32_t at = 0; at < axis.size; ++at) {
      Tensors my_inputs, my_parameters;
      for (std::size_t k = 0; k < inputs.size(); ++k) my_inputs.push_back(part(inputs[k], rule.inputs[k], at));
      for (std::size_t p = 0; p < parameters.size(); ++p)
        my_parameters.push_back(part(parameters[p], rule.parameters[p], at));
      const Played mine =
          play(sim::part_of(ops[n], rule, axis, at), grads, my_inputs, my_parameters,
               part(grad_output, rule.grad_output, at), at::full({1}, sim::part(units, 1, axis, at).begin, at::kLong));
      outputs.push_back(mine.output);
      for (std::size_t g = 0; g < gradients.size(); ++g) gradients[g].push_back(mine.gradients.at(g));
    }
    expect_near(put_together(outputs, rule.output), whole.output, "output");
    std::vector<sim::Placement> of_gradients;
    for (std::size_t k = 0; k < inputs.size(); ++k)
      if (grads >> k & 1U) of_gradients.push_back(rule.grad_inputs[k]);
    of_gradients.insert(of_gradients.end(), rule.grad_parameters.begin(), rule.grad_parameters.end());
    ASSERT_EQ(of_gradients.size(), gradients.size());
    for (std::size_t g = 0; g < gradients.size(); ++g)
      expect_near(put_together(gradients[g], of_gradients[g]), whole.gradients[g], fmt::format("gradient {}", g));
    ++tested;
  }
  const std::map<std::string, std::size_t> expected{{"gpt_toy", 14},      {"llama_toy", 22},   {"token_toy", 0},
                                                    {"quantised_toy", 0}, {"contrast_toy", 6}, {"own_toy", 0}};
  EXPECT_EQ(tested - of_positions, expected.at(model_.name));
  // Norms, and of a GPT its positions and their sum; in half precision residual sums are bodies, too.
  const std::map<std::string, std::size_t> norms{{"gpt_toy", 5 + 2},   {"llama_toy", 3},    {"token_toy", 0},
                                                 {"quantised_toy", 0}, {"contrast_toy", 0}, {"own_toy", 0}};
  const bool has_sums = model_.precision == sim::Precision::bf16 && model_.name == "gpt_toy";
  EXPECT_EQ(of_positions, norms.at(model_.name) + (has_sums ? 4 : 0));
}

// ---- Half precision ----

/// A step of a model in half precision, node by node, as the executor plays it: the loss and every parameter's gradient.
struct Step {
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

/// What each input and parameter is.
using Values = std::map<std::string, at::Tensor>;

void expect_is(const at::Tensor& found, const sim::TensorSpec& spec, const std::string& what) {
  ASSERT_TRUE(found.defined()) << what;
  EXPECT_EQ(found.scalar_type(), scalar_type(spec.dtype)) << what;
  EXPECT_EQ(found.sizes().vec(), spec.shape) << what;
  EXPECT_TRUE(found.is_contiguous()) << what;
}

Step play_step(const sim::Model& model, const Values& values, std::int64_t rows) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  const std::vector<sim::OpInstance> ops = model.instances(rows);
  const std::vector<std::uint32_t> all_grads = model.grads();
  std::vector<Tensors> inputs(ops.size()), parameters(ops.size()), writes(ops.size());
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const sim::Signature signature = ops[n].signature();
    for (const int source : model.nodes[n].inputs)
      inputs[n].push_back(source >= 0 ? writes[static_cast<std::size_t>(source)][0]
                                      : values.at(std::string(model.source_name(source))));
    for (const std::string& name : model.nodes[n].parameters) parameters[n].push_back(values.at(name));
    Tensors reads = inputs[n];
    reads.insert(reads.end(), parameters[n].begin(), parameters[n].end());
    writes[n].resize(1 + signature.saved.size());
    op_kernels().at(ops[n].kind->name).run({ops[n]}, {.reads = reads, .writes = writes[n], .is_exact = true});
    expect_is(writes[n][0], signature.output, model.nodes[n].name);
    for (std::size_t s = 0; s < signature.saved.size(); ++s)
      expect_is(writes[n][1 + s], signature.saved[s].spec, model.nodes[n].name + " " + signature.saved[s].name);
  }
  Step step{writes.back()[0], {}};
  std::vector<at::Tensor> gradients(ops.size());
  const auto add = [](at::Tensor& to, const at::Tensor& gradient) { to = to.defined() ? to + gradient : gradient; };
  for (std::size_t n = ops.size(); n-- > 0;) {
    const std::uint32_t grads = all_grads[n];
    const bool is_loss = n + 1 == ops.size();
    if (grads == 0) continue;
    Tensors reads, found;
    if (!is_loss) reads.push_back(gradients[n]);
    for (const sim::Operand& operand : ops[n].signature().backward_reads) {
      const auto index = static_cast<std::size_t>(operand.index);
      reads.push_back(operand.from == sim::Operand::From::input       ? inputs[n][index]
                      : operand.from == sim::Operand::From::parameter ? parameters[n][index]
                      : operand.from == sim::Operand::From::output    ? writes[n][0]
                                                                      : writes[n][1 + index]);
    }
    std::vector<std::size_t> of;  // inputs that get one
    for (std::size_t i = 0; i < inputs[n].size(); ++i)
      if (grads >> i & 1U) of.push_back(i);
    found.resize(of.size() + parameters[n].size());
    op_kernels()
        .at(ops[n].kind->name)
        .run({ops[n], sim::Pass::backward, grads}, {.reads = reads, .writes = found, .is_exact = true});
    for (std::size_t k = 0; k < of.size(); ++k) {
      expect_is(found[k], ops[n].inputs[of[k]], model.nodes[n].name + " gradient");
      add(gradients[static_cast<std::size_t>(model.nodes[n].inputs[of[k]])], found[k]);
    }
    for (std::size_t p = 0; p < parameters[n].size(); ++p) {
      EXPECT_EQ(found[of.size() + p].scalar_type(), at::kFloat) << model.nodes[n].parameters[p];
      add(step.gradients[model.nodes[n].parameters[p]], found[of.size() + p]);
    }
  }
  return step;
}

/// token_toy's forward, as one writes it.
at::Tensor token_toy(const Values& v) {
  at::Tensor x = at::embedding(v.at("wte.weight"), v.at("input")) * v.at("c0") * v.at("gain") +
                 at::embedding(v.at("c2"), v.at("c1")) + v.at("pos").expand({4, 8});
  const at::Tensor h = at::gelu(at::linear(x, v.at("fc.weight"), v.at("fc.bias")), "tanh");
  x = at::linear(h, v.at("proj.weight"), v.at("proj.bias")) + x;
  return at::linear(x, v.at("wte.weight"));
}

// The same kernels on the same numbers, cast where PyTorch casts them: so in every bit but for the order in which gradients
// of one tensor are added.
TEST(ImportedHalf, AStepIsPyTorchsAutocastStep) {
  at::Generator generator = at::detail::createCPUGenerator(11);
  for (const char* precision : {"bf16", "fp16"}) {
    SCOPED_TRACE(precision);
    const sim::Model model =
        sim::load_model(fmt::format(PARAGAUGE_TESTS_DIR "/models/token_toy.json,precision={}", precision));
    const at::ScalarType half = scalar_type(sim::half_of(model.precision));
    constexpr std::int64_t kRows = 6;
    Values values{{"input", at::empty({kRows, 4}, at::kLong).random_(0, 7, generator)},
                  {"gain", at::empty({kRows, 1, 8}).uniform_(-1, 1, generator)},
                  {"target", at::empty({kRows, 4}, at::kLong).random_(0, 7, generator)},
                  {"c0", at::empty({4, 1}).uniform_(0, 1, generator)},
                  {"c1", at::arange(4, at::kLong)},
                  {"c2", at::empty({4, 8}).uniform_(-0.5, 0.5, generator)}};
    for (const auto& [name, parameter] : model.parameters)
      values[name] = at::empty(parameter.spec.shape).uniform_(-0.5, 0.5, generator);
    const Step step = play_step(model, values, kRows);
    Values leaves = values;
    for (const auto& [name, parameter] : model.parameters) leaves[name] = values[name].clone().requires_grad_();
    at::autocast::set_autocast_dtype(at::kCPU, half);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const at::Tensor prediction = token_toy(leaves);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    EXPECT_EQ(prediction.scalar_type(), half);
    const at::Tensor loss = at::cross_entropy_loss(prediction.to(at::kFloat).view({-1, 7}), values["target"].view(-1));
    loss.backward();
    EXPECT_EQ(step.loss.item<float>(), loss.item<float>());
    const double epsilon = half == at::kBFloat16 ? 1.0 / 256 : 1.0 / 2048;
    ASSERT_EQ(step.gradients.size(), model.parameters.size());
    for (const auto& [name, gradient] : step.gradients) {
      const at::Tensor expected = leaves[name].grad();
      EXPECT_LE((gradient - expected).norm().item<double>(), epsilon * expected.norm().item<double>()) << name;
    }
    // Without casts the numbers are others: what is equal above is equal for a reason.
    const at::Tensor in_full = at::cross_entropy_loss(token_toy(values).view({-1, 7}), values["target"].view(-1));
    EXPECT_NE(step.loss.item<float>(), in_full.item<float>());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, ImportedOps,
                         testing::Values("token_toy.json", "gpt_toy.json", "token_toy.json,precision=bf16",
                                         "gpt_toy.json,precision=bf16", "llama_toy.json", "quantised_toy.json",
                                         "quantised_toy.json,precision=bf16", "contrast_toy.json",
                                         "contrast_toy.json,precision=bf16", "own_toy.json"),
                         [](const auto& of) {
                           std::string name(of.param);
                           std::ranges::replace_if(
                               name, [](char c) { return std::isalnum(c) == 0; }, '_');
                           return name;
                         });

TEST(Aten, SaysWhichCallItCantMake) {
  const auto message = [](const std::string& call) {
    sim::OpInstance op{
        &sim::op_table().at("aten"), {{"batch", 2}, {"last", 1}, {"units", 1}}, {{sim::Dtype::f32, {2}}}};
    op.body = &sim::body_from("x|f32[B]||f32[B]||" + call + "||0+0B,0+0B|0+0B,0+0B|1,0|rows");
    Tensors reads{at::empty({2})}, writes(1);
    try {
      op_kernels().at("aten").run({op}, {reads, writes});
    } catch (const sim::ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message("o=gelu(i0)"), "no error");
  EXPECT_EQ(message("o=gelo(i0)"),
            "body 'x': LibTorch " TORCH_VERSION " has no op aten::gelo; import the model with its PyTorch");
  EXPECT_EQ(message("o=add.Vector(i0,i0)"),
            "body 'x': LibTorch " TORCH_VERSION " has no op aten::add.Vector; import the model with its PyTorch");
  EXPECT_EQ(message("o=gelu(i1)"), "body 'x': unknown value 'i1' in aten::gelu's self");
  EXPECT_EQ(message("o=gelu()"), "body 'x': aten::gelu needs 'self'");
  EXPECT_EQ(message("o=gelu(i0,aproximate=tanh)"), "body 'x': aten::gelu has no argument 'aproximate'");
  EXPECT_EQ(message("o=gelu(i0,tanh,1)"), "body 'x': aten::gelu takes 2 arguments");
  EXPECT_EQ(message("o=view(i0,[1.5])"), "body 'x': aten::view's size takes whole numbers");
  EXPECT_EQ(message("o=sum(i0,dtype=f31)"), "body 'x': aten::sum's dtype is no int");
}

}  // namespace
}  // namespace backend
