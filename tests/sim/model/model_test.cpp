#include "sim/model/model.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/lower/lower.hpp"
#include "sim/strategy/strategy.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using Json = nlohmann::json;
using testing::message_of;
using testing::replaced;
using testing::TemporaryFolder;

// ---- The catalog against what PyTorch says (tests/golden/models.py). ----

const Json& golden_models() {
  static const Json models = Json::parse(testing::golden_text("models.json"));
  return models;
}

TEST(ModelCatalog, EveryModelHasAGoldenEntry) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : golden_models().items()) names.push_back(name);
  EXPECT_EQ(testing::written_models(), names);
}

Json shapes(const Model& model, bool buffers) {
  Json list = Json::array();
  const std::vector<OpInstance> ops = model.instances(2);
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const Signature s = ops[n].signature();
    const auto add = [&](const std::string& name, const TensorSpec& spec) {
      list.push_back({model.nodes[n].name + "." + name, spec.shape});
    };
    if (buffers)
      for (const BufferSpec& buffer : s.buffers) add(buffer.name, buffer.spec);
    else
      for (const ParameterSpec& parameter : s.parameters) add(parameter.name, parameter.spec);
  }
  return list;
}

TEST(ModelCatalog, ParametersAndBuffersAreTorchvisions) {
  for (const std::string& name : testing::written_models()) {
    SCOPED_TRACE(name);
    const Model model = load_model(name);
    const Json& golden = golden_models().at(name);
    EXPECT_EQ(model.name, name);
    EXPECT_FALSE(model.description.empty());
    EXPECT_EQ(parameter_count(model), golden.at("parameters"));
    EXPECT_EQ(shapes(model, false), golden.at("parameter_shapes"));
    EXPECT_EQ(shapes(model, true), golden.at("buffers"));
  }
  EXPECT_EQ(parameter_count(load_model("resnet50")), 25'557'032);
}

TEST(ModelCatalog, MatrixFlopsAreFlopCounters) {
  for (const std::string& name : testing::written_models())
    for (const Json& golden : golden_models().at(name).at("cases")) {
      const std::vector<std::int64_t> input = golden.at("input");
      const std::string text = input.size() == 4 ? fmt::format("{},image={}", name, input[2]) : name;
      SCOPED_TRACE(fmt::format("{} with {} rows", text, input[0]));
      const Model model = load_model(text);
      EXPECT_EQ(model.input_spec(input[0]).shape, input);
      double forward = 0, backward = 0;
      for (const NodeSummary& node : summarize(model, input[0])) {
        if (!op_table().at(node.op).matrix) continue;
        forward += node.forward_flops;
        backward += node.backward_flops;
      }
      EXPECT_EQ(forward, golden.at("forward_flops").get<double>());
      EXPECT_EQ(backward, golden.at("backward_flops").get<double>());
      EXPECT_EQ(model.instances(input[0]).back().inputs[0].shape, golden.at("output").get<Shape>());
    }
}

TEST(ModelCatalog, TextRoundTrip) {
  for (const std::string& name : catalog_names("models"))
    for (const std::string options : {"", ",global_batch=6", ",loss=mse_loss,optimizer=sgd:lr=0.25:momentum=0.5",
                                      ",optimizer=adam,dtype=f64", ",image=96,global_batch=3"}) {
      const Model own = load_model(name);
      if (options.starts_with(",image") &&
          (own.input.size() != 3 || own.is_imported() || name == "hypar_pair" || name == "sconv"))
        continue;  // imported with its size; or the output is the last image
      if (options.starts_with(",loss") && !own.positions.empty()) continue;
      SCOPED_TRACE(name + options);
      const Model model = load_model(name + options), again = load_model(model.text());
      EXPECT_EQ(again.text(), model.text());
      EXPECT_EQ(again.global_batch, model.global_batch);
      EXPECT_EQ(again.dtype, model.dtype);
      EXPECT_EQ(again.optimizer.kind, model.optimizer.kind);
      EXPECT_EQ(again.optimizer.attributes, model.optimizer.attributes);
      EXPECT_EQ(again.nodes.back().kind, model.nodes.back().kind);
      const std::vector<OpInstance> ops = model.instances(2), same = again.instances(2);
      ASSERT_EQ(ops.size(), same.size());
      for (std::size_t n = 0; n < ops.size(); ++n) EXPECT_EQ(same[n].inputs, ops[n].inputs);
    }
}

TEST(ModelCatalog, ReferencesAreAsPublished) {
  const Model convnet = load_model("convnet");  // R2: with its softmax before the cross entropy
  EXPECT_EQ(convnet.nodes[convnet.nodes.size() - 2].kind->name, "softmax");
  EXPECT_EQ(convnet.global_batch, 64);
  EXPECT_EQ(convnet.cuts.at("r2").size(), 3U);  // four devices
  EXPECT_EQ(load_model("toy_mlp").cuts.at("r1"), std::vector<std::string>{"relu"});
  EXPECT_EQ(load_model("linear_dp").global_batch, 1000);
}

// ---- A user's own file. ----

const std::string kFile = R"({
  "format": "paragauge-model-1", "name": "own", "description": "three layers", "input": [6],
  "target": {"classes": 3}, "global_batch": 4, "optimizer": {"kind": "sgd", "lr": 0.1}, "loss": "cross_entropy",
  "cuts": {"half": ["b"]},
  "nodes": [
    {"name": "a", "op": "linear", "out_features": 5, "bias": false},
    {"name": "b", "op": "relu"},
    {"name": "c", "op": "linear", "out_features": 3}
  ]
})";

/// Loads `file` from a temporary folder; %FILE% in the message stands for its path.
std::string message(const std::string& file, const std::string& options = "") {
  const TemporaryFolder folder;
  const std::string path = folder.file("m.json", file);
  std::string text = message_of([&] { load_model(path + options); });
  for (std::size_t at; (at = text.find(path)) != std::string::npos;) text.replace(at, path.size(), "%FILE%");
  return text;
}

TEST(ModelFile, AUsersOwnFileWorks) {
  const TemporaryFolder folder;
  const Model model = load_model(folder.file("m.json", kFile) + ",global_batch=8");
  EXPECT_EQ(model.name, "own");
  EXPECT_EQ(model.text(), (folder / "m.json").string() + ",global_batch=8");
  ASSERT_EQ(model.nodes.size(), 4U);
  EXPECT_EQ(model.nodes[3].name, "loss");
  EXPECT_EQ(model.nodes[3].inputs, (std::vector<int>{2, kModelTarget}));
  EXPECT_EQ(model.nodes[0].inputs, std::vector<int>{kModelInput});
  EXPECT_EQ(model.node_index("b"), 1);
  EXPECT_EQ(model.node_index("z"), -1);
  EXPECT_EQ(parameter_count(model), 6 * 5 + 5 * 3 + 3);
  EXPECT_EQ(model.target_spec(8), (TensorSpec{Dtype::i64, {8}}));
  EXPECT_EQ(model.cuts.at("half"), std::vector<std::string>{"b"});
  EXPECT_EQ(load_model((folder / "m.json").string() + ",loss=mse_loss,dtype=f64").target_spec(8),
            (TensorSpec{Dtype::f64, {8, 3}}));
}

TEST(ModelFile, WeightsMayStartAsXaviers) {
  const TemporaryFolder folder;
  const std::string file =
      replaced(kFile, R"("c", "op": "linear",)", R"("c", "op": "linear", "initial": "xavier_uniform",)");
  const Model model = load_model(folder.file("m.json", file));
  const auto bound = [&](std::size_t node, std::size_t index) {
    return model.parameter(node, index, model.instances(4)[node].signature().parameters[index]).initial_bound;
  };
  EXPECT_DOUBLE_EQ(bound(0, 0), 1 / std::sqrt(6.0));  // PyTorch's
  EXPECT_DOUBLE_EQ(bound(2, 0), std::sqrt(6.0 / (5 + 3)));
  EXPECT_EQ(bound(2, 1), 0);
  const Model planes = load_model(folder.file("conv.json", R"({"format": "paragauge-model-1", "name": "planes",
    "input": [2, 8, 8], "target": {"classes": 64}, "optimizer": {"kind": "sgd", "lr": 0.1}, "loss": "cross_entropy",
    "nodes": [{"name": "a", "op": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "stride": 2,
               "initial": "xavier_uniform"}, {"name": "f", "op": "flatten"}]})"));
  const Signature conv = planes.instances(1)[0].signature();
  EXPECT_DOUBLE_EQ(planes.parameter(0, 0, conv.parameters[0]).initial_bound, std::sqrt(6.0 / (9 * (2 + 4))));
  // A rank's part begins as that part of the whole; also in a block.
  const Model wide = load_model(folder.file("wide.json", R"({"format": "paragauge-model-1", "name": "wide",
    "input": [4], "target": {"classes": 6}, "optimizer": {"kind": "sgd", "lr": 0.1}, "loss": "cross_entropy",
    "blocks": {"layer": {"nodes": [{"name": "l", "op": "linear", "out_features": 6, "initial": "xavier_uniform"}]}},
    "nodes": [{"block": "layer", "name": "a"}, {"block": "layer", "name": "b"}]})"));
  const Program program = lower(wide, parse_strategy("tp", wide));
  std::size_t weights = 0;
  for (const Role& role : program.roles)
    for (const Tensor& tensor : role.tensors)
      if (tensor.name == "a.l.weight") {
        EXPECT_EQ(tensor.spec.shape, (Shape{3, 4}));
        EXPECT_DOUBLE_EQ(tensor.initial.bound, std::sqrt(6.0 / (4 + 6)));
        ++weights;
      }
  EXPECT_GT(weights, 0U);
}

TEST(ModelFile, SummaryCountsEachNode) {
  const TemporaryFolder folder;
  const std::vector<NodeSummary> rows = summarize(load_model(folder.file("m.json", kFile)), 4);
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0].parameters, 30);
  EXPECT_EQ(rows[0].output, (Shape{4, 5}));
  EXPECT_EQ(rows[0].activation_bytes, 4 * 4 * 5);
  EXPECT_EQ(rows[0].forward_flops, 2.0 * 4 * 6 * 5);
  EXPECT_EQ(rows[0].backward_flops, 2.0 * 4 * 6 * 5);      // the input needs no gradient
  EXPECT_EQ(rows[2].backward_flops, 2 * 2.0 * 4 * 5 * 3);  // the input's and the weight's
  EXPECT_EQ(rows[3].activation_bytes, 4 + 4 * 4 * 3 + 4);  // loss, log probabilities, total weight
}

TEST(ModelFile, BlocksAreExpanded) {
  const TemporaryFolder folder;
  const std::string file = replaced(
      replaced(kFile, R"("nodes": [)",
               R"("blocks": {"pair": {"nodes": [{"name": "fc", "op": "linear", "out_features": "$width"},
                                                 {"name": "sum", "op": "add", "inputs": ["fc", "in"]}]}},
                  "nodes": [)"),
      R"({"name": "b", "op": "relu"})",
      R"({"name": "b", "op": "relu"}, {"block": "pair", "name": "p{i}", "first": 3, "repeat": 2, "width": 5})");
  const Model model = load_model(folder.file("m.json", file));
  std::vector<std::string> names;
  for (const Node& node : model.nodes) names.push_back(node.name);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "b", "p3.fc", "p3.sum", "p4.fc", "p4.sum", "c", "loss"}));
  EXPECT_EQ(model.nodes[4].inputs, std::vector<int>{3});
  EXPECT_EQ(model.nodes[5].inputs, (std::vector<int>{4, 3}));
}

TEST(ModelFile, GradientsFlowWhereParametersAre) {
  // relu(input) + linear: the relu has no parameter before it.
  const TemporaryFolder folder;
  const Model model = load_model(
      folder.file("m.json", replaced(kFile, R"({"name": "b", "op": "relu"})",
                                     R"({"name": "r", "op": "relu", "inputs": ["input"]}, {"name": "f", "op": "linear",
                             "out_features": 5, "inputs": ["r"]}, {"name": "b", "op": "add", "inputs": ["a", "f"]})")));
  EXPECT_EQ(model.grads(), (std::vector<std::uint32_t>{kParameterGrads, 0, kParameterGrads, 3, kParameterGrads | 1,
                                                       1}));  // the target has none
}

// Kernels of their own: an op's text says in which order its input lies.
TEST(ModelText, ChannelsLastIsOfEveryPlane) {
  const Model model = load_model("resnet18,image=64,memory_format=channels_last");
  EXPECT_EQ(load_model(model.text()).text(), model.text());
  for (const OpInstance& op : model.instances(2)) {
    const TensorSpec &x = op.inputs[0], output = op.signature().output;
    EXPECT_EQ(x.channels_last, x.shape.size() == 4) << op.kind->name << " " << to_string(x);
    EXPECT_EQ(output.channels_last, output.shape.size() == 4) << op.kind->name << " " << to_string(output);
  }
}

// Parameters, statistics and losses stay in f32; convolutions and linear layers keep copies of what isn't in half.
TEST(ModelText, AutocastIsOfActivations) {
  const Model model = load_model("resnet18,image=64,precision=fp16");
  EXPECT_EQ(load_model(model.text()).text(), model.text());
  const std::vector<OpInstance> ops = model.instances(2);
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const Signature s = ops[n].signature();
    const bool is_loss = n + 1 == ops.size();
    EXPECT_EQ(s.output.dtype, is_loss ? Dtype::f32 : Dtype::f16) << model.nodes[n].name;
    for (const ParameterSpec& parameter : s.parameters) EXPECT_EQ(parameter.spec.dtype, Dtype::f32);
    if (!ops[n].kind->matrix) continue;
    EXPECT_EQ(s.saved.size(), n == 0 ? 2U : 1U) << model.nodes[n].name;  // the model's input is in f32
    EXPECT_EQ(s.saved.back().name, "weight.f16");
    EXPECT_EQ(s.saved.back().spec.bytes(), s.parameters[0].spec.bytes() / 2);
  }
}

// PyTorch's default, "highest": TF32 in convolutions only.
TEST(ModelText, PrecisionIsOfTheOpsThatDiffer) {
  const auto of = [](std::string_view precision, std::string_view kind) {
    for (const OpInstance& op : load_model(fmt::format("convnet,precision={}", precision)).instances(2))
      if (op.kind->name == kind) return op.precision;
    return Precision::bf16;
  };
  EXPECT_EQ(of("f32", "conv2d"), Precision::f32);
  EXPECT_EQ(of("tf32", "conv2d"), Precision::f32);
  EXPECT_EQ(of("ieee", "conv2d"), Precision::ieee);
  EXPECT_EQ(of("f32", "linear"), Precision::f32);
  EXPECT_EQ(of("tf32", "linear"), Precision::tf32);
  EXPECT_EQ(of("ieee", "linear"), Precision::f32);
  EXPECT_EQ(of("bf16", "relu"), Precision::f32);
  EXPECT_EQ(load_model("convnet,dtype=f64,precision=tf32").instances(2)[0].precision, Precision::f32);
}

// ---- Errors, word for word. ----

TEST(ModelText, SaysWhatIsWrong) {
  const auto load = [](std::string_view text) { return message_of([&] { load_model(text); }); };
  EXPECT_EQ(load("resnet51"),
            "unknown model 'resnet51'; known: alexnet_tower, bert_base, cifar_c, convnet, convnext_tiny, densenet121, "
            "efficientnet_b0, gpt2, gpt_nano, hypar_pair, lenet_c, linear_dp, … (paragauge list), or a path to a .json "
            "file; did you mean 'resnet50'?");
  EXPECT_EQ(load("toy_mlp,dtyp=f64"),
            "model 'toy_mlp,dtyp=f64': unknown key 'dtyp'; known: image, global_batch, device_batch, loss, optimizer, "
            "dtype, precision, loss_scale, max_grad_norm, timing, memory_format; did you mean 'dtype'?");
  EXPECT_EQ(load("toy_mlp,batch=3"),
            "model 'toy_mlp,batch=3': unknown key 'batch'; known: image, global_batch, device_batch, loss, optimizer, "
            "dtype, precision, loss_scale, max_grad_norm, timing, memory_format");
  EXPECT_EQ(load("toy_mlp,device_batch=0"),
            "model 'toy_mlp,device_batch=0': device_batch=0 must be a whole number from 1 to 10000000");
  EXPECT_EQ(load("toy_mlp,device_batch=4,global_batch=8"),
            "model 'toy_mlp,device_batch=4,global_batch=8': give global_batch or device_batch, not both");
  EXPECT_EQ(load("global_batch=3"), "model 'global_batch=3': no name; expected name,key=value,…");
  EXPECT_EQ(load(""), "model '': no name; expected name,key=value,…");
  EXPECT_EQ(load("toy_mlp,global_batch=0"),
            "model 'toy_mlp,global_batch=0': global_batch=0 must be a whole number from 1 to 10000000");
  EXPECT_EQ(load("toy_mlp,image=32"),
            "model 'toy_mlp,image=32': image= needs a model with input [channels, height, width]");
  EXPECT_EQ(load("convnet,memory_format=nhwc"),
            "model 'convnet,memory_format=nhwc': memory_format=nhwc must be contiguous or channels_last");
  EXPECT_EQ(
      load("toy_mlp,memory_format=channels_last"),
      "model 'toy_mlp,memory_format=channels_last': memory_format=channels_last needs a model with input [channels, "
      "height, width]");
  EXPECT_EQ(load("toy_mlp,timing=repeat"),
            "model 'toy_mlp,timing=repeat': timing=repeat must be one of step, tutorial, epoch");
  EXPECT_EQ(load("toy_mlp,dtype=bf16"),
            "model 'toy_mlp,dtype=bf16': dtype=bf16 must be f32 or f64; half precision is precision=bf16");
  EXPECT_EQ(load("toy_mlp,precision=f16"),
            "model 'toy_mlp,precision=f16': unknown precision 'f16'; known: f32, tf32, ieee, bf16, fp16");
  EXPECT_EQ(load("toy_mlp,precision=bf16,loss_scale=8"),
            "model 'toy_mlp,precision=bf16,loss_scale=8': loss_scale= is for precision=fp16, whose smallest number is "
            "6e-8");
  EXPECT_EQ(load("toy_mlp,max_grad_norm=-1"),
            "model 'toy_mlp,max_grad_norm=-1': max_grad_norm=-1 must be a number from 0 to 1e+30");
  EXPECT_EQ(load("toy_mlp,dtype=float"), "unknown dtype 'float'; known: f32, f64, bf16, f16, i64, i32, bool");
  EXPECT_EQ(load("toy_mlp,optimizer=sgd:lr=x"), "optimizer 'sgd,lr=x': lr=x must be a number from -1e+30 to 1e+30");
  EXPECT_EQ(load("toy_mlp,optimizer=adam:momentum=1"),
            "optimizer 'adam:momentum=1': op 'adam' has no attribute 'momentum'; known: lr, beta1, beta2, eps, "
            "weight_decay");
  EXPECT_EQ(load("toy_mlp,optimizer=relu"), "optimizer 'relu': 'relu' is not an optimizer; known: sgd, adam, adamw");
  EXPECT_EQ(load("toy_mlp,optimizer=sgdm"),
            "optimizer 'sgdm': 'sgdm' is not an optimizer; known: sgd, adam, adamw; did you mean 'sgd'?");
  EXPECT_EQ(load("no/such/m.json"), "no/such/m.json: can't be read: No such file or directory");
  EXPECT_EQ(load("toy_mlp,loss=huber"),  // not the file's mistake
            "model 'toy_mlp,loss=huber': 'huber' is not a loss; known: mse_loss, cross_entropy, mean_loss, sum_loss");
  EXPECT_EQ(load("toy_mlp,loss=relu"),
            "model 'toy_mlp,loss=relu': 'relu' is not a loss; known: mse_loss, cross_entropy, mean_loss, sum_loss");
  EXPECT_EQ(load("vgg11,image=16"),
            "model 'vgg11', node 'features.20': kernel_size=2 is larger than the padded input f32[2,512,1,1]");
}

TEST(ModelFile, SaysWhatIsWrong) {
  EXPECT_EQ(message(kFile), "no error");
  const auto with = [](const std::string& from, const std::string& to) { return message(replaced(kFile, from, to)); };
  EXPECT_EQ(with("paragauge-model-1", "paragauge-model-3"),
            "%FILE%: format 'paragauge-model-3' is newer than 'paragauge-model-2'; it needs a newer paragauge");
  EXPECT_EQ(with(R"("format": "paragauge-model-1", )", ""), "%FILE%: 'format' is missing");
  EXPECT_EQ(with(R"("name": "own", )", ""), "%FILE%: 'name' is missing");
  EXPECT_EQ(
      with(R"("cuts")", R"("cutz")"),
      "%FILE%: unknown key 'cutz'; known: blocks, cuts, description, format, global_batch, input, loss, name, nodes, "
      "optimizer, target; did you mean 'cuts'?");
  EXPECT_EQ(with("[6]", "[]"), "%FILE%: 'input' must list at least one size");
  EXPECT_EQ(with("[6]", "[0]"), "%FILE%: 'input' sizes must be from 1 to 1000000, found 0");
  EXPECT_EQ(with("[6]", "6"), "%FILE%: 'input' must be a list of whole numbers, found 6");
  EXPECT_EQ(with(R"("global_batch": 4)", R"("global_batch": 0)"),
            "%FILE%: 'classes' and 'global_batch' must be positive");
  EXPECT_EQ(with(R"({"classes": 3})", R"({"classes": 3, "kind": 1})"),
            "%FILE%: target: unknown key 'kind'; known: classes");
  EXPECT_EQ(with(R"("cross_entropy")", R"("l1")"),
            "%FILE%: 'l1' is not a loss; known: mse_loss, cross_entropy, mean_loss, sum_loss");
  EXPECT_EQ(with(R"("kind": "sgd")", R"("kind": "sgdm")"),
            "%FILE%: optimizer: 'sgdm' is not an optimizer; known: sgd, adam, adamw; did you mean 'sgd'?");
  EXPECT_EQ(with(R"("lr": 0.1)", R"("rate": 0.1)"),
            "%FILE%: optimizer: op 'sgd' has no attribute 'rate'; known: lr, momentum, weight_decay");
  EXPECT_EQ(with(R"("lr": 0.1)", R"("lr": "0.1")"), "%FILE%: optimizer: 'lr' must be a number, found \"0.1\"");
  EXPECT_EQ(with(R"("half": ["b"])", R"("half": "b")"), "%FILE%: cuts: 'half' must be a list of texts, found \"b\"");
}

TEST(ModelFile, SaysWhichNodeIsWrong) {
  const auto b = [](const std::string& node) {
    return message(replaced(kFile, R"({"name": "b", "op": "relu"})", node));
  };
  EXPECT_EQ(b(R"({"name": "b", "op": "rellu"})"),
            "%FILE%: nodes[1]: node 'b': 'rellu' is not a layer; known: conv2d, linear, batch_norm, relu, max_pool, "
            "adaptive_avg_pool, flatten, add, softmax; did you mean 'relu'?");
  EXPECT_EQ(b(R"({"name": "b", "op": "sgd"})"),
            "%FILE%: nodes[1]: node 'b': 'sgd' is not a layer; known: conv2d, linear, batch_norm, relu, max_pool, "
            "adaptive_avg_pool, flatten, add, softmax");
  EXPECT_EQ(b(R"({"name": "b", "op": "cross_entropy"})"),
            "%FILE%: nodes[1]: node 'b': 'cross_entropy' is a loss: the model's key 'loss'");
  EXPECT_EQ(b(R"({"name": "b", "op": "relu", "slope": 1})"),
            "%FILE%: nodes[1]: node 'b': op 'relu' has no attribute 'slope'; known: inplace");
  EXPECT_EQ(b(R"({"name": "b", "op": "relu", "inplace": "yes"})"),
            "%FILE%: nodes[1]: 'inplace' must be a number, found \"yes\"");
  EXPECT_EQ(b(R"({"name": "b", "op": "linear", "out_features": 0})"),
            "%FILE%: nodes[1]: node 'b': out_features=0 of op 'linear' must be a whole number from 1 to 1000000000");
  EXPECT_EQ(b(R"({"name": "b", "op": "linear"})"), "%FILE%: nodes[1]: node 'b': op 'linear' needs 'out_features'");
  EXPECT_EQ(b(R"({"name": "b", "op": "relu", "inputs": ["c"]})"),
            "%FILE%: nodes[1]: node 'b': input 'c' is not an earlier node of this list");
  EXPECT_EQ(b(R"({"name": "b", "op": "add", "inputs": ["a"]})"),
            "%FILE%: nodes[1]: node 'b': op 'add' takes 2 inputs, found 1");
  EXPECT_EQ(b(R"({"name": "b", "op": "add"})"), "%FILE%: nodes[1]: node 'b': op 'add' takes 2 inputs, found 1");
  EXPECT_EQ(b(R"({"name": "b", "op": "relu", "inputs": "a"})"),
            "%FILE%: nodes[1]: 'inputs' must be a list of texts, found \"a\"");
  EXPECT_EQ(b(R"({"name": "b", "op": "relu", "initial": "xavier_uniform"})"),
            "%FILE%: nodes[1]: node 'b': 'initial' is of conv2d and linear, not of op 'relu'");
  EXPECT_EQ(
      b(R"({"name": "b", "op": "linear", "out_features": 4, "initial": "xavier"})"),
      "%FILE%: nodes[1]: node 'b': initial 'xavier' isn't known; known: xavier_uniform; without it, PyTorch's default");
  EXPECT_EQ(b(R"({"op": "relu"})"), "%FILE%: nodes[1]: 'name' is missing");
  EXPECT_EQ(b(R"({"name": "b"})"), "%FILE%: nodes[1]: 'op' is missing");
  EXPECT_EQ(b("7"), "%FILE%: nodes[1]: must be a JSON object");
  EXPECT_EQ(b(R"({"name": "b c", "op": "relu"})"),
            "%FILE%: nodes[1]: 'b c' is not a node name (no spaces or quotes, not empty)");
  EXPECT_EQ(b(R"({"name": "", "op": "relu"})"),
            "%FILE%: nodes[1]: '' is not a node name (no spaces or quotes, not empty)");
  EXPECT_EQ(
      b(R"({"name": "batch", "op": "max_pool", "kernel_size": 2})"),
      "model 'own', node 'batch': op 'max_pool' needs an input [batch, channels, height, width], found [batch, 5]");
  // Names that stand for something else already.
  for (const char* name : {"a", "input", "target", "loss"})
    EXPECT_EQ(b(fmt::format(R"({{"name": "{}", "op": "relu"}})", name)),
              fmt::format("%FILE%: nodes[1]: the name '{}' is taken", name));
  EXPECT_EQ(message(replaced(kFile, "\"nodes\": [", "\"nodes\": [], \"no\": [")),
            "%FILE%: nodes: must be a list of nodes");
}

TEST(ModelFile, SaysThatAShapeOrOutputDoesntFit) {
  EXPECT_EQ(message(replaced(kFile, R"("classes": 3)", R"("classes": 4)")),
            "%FILE%: the last node gives f32[2,3] per 2 rows, but the target has classes=4");
  EXPECT_EQ(message(replaced(kFile, R"("classes": 3)", R"("classes": 4)"), ",loss=mse_loss"),
            "model 'own', node 'loss': op 'mse_loss' needs prediction and target of one shape, found f32[2,3] and "
            "f32[2,4]");
  EXPECT_EQ(message(replaced(kFile, R"("name": "c", )", R"("name": "c", "inputs": ["a"], )")),
            "%FILE%: nobody reads the output of node 'b'");
}

TEST(ModelFile, InPlaceMustNotDestroyWhatOthersNeed) {
  const auto nodes = [](const std::string& between) {
    return message(replaced(kFile, R"({"name": "b", "op": "relu"})", between));
  };
  EXPECT_EQ(nodes(R"({"name": "b", "op": "relu", "inplace": true})"), "no error");
  // Read later; saved by another's backward; saved by its own producer's backward.
  EXPECT_EQ(nodes(R"({"name": "r", "op": "relu", "inplace": true}, {"name": "b", "op": "add", "inputs": ["r", "a"]})"),
            "model 'own': node 'r' works in place on 'a', which 'b' still needs");
  EXPECT_EQ(nodes(R"({"name": "l", "op": "linear", "out_features": 5},
                     {"name": "r", "op": "relu", "inputs": ["a"], "inplace": true},
                     {"name": "b", "op": "add", "inputs": ["l", "r"]})"),
            "model 'own': node 'r' works in place on 'a', which 'l' still needs");
  EXPECT_EQ(nodes(R"({"name": "b", "op": "relu"}, {"name": "r", "op": "relu", "inplace": true})"),
            "model 'own': node 'r' works in place on 'b', which 'b' still needs");
  EXPECT_EQ(nodes(R"({"name": "r", "op": "relu", "inputs": ["input"], "inplace": true},
                     {"name": "f", "op": "linear", "out_features": 5},
                     {"name": "b", "op": "add", "inputs": ["a", "f"]})"),
            "model 'own': node 'r' works in place on the model's input");
  // Through a view.
  EXPECT_EQ(nodes(R"({"name": "v", "op": "flatten", "inputs": ["input"]}, {"name": "r", "op": "relu", "inplace": 1},
                     {"name": "f", "op": "linear", "out_features": 5},
                     {"name": "b", "op": "add", "inputs": ["a", "f"]})"),
            "model 'own': node 'r' works in place on the model's input");
  EXPECT_EQ(nodes(R"({"name": "v", "op": "flatten"}, {"name": "r", "op": "relu", "inplace": 1},
                     {"name": "b", "op": "add", "inputs": ["r", "a"]})"),
            "model 'own': node 'r' works in place on 'a', which 'b' still needs");
  // Through another in-place op.
  EXPECT_EQ(nodes(R"({"name": "l", "op": "linear", "out_features": 5},
                     {"name": "s", "op": "add", "inputs": ["l", "a"], "inplace": 1},
                     {"name": "b", "op": "relu", "inplace": 1})"),
            "no error");
}

TEST(ModelFile, SaysWhatIsWrongWithABlock) {
  const auto block = [](const std::string& nodes, const std::string& use) {
    return message(
        replaced(replaced(kFile, R"("nodes": [)", R"("blocks": {"p": {"nodes": )" + nodes + R"(}}, "nodes": [)"),
                 R"({"name": "b", "op": "relu"})", use));
  };
  const std::string linear = R"([{"name": "f", "op": "linear", "out_features": "$width"}])";
  EXPECT_EQ(block(linear, R"({"block": "p", "name": "b", "width": 5})"), "no error");
  EXPECT_EQ(block(linear, R"({"block": "q", "name": "b", "width": 5})"), "%FILE%: nodes[1]: unknown block 'q'");
  EXPECT_EQ(block(linear, R"({"block": "p", "name": "b"})"),
            "%FILE%: block p[0]: 'out_features' wants $width, which the block's user doesn't give");
  EXPECT_EQ(block(linear, R"({"block": "p", "name": "b", "width": 5, "depth": 3})"),
            "%FILE%: nodes[1]: unknown key 'depth'; block 'p' takes block, first, name, repeat, width");
  EXPECT_EQ(block(linear, R"({"block": "p", "name": "b", "width": 5, "repeat": 2})"),
            "%FILE%: nodes[1]: the name 'b' of a repeated block needs {i}");
  EXPECT_EQ(block(linear, R"({"block": "p", "name": "b{i}", "width": 5, "repeat": 0})"),
            "%FILE%: nodes[1]: repeat=0 must be from 1 to 10000");
  EXPECT_EQ(block("[]", R"({"block": "p", "name": "b"})"), "%FILE%: block p: must be a list of nodes");
  EXPECT_EQ(block(linear, R"({"block": "p", "name": "b", "width": 5}, {"name": "b.f", "op": "relu"})"),
            "%FILE%: nodes[2]: the name 'b.f' is taken");
  EXPECT_EQ(block(R"([{"block": "p", "name": "again"}])", R"({"block": "p", "name": "b"})"),
            "%FILE%: block p[0]: blocks lie more than 16 deep in each other");
}

TEST(ModelText, PathsMayHaveCommasAndEqualsSigns) {
  const TemporaryFolder folder;
  const std::string path = folder.file("runs/lr=0.1,mom=0.9/net.json", kFile);
  const Model model = load_model(path + ",global_batch=8");
  EXPECT_EQ(model.source, path);
  EXPECT_EQ(model.global_batch, 8);
  EXPECT_EQ(load_model(model.text()).text(), model.text());
}

TEST(ModelText, DeviceBatchIsOfEachReplica) {
  const Model given = load_model("toy_mlp,device_batch=4");
  EXPECT_EQ(given.text(), "toy_mlp,device_batch=4");
  EXPECT_EQ(with_global_batch(given, "single").text(), "toy_mlp,global_batch=4");
  EXPECT_EQ(with_global_batch(given, "pipeline,pp=2").global_batch, 4);
  EXPECT_EQ(with_global_batch(given, "ddp").global_batch, 8);
  EXPECT_EQ(with_global_batch(given, "ddp,dp=3").global_batch, 12);
  EXPECT_EQ(with_global_batch(given, "data_parallel,dp=3").global_batch, 12);
  EXPECT_EQ(with_global_batch(given, "dp=2,pp=2").global_batch, 8);
  EXPECT_EQ(with_global_batch(given, "hypar,levels=2x2").global_batch, 4);
  EXPECT_EQ(with_global_batch(load_model("toy_mlp,global_batch=4"), "ddp,dp=2").global_batch, 4);
  EXPECT_EQ(
      message_of([] { (void)with_global_batch(load_model("toy_mlp,device_batch=10000000"), "ddp,dp=2"); }),
      "strategy 'ddp,dp=2': device_batch=10000000 of model 'toy_mlp' makes global_batch=20000000; at most 10000000");
}

TEST(ModelFile, ATruncatedFileIsRefused) {
  for (std::size_t length = 0; length < kFile.size(); length += 7)
    EXPECT_EQ(message(kFile.substr(0, length)),
              fmt::format("%FILE%: not valid JSON at line {}, column {} (the file is truncated)",
                          1 + std::ranges::count(kFile.substr(0, length), '\n'),
                          length - (kFile.substr(0, length).rfind('\n') + 1) + 1));
}

}  // namespace
}  // namespace sim
