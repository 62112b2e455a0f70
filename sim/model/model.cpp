#include "sim/model/model.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/error.hpp"
#include "sim/model/model_file.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

/// "sgd:lr=0.1:momentum=0.9".
OpInstance optimizer_from_text(const std::string& text) {
  std::string items = text;
  std::replace(items.begin(), items.end(), ':', ',');
  const SpecText spec(items, "optimizer");
  Attributes given;
  for (const auto& [key, value] : spec.items()) given[key] = spec.number(key, 0, -1e30, 1e30);
  return make_optimizer(spec.head(), given, fmt::format("optimizer '{}'", text));
}

std::string optimizer_to_text(const OpInstance& optimizer) {
  std::string text(optimizer.kind->name);
  for (const auto& [name, value] : optimizer.attributes) text += fmt::format(":{}={}", name, value);
  return text;
}

/// An in-place op destroys every tensor in its first input's storage: nobody else may need one of them afterwards.
void check_in_place(const Model& model) {
  const std::vector<Node>& nodes = model.nodes;
  const int count = static_cast<int>(nodes.size());
  // Who needs an output: the last node that reads it, and the first one whose backward does (its own node as the
  // output, others as an input). None: −1 and `count`.
  struct Need {
    int last_reader = -1, first_saver = 0;
  };
  std::vector<Need> needs(nodes.size(), {-1, count});
  std::vector<OutputStorage> kinds;
  const std::vector<OpInstance> ops = model.instances(2);
  for (int n = 0; n < count; ++n) {
    const Signature s = ops[n].signature();
    kinds.push_back(s.storage);
    for (int source : nodes[n].inputs)
      if (source >= 0) needs[source].last_reader = n;
    for (const Operand& o : s.backward_reads) {
      const int tensor = o.from == Operand::From::output  ? n
                         : o.from == Operand::From::input ? nodes[n].inputs[o.index]
                                                          : kModelInput;
      if (tensor >= 0) needs[tensor].first_saver = std::min(needs[tensor].first_saver, n);
    }
  }
  std::vector<int> storage;                          // of every output: the node that allocated it, or kModelInput
  std::vector<std::vector<int>> held(nodes.size());  // by allocating node: the tensors not yet destroyed
  for (int n = 0; n < count; ++n) {
    const int source = nodes[n].inputs.empty() ? kModelInput : nodes[n].inputs[0];
    storage.push_back(kinds[n] == OutputStorage::fresh ? n : source < 0 ? source : storage[source]);
    if (kinds[n] == OutputStorage::in_place) {
      if (storage.back() < 0)
        throw ConfigError("model '{}': node '{}' works in place on the model's input", model.name, nodes[n].name);
      std::vector<int>& destroyed = held[storage.back()];
      for (int tensor : destroyed) {
        const auto& [last_reader, first_saver] = needs[tensor];
        if (first_saver >= n && last_reader <= n) continue;
        throw ConfigError("model '{}': node '{}' works in place on '{}', which '{}' still needs", model.name,
                          nodes[n].name, nodes[tensor].name, nodes[first_saver < n ? first_saver : last_reader].name);
      }
      // The others are read no more after n, and by n for the last time: nobody can destroy them again.
      std::erase_if(destroyed, [&](int tensor) { return needs[tensor].first_saver != n; });
    }
    if (storage.back() >= 0) held[storage.back()].push_back(n);
  }
}

/// A body makes no gradient of what needs none: its backward is played as it is. Every parameter gets one.
void check_gradients(const Model& model) {
  const std::vector<std::uint32_t> grads = model.grads();
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const Node& node = model.nodes[n];
    for (std::size_t i = 0; grads[n] != 0 && node.body != nullptr && i < node.inputs.size(); ++i)
      if (((node.body->input_grads & ~grads[n]) >> i & 1U) != 0)
        throw ConfigError("model '{}', node '{}': body '{}' makes the gradient of input {}, which needs none",
                          model.name, node.name, node.body->name, i);
  }
  std::map<std::string, bool> gets_one;  // by parameter
  const std::vector<OpInstance> ops = model.instances(2);
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const Signature signature = ops[n].signature();
    const bool gives = (grads[n] & kParameterGrads) != 0;
    for (std::size_t p = 0; p < signature.parameters.size(); ++p)
      gets_one[model.parameter(n, p, signature.parameters[p]).name] |= gives;
  }
  for (const auto& [name, gets] : gets_one)
    if (!gets)
      throw ConfigError(
          "model '{}': the parameter '{}' gets no gradient: the loss depends on it through nothing that "
          "has one; what isn't trained is a constant",
          model.name, name);
}

/// All ops of the table do; a body does not of what it reads detached.
bool makes_gradient_of(const Node& node, std::size_t input) {
  return node.body == nullptr || (node.body->input_grads >> input & 1U) != 0;
}

/// torch.amp.GradScaler's at first; the largest that f32 holds.
constexpr double kLossScale = 65536, kLargestLossScale = 3.4e38;

/// What it changes for this node: of ops that multiply, TF32 is the default of convolutions only.
Precision precision_of(const Model& model, const Node& node) {
  if (model.dtype != Dtype::f32) return Precision::f32;
  if (node.body == nullptr) {
    const Precision otherwise = node.kind->name == "conv2d" ? Precision::tf32 : Precision::ieee;
    return !node.kind->matrix || model.precision == otherwise ? Precision::f32 : model.precision;
  }
  const auto multiplies = [&](ProductKind kind) {
    return std::ranges::any_of(node.body->products, [&](const Body::Multiplied& product) {
      return product.kind == kind && product.dtype == Dtype::f32;
    });
  };
  const bool differs = is_autocast(model.precision)         ? node.half != nullptr
                       : model.precision == Precision::tf32 ? multiplies(ProductKind::matmul)
                                                            : multiplies(ProductKind::convolution);
  return differs ? model.precision : Precision::f32;
}

/// A body that was written for bf16; in f64 every cast is a copy.
void play_body(const Model& model, Node& node, const Body& half) {
  node.body = &body_in(half, Dtype::bf16, model.dtype == Dtype::f64 ? model.dtype : half_of(model.precision));
  node.kind = &op_table().at("aten");
  node.attributes.clear();
}

/// Imported ops as autocast plays them.
void play_in_half(Model& model, std::string_view text) {
  if (!model.no_half.empty())
    throw ConfigError("model '{}': precision={}: {}; f32, tf32 or ieee", text, to_string(model.precision),
                      model.no_half);
  for (Node& node : model.nodes) {
    if (node.half == nullptr) continue;
    if (model.no_half_parameters.empty()) node.in_f32 = {node.kind, node.attributes, node.body};
    play_body(model, node, *node.half);
  }
}

/// The model's input and target come from a file: any size may stand there.
TensorSpec checked(const Model& model, TensorSpec spec) {
  if (!fits(spec.shape))
    throw ConfigError("model '{}': a batch {} is too large; at most 2^40 elements", model.name, sim::to_string(spec));
  return spec;
}

Timing timing_from(std::string_view name, std::string_view model) {
  constexpr EnumNames<Timing, 3> kTimings{"timing", {"step", "tutorial", "epoch"}};
  if (const std::optional<Timing> timing = kTimings.find(name)) return *timing;
  throw ConfigError("model '{}': timing={} must be one of {}", model, name,
                    fmt::to_string(fmt::join(kTimings.names, ", ")));
}

}  // namespace

std::vector<OpInstance> Model::instances(std::int64_t rows) const {
  std::vector<OpInstance> ops;
  std::vector<TensorSpec> outputs;
  ops.reserve(nodes.size());
  for (const Node& node : nodes) {
    OpInstance op{node.kind, node.attributes, {}, precision_of(*this, node)};
    if (node.body != nullptr) {
      op.body = &body_in(*node.body, Dtype::f32, dtype);
      if (node.in_parts != nullptr) op.in_parts = &body_in(*node.in_parts, Dtype::f32, dtype);
      op.attributes = {
          {"batch", static_cast<double>(rows)}, {"last", 1}, {"units", static_cast<double>(op.body->units)}};
    }
    for (int from : node.inputs) op.inputs.push_back(from < 0 ? source_spec(from, rows) : outputs[from]);
    try {
      outputs.push_back(op.signature().output);
    } catch (const ConfigError& error) {
      throw ConfigError("model '{}', node '{}': {}", name, node.name, error.what());
    }
    ops.push_back(std::move(op));
  }
  return ops;
}

Model Model::with_half_parameters() const {
  Model model = *this;
  if (!no_half_parameters.empty()) throw ConfigError("model '{}': {}", name, no_half_parameters);
  const Dtype to = dtype == Dtype::f64 ? dtype : half_of(precision);
  for (Node& node : model.nodes) {
    if (node.in_f32) {
      node.kind = node.in_f32->kind;
      node.attributes = node.in_f32->attributes;
      node.body = node.in_f32->body;
    }
    node.half = node.halved;
    if (node.halved == nullptr) continue;
    if (node.in_parts != nullptr)  // of an embedding, which is the same but for the dtype
      node.in_parts = &body_in(*node.in_parts, Dtype::f32, to);
    play_body(model, node, *node.halved);
  }
  for (Given& constant : model.given)
    if (constant.is_halved) constant.spec.dtype = to;
  return model;
}

TensorSpec Model::input_spec(std::int64_t rows) const {
  TensorSpec batch{input_values.classes > 0 ? Dtype::i64 : dtype, {rows}, channels_last};
  batch.shape.insert(batch.shape.end(), input.begin(), input.end());
  return checked(*this, batch);
}

TensorSpec Model::target_spec(std::int64_t rows) const {
  const bool is_indices = nodes.back().kind->takes_class_indices;
  TensorSpec target{is_indices ? Dtype::i64 : dtype, {rows}};
  target.shape.insert(target.shape.end(), positions.begin(), positions.end());
  if (!is_indices) target.shape.push_back(classes);
  return checked(*this, target);
}

TensorSpec Model::source_spec(int input_index, std::int64_t rows) const {
  if (input_index == kModelInput) return input_spec(rows);
  if (input_index == kModelTarget) return target_spec(rows);
  TensorSpec spec = given_of(input_index).spec;
  if (spec.dtype == Dtype::f32) spec.dtype = dtype;
  if (given_of(input_index).per_sample) spec.shape.insert(spec.shape.begin(), rows);
  return checked(*this, spec);
}

std::string_view Model::source_name(int input_index) const {
  if (input_index == kModelInput) return "input";
  return input_index == kModelTarget ? "target" : std::string_view(given_of(input_index).name);
}

Initial Model::source_initial(int input_index) const {
  if (input_index == kModelInput) return input_values;
  if (input_index == kModelTarget) return {.kind = Initial::Kind::model_target, .classes = classes};
  return given_of(input_index).initial;
}

namespace {

/// torch.nn.init.xavier_uniform_ of a weight [out, in / groups, kernel…], which takes its first sizes as they are; 0 of a
/// bias.
double xavier_bound(const TensorSpec& spec) {
  if (spec.shape.size() < 2) return 0;
  const std::int64_t kernel = spec.elements() / (spec.shape[0] * spec.shape[1]);
  return std::sqrt(6 / static_cast<double>(kernel * (spec.shape[0] + spec.shape[1])));
}

}  // namespace

ParameterSpec Model::parameter(std::size_t node, std::size_t index, const ParameterSpec& own) const {
  ParameterSpec named = own;
  const std::vector<std::string>& names = nodes[node].parameters;
  named.name = names.empty() ? nodes[node].name + "." + own.name : names[index];
  if (const auto listed = parameters.find(named.name); listed != parameters.end()) {
    named.initial_bound = listed->second.initial_bound;
    named.initial_center = listed->second.initial_center;
  }
  if (nodes[node].xavier) named.initial_bound = xavier_bound(own.spec);
  return named;
}

bool Model::is_imported() const {
  return std::ranges::any_of(nodes, [](const Node& node) { return node.body != nullptr; });
}

std::vector<bool> Model::made_of_constants() const {
  std::vector<bool> is(nodes.size());
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    const Body* body = nodes[n].body;
    is[n] = body != nullptr && body->parameters.empty() && body->output.batch_dim() < 0 && !body->draws &&
            std::ranges::all_of(nodes[n].inputs, [&](int index) {
              return index < 0 ? !is_per_sample(index) : bool{is[static_cast<std::size_t>(index)]};
            });
  }
  return is;
}

bool Model::has_parameters(std::size_t node) const {
  return nodes[node].body != nullptr ? !nodes[node].body->parameters.empty() : nodes[node].kind->has_parameters;
}

int Model::node_index(std::string_view node_name) const {
  const auto found = std::ranges::find(nodes, node_name, &Node::name);
  return found == nodes.end() ? -1 : static_cast<int>(found - nodes.begin());
}

std::string Model::text() const {
  return device_batch != 0 ? fmt::format("{},device_batch={}{}", source, device_batch, options)
                           : fmt::format("{},global_batch={}{}", source, global_batch, options);
}

std::vector<std::uint32_t> Model::grads() const {
  std::vector<bool> depends;  // on a parameter
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    bool any = has_parameters(n);
    for (std::size_t i = 0; i < nodes[n].inputs.size(); ++i)
      if (const int from = nodes[n].inputs[i]; from >= 0) any |= depends[from] && makes_gradient_of(nodes[n], i);
    depends.push_back(any && !(nodes[n].body != nullptr && nodes[n].body->backward.empty()));
  }
  std::vector<std::uint32_t> made(nodes.size(), 0);
  std::vector<bool> needed(nodes.size(), false);  // of its output
  if (!nodes.empty()) needed.back() = depends.back();
  for (std::size_t n = nodes.size(); n-- > 0;) {
    if (!needed[n]) continue;
    made[n] = has_parameters(n) ? kParameterGrads : 0;
    for (std::size_t i = 0; i < nodes[n].inputs.size(); ++i)
      if (const int from = nodes[n].inputs[i]; from >= 0 && depends[from] && makes_gradient_of(nodes[n], i)) {
        made[n] |= 1U << i;
        needed[from] = true;
      }
  }
  return made;
}

namespace {

/// That its ops fit each other, its parameters and its target.
void check(const Model& model, const std::string& path) {
  check_in_place(model);
  check_gradients(model);
  const TensorSpec prediction = model.instances(2).back().inputs[0];
  Shape expected{2};
  expected.insert(expected.end(), model.positions.begin(), model.positions.end());
  expected.push_back(model.classes);
  if (prediction.shape != expected)
    throw ConfigError("{}: the last node gives {} per {} rows, but the target has classes={}{}", path,
                      sim::to_string(prediction), 2, model.classes,
                      model.positions.empty() ? "" : fmt::format(" at [{}]", fmt::join(model.positions, ",")));
}

}  // namespace

Model load_model(std::string_view text) {
  const SpecText spec(text, "model");
  spec.finish({"image", "global_batch", "device_batch", "loss", "optimizer", "dtype", "precision", "loss_scale",
               "max_grad_norm", "timing", "memory_format"});
  if (spec.head().empty()) throw ConfigError("model '{}': no name; expected name,key=value,…", text);
  const std::filesystem::path path = catalog_file("models", "model", spec.head());
  Model model = read_model_file(path);
  model.source = spec.head();
  model.global_batch = spec.integer("global_batch", model.global_batch, 1, kLargestGlobalBatch);
  model.device_batch = spec.integer("device_batch", 0, 1, kLargestGlobalBatch);
  if (spec.has("global_batch") && spec.has("device_batch"))
    throw ConfigError("model '{}': give global_batch or device_batch, not both", text);
  if (spec.has("device_batch")) model.global_batch = model.device_batch;  // on one device
  if (spec.has("image")) {
    if (model.input.size() != 3)
      throw ConfigError("model '{}': image= needs a model with input [channels, height, width]", text);
    if (model.is_imported())
      throw ConfigError("model '{}': image= can't change an imported model; import it with that --input", text);
    model.input[1] = model.input[2] = spec.integer("image", 0, 1, 100'000);
    model.options += fmt::format(",image={}", model.input[1]);
  }
  if (const std::optional<std::string> loss = spec.text("loss")) {
    model.nodes.back() = make_loss(*loss, model.nodes.back().inputs[0], fmt::format("model '{}'", text));
    model.options += ",loss=" + *loss;
  }
  if (const std::optional<std::string> optimizer = spec.text("optimizer")) {
    model.optimizer = optimizer_from_text(*optimizer);
    model.options += ",optimizer=" + optimizer_to_text(model.optimizer);
  }
  if (const std::optional<std::string> dtype = spec.text("dtype")) {
    model.dtype = dtype_from(*dtype);
    if (model.dtype != Dtype::f32 && model.dtype != Dtype::f64)
      throw ConfigError("model '{}': dtype={} must be f32 or f64{}", text, *dtype,
                        is_half(model.dtype) ? fmt::format("; half precision is precision={}",
                                                           model.dtype == Dtype::bf16 ? "bf16" : "fp16")
                                             : "");
    model.options += ",dtype=" + *dtype;
  }
  if (const std::optional<std::string> precision = spec.text("precision")) {
    try {
      model.precision = precision_from(*precision);
    } catch (const ConfigError& error) {
      throw ConfigError("model '{}': {}", text, error.what());
    }
    if (model.precision != Precision::f32) model.options += ",precision=" + *precision;
  }
  if (is_autocast(model.precision)) play_in_half(model, text);
  if (model.precision == Precision::fp16) model.loss_scale = kLossScale;
  if (spec.has("loss_scale")) {
    if (model.precision != Precision::fp16)
      throw ConfigError("model '{}': loss_scale= is for precision=fp16, whose smallest number is 6e-8", text);
    model.loss_scale = spec.number("loss_scale", 0, 0, kLargestLossScale);
    model.options += fmt::format(",loss_scale={}", model.loss_scale);
  }
  if (spec.has("max_grad_norm")) {
    model.max_grad_norm = spec.number("max_grad_norm", 0, 0, 1e30);
    if (model.max_grad_norm > 0) model.options += fmt::format(",max_grad_norm={}", model.max_grad_norm);
  }
  if (const std::optional<std::string> timing = spec.text("timing")) {
    model.timing = timing_from(*timing, text);
    if (model.timing == Timing::tutorial && (model.input_values.classes > 0 || model.input_values.bound > 0 ||
                                             !model.given.empty() || !model.positions.empty()))
      throw ConfigError("model '{}': timing=tutorial makes random images and one class each; this model takes others",
                        text);
    if (model.timing != Timing::step) model.options += ",timing=" + *timing;
  }
  if (const std::optional<std::string> format = spec.text("memory_format")) {
    if (*format != "contiguous" && *format != "channels_last")
      throw ConfigError("model '{}': memory_format={} must be contiguous or channels_last", text, *format);
    model.channels_last = *format == "channels_last";
    if (model.channels_last && model.input.size() != 3)
      throw ConfigError("model '{}': memory_format=channels_last needs a model with input [channels, height, width]",
                        text);
    if (model.channels_last) model.options += ",memory_format=" + *format;
  }
  check(model, path.string());
  if (is_autocast(model.precision) && model.is_imported() && model.no_half_parameters.empty())
    check(model.with_half_parameters(), path.string());
  return model;
}

std::vector<NodeSummary> summarize(const Model& model, std::int64_t rows) {
  const std::vector<OpInstance> ops = model.instances(rows);
  const std::vector<std::uint32_t> all_grads = model.grads();
  std::vector<NodeSummary> rows_out;
  std::set<std::string> seen;  // parameters
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const Signature s = ops[n].signature();
    NodeSummary row{model.nodes[n].name, std::string(ops[n].name()), s.output.shape};
    for (std::size_t p = 0; p < s.parameters.size(); ++p)
      if (seen.insert(model.parameter(n, p, s.parameters[p]).name).second)
        row.parameters += s.parameters[p].spec.elements();
    const std::uint32_t grads = all_grads[n];
    const Demand forward = ops[n].demand(Pass::forward);
    const Demand backward = s.backward_is_alias || grads == 0 ? Demand{} : ops[n].demand(Pass::backward, grads);
    row.forward_flops = forward.flops;
    row.backward_flops = backward.flops;
    row.forward_bytes = forward.bytes;
    row.backward_bytes = backward.bytes;
    if (s.storage == OutputStorage::fresh) row.activation_bytes += s.output.bytes();
    for (const SavedSpec& saved : s.saved) row.activation_bytes += saved.spec.bytes();
    rows_out.push_back(std::move(row));
  }
  return rows_out;
}

std::int64_t parameter_count(const Model& model) {
  std::int64_t count = 0;
  for (const NodeSummary& node : summarize(model, 2)) count += node.parameters;
  return count;
}

}  // namespace sim
