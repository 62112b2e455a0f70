// A model: a graph of ops in topological order, the loss last.
//
//   Model model = load_model("resnet50,image=128,global_batch=16,loss=mse_loss,optimizer=sgd:lr=0.001");
//   const std::vector<OpInstance> ops = model.instances(/*rows=*/16);
//   for (std::size_t n = 0; n < ops.size(); ++n)
//     fmt::print("{} {}\n", model.nodes[n].name, to_string(ops[n].signature().output));
//
// Models come from files, whose format sim/model/model_file.hpp describes.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sim/model/initial.hpp"
#include "sim/model/op/op.hpp"

namespace sim {

/// An input of a node: the index of an earlier node, or one of these; kModelGiven is the first of Model::given, the
/// others follow below it.
constexpr int kModelInput = -1;
constexpr int kModelTarget = -2;
constexpr int kModelGiven = -3;

/// What a node plays.
struct NodeOp {
  const OpKind* kind = nullptr;
  Attributes attributes;
  const Body* body = nullptr;
};

struct Node {
  std::string name;  // as in torchvision's state_dict: "layer1.0.conv1"
  const OpKind* kind = nullptr;
  Attributes attributes;
  std::vector<int> inputs;
  const Body* body = nullptr;           // of an op `aten`
  const Body* half = nullptr;           // its body where precision=bf16; none: what it is otherwise
  const Body* halved = nullptr;         // and where parameters are bf16 themselves
  std::optional<NodeOp> in_f32;         // of a model with autocast whose file knows halved bodies: what it is otherwise
  const Body* in_parts = nullptr;       // what takes its place in parts of its units, where that is another
  std::vector<std::string> parameters;  // their names in Model::parameters; empty: the node's own, "conv1.weight"
  bool xavier = false;  // torch.nn.init.xavier_uniform_ of its weight, and no bias at first; else PyTorch's default
};

/// What nodes read beside the model's input and target: a further input of each sample, or a constant.
struct Given {
  std::string name;
  TensorSpec spec;  // of an input: of a sample
  bool per_sample = false;
  Initial initial;
  bool is_frozen = false;  // a constant that is a parameter of the module, which isn't trained
  bool is_halved = false;  // in half precision where parameters are
};

/// What the training loop does inside the timed step, beside training.
enum class Timing : std::uint8_t {
  step,      // nothing: the data lie on the devices
  tutorial,  // makes a random batch on the host and brings it to the devices (R1, PyTorch's model-parallel tutorial)
  epoch,     // reads the loss and counts the correct predictions (R2, the four-device ConvNet)
};

struct Model {
  std::string name;
  std::string description;
  std::string source, options;  // of load_model's text: the name or path, and the keys given beside global_batch
  Shape input;                  // per sample
  Initial input_values{.kind = Initial::Kind::model_input};  // with classes: tokens, i64
  std::int64_t classes = 0;  // of the target; the model's output is [rows, positions…, classes]
  Shape positions;           // per sample: a target at each; mostly none
  std::vector<Given> given;
  std::int64_t global_batch = 1;
  std::int64_t device_batch = 0;  // of each replica; not 0: `global_batch` waits for a strategy (with_global_batch)
  Dtype dtype = Dtype::f32;
  Precision precision = Precision::f32;
  // Of an imported model: why nothing is known of its ops in half precision, and with parameters that are.
  std::string no_half, no_half_parameters;
  double loss_scale = 0;     // torch.amp.GradScaler's at first (its other settings are PyTorch's); 0: there is none
  double max_grad_norm = 0;  // torch.nn.utils.clip_grad_norm_, of all parameters together; 0: any
  Timing timing = Timing::step;
  bool channels_last = false;  // PyTorch's memory_format, of inputs [channels, height, width] and all that follows
  std::vector<Node> nodes;     // the last one is the loss
  std::map<std::string, ParameterSpec> parameters;  // by full name: those that several nodes read, and of ops `aten`
  std::vector<std::string> units;                   // blocks: what the names of their nodes begin with
  OpInstance optimizer;                             // attributes only; `inputs` empty
  std::map<std::string, std::vector<std::string>> cuts;

  /// This model with autocast, as it is where parameters are in half precision themselves and nothing is cast for them (FSDP2's
  /// MixedPrecisionPolicy.param_dtype, DeepSpeed's half precision): imported ops have other bodies then. ConfigError where the
  /// file doesn't say.
  [[nodiscard]] Model with_half_parameters() const;
  /// The text that load_model accepts and that makes this same model again.
  [[nodiscard]] std::string text() const;
  /// Every node with the shapes of its inputs for a pass over `rows` samples.
  [[nodiscard]] std::vector<OpInstance> instances(std::int64_t rows) const;
  [[nodiscard]] TensorSpec input_spec(std::int64_t rows) const;
  /// The target as the loss takes it: class indices i64[rows, positions…], or one-hot dtype[rows, positions…, classes].
  [[nodiscard]] TensorSpec target_spec(std::int64_t rows) const;
  /// What a negative input of a node is, over so many samples.
  [[nodiscard]] const Given& given_of(int input_index) const {
    return given[static_cast<std::size_t>(kModelGiven - input_index)];
  }
  [[nodiscard]] TensorSpec source_spec(int input_index, std::int64_t rows) const;
  [[nodiscard]] std::string_view source_name(int input_index) const;
  [[nodiscard]] Initial source_initial(int input_index) const;
  [[nodiscard]] bool is_per_sample(int input_index) const {
    return input_index > kModelGiven || given_of(input_index).per_sample;
  }
  /// A parameter of a node by its full name, with its first value; `own`: as the op's signature has it.
  [[nodiscard]] ParameterSpec parameter(std::size_t node, std::size_t index, const ParameterSpec& own) const;
  [[nodiscard]] bool has_parameters(std::size_t node) const;
  /// Some op is a body: its shapes and dtypes are as they were imported.
  [[nodiscard]] bool is_imported() const;
  /// By node: whether its output follows from constants alone (the angles of rotary embeddings), the same for all samples.
  [[nodiscard]] std::vector<bool> made_of_constants() const;
  [[nodiscard]] int node_index(std::string_view node_name) const;  // -1 if there's none
  /// For each node OpKind::demand's bits: which gradients its backward makes. 0: it has none; it depends on no parameter, or
  /// the loss not on it, through what is differentiated (a body without a backward isn't; of what a body reads detached it
  /// makes no gradient).
  [[nodiscard]] std::vector<std::uint32_t> grads() const;
};

/// A model of the catalog or a path to a .json file, and what differs from the file:
/// `name[,image=S][,global_batch=B or ,device_batch=B][,loss=…][,optimizer=kind:key=value:…][,dtype=f32]
/// [,precision=f32|tf32|ieee|bf16|fp16][,loss_scale=S][,max_grad_norm=N][,timing=step|tutorial|epoch]
/// [,memory_format=contiguous|channels_last]`.
/// ConfigError that says what, where and what is allowed.
Model load_model(std::string_view text);

/// A node's costs in one forward and backward over `rows` samples: what `paragauge describe` prints.
struct NodeSummary {
  std::string name, op;
  Shape output;
  std::int64_t parameters = 0;
  double forward_flops = 0, backward_flops = 0;
  double forward_bytes = 0, backward_bytes = 0;
  std::int64_t activation_bytes = 0;  // what this node's forward keeps in new storage until its backward
};
std::vector<NodeSummary> summarize(const Model& model, std::int64_t rows);

std::int64_t parameter_count(const Model& model);

}  // namespace sim
