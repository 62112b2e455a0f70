#include "sim/model/op/op.hpp"

#include <cmath>
#include <functional>
#include <set>

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

TensorSpec f32(Shape shape) { return {Dtype::f32, std::move(shape)}; }

OpInstance op(const std::string& kind, const Attributes& attributes, std::vector<TensorSpec> inputs) {
  const OpKind& row = op_table().at(kind);
  return {&row, complete_attributes(row, attributes, "test"), std::move(inputs)};
}

/// An imported op: x as two matrices, times a parameter.
OpInstance imported() {
  OpInstance made = op("aten", {{"batch", 4}}, {f32({4, 3}), f32({3})});
  made.body = &body_from(
      "x|f32[B,3];f32[3]|f32[2,3]|f32[B,2]|f32[B,3]|s0=mul.Tensor(i0,i1);t0=t(p0);o=mm(s0,t0)|t0=mm(g,p0);"
      "gi0=mul.Tensor(t0,i1);t1=t(g);gp0=mm(t1,s0)|0+15B,0+27B|36+32B,60+60B|2,3|rows");
  return made;
}

/// Several shapes of every kind. A kind in the table that isn't here fails EveryKindIsTested.
std::vector<OpInstance> instances() {
  const TensorSpec image = f32({4, 6, 9, 7}), rows = f32({8, 12}), batch1 = f32({1, 3, 5, 5});
  return {
      op("conv2d", {{"out_channels", 8}, {"kernel_size", 3}}, {image}),
      op("conv2d", {{"out_channels", 8}, {"kernel_size", 3}, {"stride", 2}, {"padding", 1}, {"bias", 0}}, {image}),
      op("conv2d", {{"out_channels", 9}, {"kernel_size", 2}, {"groups", 3}, {"dilation", 2}, {"padding", 2}}, {image}),
      op("conv2d", {{"out_channels", 1}, {"kernel_size", 1}}, {{Dtype::f64, {2, 1, 1, 1}}}),
      op("conv2d", {{"out_channels", 2}, {"kernel_size", 5}}, {batch1}),
      op("linear", {{"out_features", 5}}, {rows}),
      op("linear", {{"out_features", 1}, {"bias", 0}}, {{Dtype::f64, {1, 1}}}),
      op("batch_norm", {}, {image}),
      op("batch_norm", {{"eps", 1e-3}, {"momentum", 0.5}}, {{Dtype::f64, {2, 3, 1, 1}}}),
      op("batch_norm", {{"sync", 1}}, {image}),
      op("batch_norm", {}, {f32({4, 6})}),
      op("batch_norm", {}, {f32({4, 6, 9})}),
      op("batch_norm", {}, {f32({2, 3, 4, 5, 6})}),
      imported(),
      op("relu", {}, {image}),
      op("relu", {{"inplace", 1}}, {rows}),
      op("max_pool", {{"kernel_size", 2}}, {image}),
      op("max_pool", {{"kernel_size", 3}, {"stride", 2}, {"padding", 1}}, {image}),
      op("adaptive_avg_pool", {{"output_size", 1}}, {image}),
      op("adaptive_avg_pool", {{"output_size", 7}}, {batch1}),
      op("flatten", {}, {image}),
      op("flatten", {}, {{Dtype::f32, {8, 3, 4, 4}, true}}),
      op("flatten", {}, {rows}),
      op("add", {}, {image, image}),
      op("add", {{"inplace", 1}}, {rows, rows}),
      op("softmax", {}, {rows}),
      op("softmax", {{"dim", 0}}, {{Dtype::f64, {3}}}),
      op("mse_loss", {}, {rows, rows}),
      op("cross_entropy", {}, {rows, {Dtype::i64, {8}}}),
      op("mean_loss", {}, {rows, rows}),
      op("sum_loss", {}, {rows, rows}),
      op("sgd", {}, {rows}),
      op("sgd", {{"momentum", 0.9}, {"weight_decay", 1e-4}}, {image}),
      op("adam", {}, {image}),
      op("adam", {}, {image, rows, f32({})}),
      op("adamw", {}, {image, rows}),
      op("accumulate", {}, {image, image}),
      op("scaled_copy", {}, {rows}),
      op("cast", {}, {rows, {Dtype::bf16, {8, 12}}}),
      op("blend", {{"keep", 0.5}, {"take", 0.25}}, {rows}),
      op("count_nans", {}, {rows}),
      op("unscale", {}, {rows}),
      op("square_norm", {}, {image}),
      op("clip", {{"max_norm", 0.5}}, {rows}),
      op("update_scale", {}, {f32({})}),
      op("fill", {}, {image}),
      op("slice", {{"dim", 1}, {"begin", 2}, {"size", 3}}, {image}),
      op("pack", {{"dim", 1}, {"parts", 4}, {"block", 1}}, {image}),
      op("unpack", {{"dim", 0}, {"parts", 3}, {"block", 3}}, {rows}),
      op("cat", {}, {image}),
      op("split_out", {{"parts", 2}}, {{Dtype::f32, {24}}}),
      op("chunk_in", {{"parts", 4}}, {{Dtype::f32, {24}}}),
      op("make_input", {}, {image}),
      op("make_target", {{"classes", 10}}, {{Dtype::i64, {8}}}),
      op("make_target", {{"classes", 12}}, {rows}),
      op("read_result", {}, {f32({}), rows, {Dtype::i64, {8}}}),
      op("class_max", {}, {rows}),
      op("class_sums", {}, {rows, {Dtype::i64, {8}}}),
      op("class_sums", {{"inplace", 1}}, {rows, {Dtype::i64, {8}}}),
      op("class_loss", {}, {f32({8, 2})}),
      op("class_grad", {}, {rows, {Dtype::i64, {8}}}),
      op("norm_stats", {}, {image}),
      op("norm_apply", {}, {image, f32({2, 13}), f32({6}), f32({6})}),
      op("norm_sums", {}, {image, image, f32({6}), f32({6})}),
      op("norm_sums", {{"parameters", 0}}, {image, image, f32({6}), f32({6})}),
      op("norm_grad", {}, {image, image, f32({6}), f32({6}), f32({6}), f32({1}), f32({12})}),
  };
}

std::string describe(const OpInstance& instance) {
  std::string text(instance.kind->name);
  for (const TensorSpec& input : instance.inputs) text += " " + to_string(input);
  for (const auto& [name, value] : instance.attributes) text += fmt::format(" {}={}", name, value);
  return text;
}

TEST(Op, EveryKindIsTested) {
  std::set<std::string_view> tested;
  for (const OpInstance& instance : instances()) tested.insert(instance.kind->name);
  for (const OpKind& kind : op_table()) {
    EXPECT_TRUE(tested.contains(kind.name)) << "add shapes for op '" << kind.name << "' to instances()";
    EXPECT_FALSE(kind.equation.empty()) << kind.name;
    ASSERT_TRUE(kind.signature != nullptr && kind.demand != nullptr) << kind.name;
  }
}

TEST(Op, SignaturesHoldTogether) {
  for (const OpInstance& instance : instances()) {
    SCOPED_TRACE(describe(instance));
    const OpKind& kind = *instance.kind;
    const Signature s = instance.signature();
    ASSERT_TRUE(instance.inputs.size() == static_cast<std::size_t>(kind.inputs) || kind.role == OpRole::optimizer ||
                kind.inputs == OpKind::kAsBody);
    EXPECT_GE(s.output.elements(), 1);
    EXPECT_EQ(s.output.dtype, instance.inputs[kind.name == "cast" ? 1 : 0].dtype);
    EXPECT_EQ(instance.has_parameters(), !s.parameters.empty());
    for (const Operand& operand : s.backward_reads) {
      const std::map<Operand::From, std::size_t> limits{{Operand::From::input, instance.inputs.size()},
                                                        {Operand::From::output, 1},
                                                        {Operand::From::parameter, s.parameters.size()},
                                                        {Operand::From::saved, s.saved.size()}};
      EXPECT_GE(operand.index, 0);
      EXPECT_LT(static_cast<std::size_t>(operand.index), limits.at(operand.from));
      // What is destroyed can't be read later.
      EXPECT_FALSE(s.storage == OutputStorage::in_place && operand.from == Operand::From::input && operand.index == 0);
    }
    EXPECT_TRUE(s.storage != OutputStorage::view || s.output.bytes() == instance.inputs[0].bytes());
    EXPECT_TRUE(s.storage != OutputStorage::in_place || s.output == instance.inputs[0]);
    if (s.backward_is_alias) {
      EXPECT_TRUE(s.backward_reads.empty() && s.parameters.empty() && s.saved.empty());
      for (const TensorSpec& input : instance.inputs) EXPECT_EQ(input.bytes(), s.output.bytes());
    }
    if (kind.role == OpRole::loss) {
      EXPECT_EQ(s.output.shape, Shape{});
      EXPECT_EQ(kind.inputs, 2);
      EXPECT_EQ(s.storage, OutputStorage::fresh);
      EXPECT_FALSE(s.backward_is_alias);
    }
    if (kind.role == OpRole::optimizer) {
      EXPECT_EQ(kind.inputs, 1);
      EXPECT_EQ(s.storage, OutputStorage::in_place);
    }
    std::set<std::string> names;
    for (const ParameterSpec& p : s.parameters) EXPECT_TRUE(names.insert(p.name).second) << p.name;
    for (const BufferSpec& b : s.buffers) EXPECT_TRUE(names.insert(b.name).second) << b.name;
    const bool is_update = instance.kind->role == OpRole::optimizer;  // whose states are of each input
    for (const SavedSpec& saved : s.saved)
      EXPECT_TRUE(names.insert(saved.name).second || (is_update && instance.inputs.size() > 1)) << saved.name;
  }
}

double tensor_bytes(const std::vector<TensorSpec>& specs) {
  double sum = 0;
  for (const TensorSpec& spec : specs) sum += static_cast<double>(spec.bytes());
  return sum;
}

TEST(Op, DemandsHoldTogether) {
  for (const OpInstance& instance : instances()) {
    SCOPED_TRACE(describe(instance));
    const OpKind& kind = *instance.kind;
    const Signature s = instance.signature();
    for (const Pass pass : {Pass::forward, Pass::backward, Pass::update}) {
      const Demand demand = instance.demand(pass);
      EXPECT_TRUE(std::isfinite(demand.flops) && std::isfinite(demand.bytes));
      EXPECT_GE(demand.flops, 0);
      EXPECT_GE(demand.bytes, 0);
    }
    if (s.storage == OutputStorage::view) {
      EXPECT_EQ(instance.demand(Pass::forward).bytes, 0);
      continue;
    }
    // Compulsory traffic: at least every input once and, where there is one, the fresh output.
    const Demand forward = instance.demand(Pass::forward);
    if (kind.name == "slice" || kind.name == "fill") continue;  // reads no more than it writes; nothing
    EXPECT_GE(forward.bytes, static_cast<double>(instance.inputs[0].bytes()) +
                                 (s.output.shape.empty() ? 0 : static_cast<double>(s.output.bytes())));
    EXPECT_EQ(forward.flops > 0, kind.name != "flatten");  // which only moves
    if (kind.matrix) {
      const Demand both = instance.demand(Pass::backward, kParameterGrads | 1);
      const Demand input = instance.demand(Pass::backward, 1);
      const Demand weight = instance.demand(Pass::backward, kParameterGrads);
      EXPECT_DOUBLE_EQ(both.flops, input.flops + weight.flops);
      EXPECT_DOUBLE_EQ(input.flops, forward.flops);
      EXPECT_DOUBLE_EQ(weight.flops, forward.flops);
      // The gradient of the output is read by either: reading it twice isn't compulsory.
      EXPECT_DOUBLE_EQ(both.bytes, input.bytes + weight.bytes - static_cast<double>(s.output.bytes()));
    }
    // Twice the batch is twice the work.
    if (kind.role == OpRole::layer || kind.role == OpRole::loss) {
      OpInstance twice = instance;
      for (TensorSpec& input : twice.inputs) input.shape[0] *= 2;
      if (kind.name == "aten") {
        twice.inputs.back().shape[0] /= 2;  // it has no batch
        twice.attributes["batch"] *= 2;
      }
      EXPECT_DOUBLE_EQ(twice.demand(Pass::forward).flops, 2 * forward.flops);
      EXPECT_DOUBLE_EQ(twice.demand(Pass::backward).flops, 2 * instance.demand(Pass::backward).flops);
    }
  }
}

/// Places of a window of `kernel` taps, `dilation` apart, counted one by one.
std::int64_t places(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                    std::int64_t dilation = 1) {
  std::int64_t count = 0;
  for (std::int64_t begin = -padding; begin + dilation * (kernel - 1) < size + padding; begin += stride) ++count;
  return count;
}

TEST(Op, ConvolutionCountsEveryProduct) {
  for (const std::int64_t kernel : {1, 3, 4})
    for (const std::int64_t stride : {1, 2, 3})
      for (const std::int64_t padding : {0, 1, 2})
        for (const std::int64_t dilation : {1, 2})
          for (const std::int64_t groups : {1, 2})
            for (const bool bias : {false, true}) {
              const OpInstance conv = op("conv2d",
                                         {{"out_channels", 6},
                                          {"kernel_size", static_cast<double>(kernel)},
                                          {"stride", static_cast<double>(stride)},
                                          {"padding", static_cast<double>(padding)},
                                          {"dilation", static_cast<double>(dilation)},
                                          {"groups", static_cast<double>(groups)},
                                          {"bias", bias ? 1.0 : 0.0}},
                                         {f32({3, 4, 11, 8})});
              SCOPED_TRACE(describe(conv));
              const std::int64_t height = places(11, kernel, stride, padding, dilation),
                                 width = places(8, kernel, stride, padding, dilation);
              const Signature s = conv.signature();
              EXPECT_EQ(s.output, f32({3, 6, height, width}));
              ASSERT_EQ(s.parameters.size(), bias ? 2U : 1U);
              EXPECT_EQ(s.parameters[0].spec, f32({6, 4 / groups, kernel, kernel}));
              EXPECT_TRUE(!bias || s.parameters[1].spec == f32({6}));
              const double products = 3.0 * 6 * static_cast<double>(height * width * (4 / groups) * kernel * kernel);
              EXPECT_DOUBLE_EQ(conv.demand(Pass::forward).flops, 2 * products);
              EXPECT_DOUBLE_EQ(conv.demand(Pass::forward).bytes,
                               tensor_bytes({conv.inputs[0], s.parameters[0].spec, s.output}));
              // torch.nn.Conv2d's default initial values.
              EXPECT_DOUBLE_EQ(s.parameters[0].initial_bound,
                               1 / std::sqrt(static_cast<double>(4 / groups * kernel * kernel)));
            }
}

TEST(Op, LinearCountsEveryProduct) {
  for (const std::int64_t rows : {1, 3, 64})
    for (const std::int64_t in : {1, 10})
      for (const std::int64_t out : {1, 7}) {
        const OpInstance linear = op("linear", {{"out_features", static_cast<double>(out)}}, {f32({rows, in})});
        const Signature s = linear.signature();
        EXPECT_EQ(s.output, f32({rows, out}));
        EXPECT_EQ(s.parameters.at(0).spec, f32({out, in}));
        EXPECT_EQ(s.parameters.at(1).spec, f32({out}));
        EXPECT_DOUBLE_EQ(s.parameters[1].initial_bound, 1 / std::sqrt(static_cast<double>(in)));
        EXPECT_DOUBLE_EQ(linear.demand(Pass::forward).flops, 2.0 * static_cast<double>(rows * in * out));
        EXPECT_DOUBLE_EQ(linear.demand(Pass::forward).bytes, 4.0 * static_cast<double>(rows * (in + out) + in * out));
      }
  EXPECT_EQ(op("linear", {{"out_features", 2}, {"bias", 0}}, {f32({3, 4})}).signature().parameters.size(), 1U);
}

TEST(Op, PoolsCountTheirWindows) {
  for (const std::int64_t kernel : {1, 2, 3})
    for (const std::int64_t stride : {0, 1, 2})  // 0: the kernel's size
      for (std::int64_t padding = 0; 2 * padding <= kernel; ++padding) {
        const OpInstance pool = op("max_pool",
                                   {{"kernel_size", static_cast<double>(kernel)},
                                    {"stride", static_cast<double>(stride)},
                                    {"padding", static_cast<double>(padding)}},
                                   {f32({2, 3, 9, 6})});
        SCOPED_TRACE(describe(pool));
        const std::int64_t step = stride == 0 ? kernel : stride;
        const Signature s = pool.signature();
        EXPECT_EQ(s.output, f32({2, 3, places(9, kernel, step, padding), places(6, kernel, step, padding)}));
        ASSERT_EQ(s.saved.size(), 1U);
        EXPECT_EQ(s.saved[0].spec, (TensorSpec{Dtype::i64, s.output.shape}));
        EXPECT_DOUBLE_EQ(pool.demand(Pass::forward).flops, static_cast<double>(s.output.elements() * kernel * kernel));
        EXPECT_DOUBLE_EQ(pool.demand(Pass::forward).bytes, tensor_bytes({pool.inputs[0], s.output, s.saved[0].spec}));
      }
  EXPECT_EQ(op("adaptive_avg_pool", {{"output_size", 7}}, {f32({2, 3, 9, 5})}).signature().output, f32({2, 3, 7, 7}));
}

// FLOPs per element and passes over memory of the elementwise kinds, by hand.
TEST(Op, ElementwiseDemands) {
  struct Row {
    std::string kind;
    Attributes attributes;
    int inputs;
    Pass pass;
    double flops_per_element, arrays;
  };
  const double n = 8 * 12;
  for (const Row& row : {Row{"relu", {}, 1, Pass::forward, 1, 2},       // x → y
                         Row{"relu", {}, 1, Pass::backward, 1, 3},      // y, grad_y → grad_x
                         Row{"softmax", {}, 1, Pass::forward, 5, 2},    // max, −, exp, Σ, /
                         Row{"softmax", {}, 1, Pass::backward, 5, 3},   // y, grad_y → grad_x
                         Row{"add", {}, 2, Pass::forward, 1, 3},        // a, b → y
                         Row{"mse_loss", {}, 2, Pass::forward, 3, 2},   // −, ², Σ over prediction and target
                         Row{"mse_loss", {}, 2, Pass::backward, 3, 3},  // … → grad
                         Row{"sgd", {}, 1, Pass::update, 2, 3},         // p, g → p
                         Row{"sgd", {{"momentum", 0.9}}, 1, Pass::update, 4, 5},  // p, g, v → v, p
                         Row{"adam", {}, 1, Pass::update, 12, 7},                 // p, g, m, v → m, v, p
                         Row{"accumulate", {}, 2, Pass::forward, 1, 3},           // a, b → a
                         Row{"blend", {{"keep", 0.5}, {"take", 0.25}}, 1, Pass::forward, 3, 5},  // p → p, p, x → p
                         Row{"unscale", {}, 1, Pass::forward, 1, 2},                             // g → g
                         Row{"square_norm", {}, 1, Pass::forward, 2, 1},                         // g →
                         Row{"clip", {{"max_norm", 1}}, 1, Pass::forward, 1, 2},                 // g → g
                         Row{"scaled_copy", {}, 1, Pass::forward, 1, 2}}) {                      // x → y
    const OpInstance instance =
        op(row.kind, row.attributes, std::vector<TensorSpec>(static_cast<std::size_t>(row.inputs), f32({8, 12})));
    EXPECT_DOUBLE_EQ(instance.demand(row.pass).flops, row.flops_per_element * n) << row.kind;
    EXPECT_DOUBLE_EQ(instance.demand(row.pass).bytes, row.arrays * 4 * n) << row.kind;
  }
  const OpInstance norm = op("batch_norm", {}, {f32({4, 6, 9, 7})});
  EXPECT_DOUBLE_EQ(norm.demand(Pass::forward).bytes, 3.0 * 4 * 4 * 6 * 9 * 7);  // statistics, then x → y
  EXPECT_DOUBLE_EQ(norm.demand(Pass::backward).bytes, 5.0 * 4 * 4 * 6 * 9 * 7);
  EXPECT_DOUBLE_EQ(op("flatten", {}, {f32({4, 6})}).demand(Pass::backward).bytes, 0);
  EXPECT_DOUBLE_EQ(op("flatten", {}, {{Dtype::f32, {4, 6, 1, 1}, true}}).demand(Pass::backward).bytes, 0);
  for (const Pass pass : {Pass::forward, Pass::backward})  // moved
    EXPECT_DOUBLE_EQ(op("flatten", {}, {{Dtype::f32, {4, 6, 2, 1}, true}}).demand(pass).bytes, 2.0 * 4 * 48);
  EXPECT_DOUBLE_EQ(op("cast", {}, {f32({4, 6}), {Dtype::bf16, {4, 6}}}).demand(Pass::forward).bytes, (4.0 + 2) * 24);
  EXPECT_EQ(message_of([] {
              static_cast<void>(op("cast", {}, {f32({4, 6}), f32({24})}).signature());
            }),
            "op 'cast': f32[24] is no copy of f32[4,6]");
}

TEST(Op, BatchNormKeepsStatistics) {
  const Signature s = op("batch_norm", {}, {f32({4, 6, 9, 7})}).signature();
  ASSERT_EQ(s.buffers.size(), 3U);
  EXPECT_EQ(s.buffers[0].name, "running_mean");
  EXPECT_EQ(s.buffers[0].initial_value, 0);
  EXPECT_EQ(s.buffers[1].name, "running_var");
  EXPECT_EQ(s.buffers[1].initial_value, 1);
  EXPECT_EQ(s.buffers[2].spec, (TensorSpec{Dtype::i64, {}}));
  EXPECT_EQ(s.parameters[0].initial_center, 1);
  EXPECT_EQ(s.parameters[1].initial_center, 0);
}

TEST(Op, OptimizersKeepStates) {
  const TensorSpec p = f32({5, 3});
  EXPECT_TRUE(op("sgd", {}, {p}).signature().saved.empty());
  const Signature momentum = op("sgd", {{"momentum", 0.9}}, {p}).signature();
  ASSERT_EQ(momentum.saved.size(), 1U);
  EXPECT_EQ(momentum.saved[0].spec, p);
  const Signature adam = op("adam", {}, {p}).signature();
  ASSERT_EQ(adam.saved.size(), 3U);
  EXPECT_EQ(adam.saved[0].spec, p);
  EXPECT_EQ(adam.saved[1].spec, p);
  EXPECT_EQ(adam.saved[2].spec, f32({}));
}

TEST(Op, AttributesAreChecked) {
  const auto message = [](const std::string& kind, const Attributes& given) {
    return message_of([&] { complete_attributes(op_table().at(kind), given, "model 'm', node 'c'"); });
  };
  EXPECT_EQ(message("conv2d", {{"out_channels", 8}}), "model 'm', node 'c': op 'conv2d' needs 'kernel_size'");
  EXPECT_EQ(message("linear", {}), "model 'm', node 'c': op 'linear' needs 'out_features'");
  EXPECT_EQ(message("linear", {{"out_feature", 8}}),
            "model 'm', node 'c': op 'linear' has no attribute 'out_feature'; known: out_features, bias");
  EXPECT_EQ(message("flatten", {{"dim", 1}}), "model 'm', node 'c': op 'flatten' has no attribute 'dim'; known: none");
  EXPECT_EQ(message("linear", {{"out_features", 2.5}}),
            "model 'm', node 'c': out_features=2.5 of op 'linear' must be a whole number from 1 to 1000000000");
  EXPECT_EQ(message("linear", {{"out_features", 0}}),
            "model 'm', node 'c': out_features=0 of op 'linear' must be a whole number from 1 to 1000000000");
  EXPECT_EQ(message("relu", {{"inplace", 2}}),
            "model 'm', node 'c': inplace=2 of op 'relu' must be a whole number from 0 to 1");
  EXPECT_EQ(message("adam", {{"beta1", 1.5}}),
            "model 'm', node 'c': beta1=1.5 of op 'adam' must be a number from 0 to 1");
  EXPECT_EQ(message("adam", {{"beta1", std::nan("")}}),
            "model 'm', node 'c': beta1=nan of op 'adam' must be a number from 0 to 1");
  for (const OpKind& kind : op_table())
    EXPECT_NE(message(std::string(kind.name), {{"no such thing", 1}}), "no error") << kind.name;
}

TEST(Op, DefaultsAreFilledIn) {
  EXPECT_EQ(complete_attributes(op_table().at("sgd"), {{"lr", 0.5}}, ""),
            (Attributes{{"lr", 0.5}, {"momentum", 0}, {"weight_decay", 0}}));
  for (const OpInstance& instance : instances())
    EXPECT_EQ(complete_attributes(*instance.kind, instance.attributes, ""), instance.attributes);
}

TEST(Op, ShapesAreChecked) {
  const auto message = [](const std::string& kind, const Attributes& given, const std::vector<TensorSpec>& inputs) {
    return message_of([&] { (void)op(kind, given, inputs).signature(); });
  };
  const Attributes conv{{"out_channels", 4}, {"kernel_size", 5}};
  EXPECT_EQ(message("conv2d", conv, {f32({2, 3})}),
            "op 'conv2d' needs an input [batch, channels, height, width], found [batch, 3]");
  EXPECT_EQ(message("conv2d", conv, {f32({2, 3, 4, 9})}), "kernel_size=5 is larger than the padded input f32[2,3,4,9]");
  EXPECT_EQ(message("conv2d", {{"out_channels", 4}, {"kernel_size", 1}, {"groups", 2}}, {f32({2, 3, 4, 9})}),
            "groups=2 must divide the 3 input and 4 output channels");
  EXPECT_EQ(message("linear", {{"out_features", 4}}, {f32({2, 3, 1, 1})}),
            "op 'linear' needs an input [batch, features], found [batch, 3, 1, 1]; put a 'flatten' before it");
  EXPECT_EQ(message("batch_norm", {}, {f32({2})}),
            "op 'batch_norm' needs an input [batch, channels, …] of 2 to 5 dimensions, found [batch]");
  EXPECT_EQ(message("batch_norm", {}, {f32({1, 3, 1, 1})}),
            "op 'batch_norm' needs more than one value per channel in training, found f32[1,3,1,1]");
  EXPECT_EQ(message("max_pool", {{"kernel_size", 3}, {"padding", 2}}, {f32({1, 1, 9, 9})}),
            "padding=2 must be at most half of kernel_size=3");
  EXPECT_EQ(message("max_pool", {{"kernel_size", 3}}, {f32({1, 1, 2, 9})}),
            "kernel_size=3 is larger than the padded input f32[1,1,2,9]");
  EXPECT_EQ(message("adaptive_avg_pool", {{"output_size", 1}}, {f32({1, 1})}),
            "op 'adaptive_avg_pool' needs an input [batch, channels, height, width], found [batch, 1]");
  EXPECT_EQ(message("flatten", {}, {f32({2})}), "op 'flatten' needs an input [batch, …], found f32[2]");
  EXPECT_EQ(message("add", {}, {f32({2, 3}), f32({2, 4})}),
            "op 'add' needs two inputs of one shape, found f32[2,3] and f32[2,4]");
  EXPECT_EQ(message("softmax", {{"dim", 2}}, {f32({2, 3})}), "dim=2 is outside the input f32[2,3]");
  EXPECT_EQ(message("mse_loss", {}, {f32({2, 3}), f32({2, 4})}),
            "op 'mse_loss' needs prediction and target of one shape, found f32[2,3] and f32[2,4]");
  EXPECT_EQ(message("cross_entropy", {}, {f32({2, 3}), f32({2, 3})}),
            "op 'cross_entropy' needs a target i64[2], found f32[2,3]");
  EXPECT_EQ(message("cross_entropy", {}, {f32({2}), f32({2})}),
            "op 'cross_entropy' needs an input [batch, positions…, classes], found [batch]");
}

TEST(Op, UnknownKindListsTheKnownOnes) {
  EXPECT_EQ(message_of([] { (void)op_table().at("conv3d"); }),
            "unknown op kind 'conv3d'; known: " + op_table().names() + "; did you mean 'conv2d'?");
}

}  // namespace
}  // namespace sim
