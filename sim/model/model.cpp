#include "sim/model/model.hpp"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using Json = nlohmann::json;

// What a file may ask for: more than ten times the nodes of any model we know, and read in a second or so.
constexpr std::size_t kMostNodes = 20'000, kLongestName = 300;
constexpr std::int64_t kMostRepeats = 10'000, kLargestIndex = 1'000'000'000;

/// Nodes of one list get their inputs by name inside this scope.
struct Scope {
  std::string prefix;
  std::map<std::string, int> names;  // local name → node index (or kModelInput)
};

/// Reads the nodes of a model file: expands blocks and repeats, resolves names.
class NodeReader {
 public:
  NodeReader(JsonObject& file, Model& model) : model_(model), where_(file.where()) {
    if (!file.has("blocks")) return;
    JsonObject blocks = file.object("blocks");
    for (const std::string& name : blocks.keys()) {
      JsonObject block = blocks.object(name);
      blocks_.emplace(name, block.value("nodes"));
      block.finish();
    }
  }

  void read(const Json& nodes) {
    Scope scope{"", {{"input", kModelInput}}};
    last_ = kModelInput;
    read_list(nodes, scope, nullptr, where_ + ": nodes");
  }
  [[nodiscard]] int last() const { return last_; }

 private:
  /// `arguments` are the keys of the block instance, for "$key"; null outside of blocks.
  void read_list(const Json& nodes, Scope& scope, const Json* arguments, const std::string& where) {
    if (!nodes.is_array() || nodes.empty()) throw ConfigError("{}: must be a list of nodes", where);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::string place = fmt::format("{}[{}]", where, i);
      if (!nodes[i].is_object()) throw ConfigError("{}: must be a JSON object", place);
      Json node = nodes[i];
      if (arguments != nullptr)
        for (auto& [key, value] : node.items())
          if (value.is_string() && value.get_ref<const std::string&>().starts_with('$')) {
            const std::string name = value.get<std::string>().substr(1);
            if (!arguments->contains(name))
              throw ConfigError("{}: '{}' wants ${}, which the block's user doesn't give", place, key, name);
            value = arguments->at(name);
          }
      if (node.contains("block"))
        read_block(node, scope, place);
      else
        read_node(JsonObject(node, place), scope);
    }
  }

  void read_block(const Json& json, Scope& scope, const std::string& place) {
    JsonObject node(json, place);
    const std::string block = node.text("block"), name = node.text("name");
    const auto found = blocks_.find(block);
    if (found == blocks_.end()) throw ConfigError("{}: unknown block '{}'", place, block);
    check_arguments(node, found->second, block);
    if (++depth_ > 16) throw ConfigError("{}: blocks lie more than 16 deep in each other", place);
    const std::int64_t first = node.integer("first", 0), repeat = node.integer("repeat", 1);
    if (repeat < 1 || repeat > kMostRepeats)
      throw ConfigError("{}: repeat={} must be from 1 to {}", place, repeat, kMostRepeats);
    if (first < 0 || first > kLargestIndex)
      throw ConfigError("{}: first={} must be from 0 to {}", place, first, kLargestIndex);
    if (repeat > 1 && name.find("{i}") == std::string::npos)
      throw ConfigError("{}: the name '{}' of a repeated block needs {{i}}", place, name);
    for (std::int64_t i = first; i < first + repeat; ++i) {
      std::string instance = name;
      if (const std::size_t at = instance.find("{i}"); at != std::string::npos)
        instance.replace(at, 3, std::to_string(i));
      Scope inner{scope.prefix + instance + ".", {{"in", last_}}};
      read_list(found->second, inner, &json, where_ + ": block " + block);
      scope.names[instance] = last_;
    }
    --depth_;
  }

  /// Every key that a block's user gives must be one that the block asks for.
  static void check_arguments(const JsonObject& user, const Json& nodes, const std::string& block) {
    std::set<std::string> known{"block", "name", "first", "repeat"};
    for (const Json& node : nodes)
      if (node.is_object())
        for (const auto& [key, value] : node.items())
          if (value.is_string() && value.get_ref<const std::string&>().starts_with('$'))
            known.insert(value.get<std::string>().substr(1));
    for (const std::string& key : user.keys())
      if (!known.contains(key))
        throw ConfigError("{}: unknown key '{}'; block '{}' takes {}", user.where(), key, block,
                          fmt::to_string(fmt::join(known, ", ")));
  }

  void read_node(JsonObject json, Scope& scope) {
    if (model_.nodes.size() >= kMostNodes) throw ConfigError("{}: more than {} nodes", json.where(), kMostNodes);
    Node node;
    const std::string local = json.text("name");
    node.name = scope.prefix + local;
    if (node.name.size() > kLongestName)
      throw ConfigError("{}: the node name '{}…' is longer than {} bytes", json.where(), node.name.substr(0, 40),
                        kLongestName);
    if (node.name.starts_with("grad."))
      throw ConfigError("{}: '{}' is not a node name ('grad.' begins the names of gradients)", json.where(), node.name);
    if (node.name.find_first_of(" \t\n\"") != std::string::npos || local.empty())
      throw ConfigError("{}: '{}' is not a node name (no spaces or quotes, not empty)", json.where(), node.name);
    if (scope.names.contains(local) || !taken_.insert(node.name).second)
      throw ConfigError("{}: the name '{}' is taken", json.where(), node.name);
    const std::string op = json.text("op");
    try {
      node.kind = &op_table().at(op);
    } catch (const ConfigError& error) {
      throw ConfigError("{}: node '{}': {}", json.where(), node.name, error.what());
    }
    if (node.kind->role != OpRole::layer)
      throw ConfigError("{}: node '{}': op '{}' is no layer; a loss is the model's key 'loss'", json.where(), node.name,
                        node.kind->name);
    if (json.has("inputs")) {
      for (const std::string& input : json.texts("inputs")) {
        const auto found = scope.names.find(input);
        if (found == scope.names.end())
          throw ConfigError("{}: node '{}': input '{}' is no earlier node of this list", json.where(), node.name,
                            input);
        node.inputs.push_back(found->second);
      }
    } else {
      node.inputs = {last_};
    }
    if (node.inputs.size() != static_cast<std::size_t>(node.kind->inputs))
      throw ConfigError("{}: node '{}': op '{}' takes {} inputs, found {}", json.where(), node.name, node.kind->name,
                        node.kind->inputs, node.inputs.size());
    Attributes given;
    for (const std::string& key : json.keys()) {
      if (key == "name" || key == "op" || key == "inputs") continue;
      const Json& value = json.value(key);
      if (value.is_boolean())
        given[key] = value.get<bool>() ? 1 : 0;
      else
        given[key] = json.number(key);
    }
    node.attributes = complete_attributes(*node.kind, given, fmt::format("{}: node '{}'", json.where(), node.name));
    last_ = static_cast<int>(model_.nodes.size());
    scope.names[local] = last_;
    model_.nodes.push_back(std::move(node));
  }

  Model& model_;
  std::string where_;
  std::map<std::string, Json> blocks_;
  std::set<std::string> taken_{"input", "target", "loss"};  // full names; these are tensors or nodes of every model
  int last_ = kModelInput, depth_ = 0;
};

/// The op kind of this name and role; `what` names the role in messages.
const OpKind& kind_of(const std::string& name, OpRole role, std::string_view what, const std::string& where) {
  std::vector<std::string_view> names;
  for (const OpKind& kind : op_table()) {
    if (kind.role != role) continue;
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  throw ConfigError("{}: '{}' is no {}; known: {}{}", where, name, what, fmt::to_string(fmt::join(names, ", ")),
                    did_you_mean(name, names));
}

OpInstance optimizer_from(const std::string& name, const Attributes& given, const std::string& where) {
  const OpKind& kind = kind_of(name, OpRole::optimizer, "optimizer", where);
  return {&kind, complete_attributes(kind, given, where), {}};
}

/// "sgd:lr=0.1:momentum=0.9".
OpInstance optimizer_from_text(const std::string& text) {
  std::string items = text;
  std::replace(items.begin(), items.end(), ':', ',');
  const SpecText spec(items, "optimizer");
  Attributes given;
  for (const auto& [key, value] : spec.items()) given[key] = spec.number(key, 0, -1e30, 1e30);
  return optimizer_from(spec.head(), given, fmt::format("optimizer '{}'", text));
}

std::string optimizer_to_text(const OpInstance& optimizer) {
  std::string text(optimizer.kind->name);
  for (const auto& [name, value] : optimizer.attributes) text += fmt::format(":{}={}", name, value);
  return text;
}

void append_loss(Model& model, const std::string& name, int prediction, const std::string& where) {
  const OpKind& kind = kind_of(name, OpRole::loss, "loss", where);
  model.nodes.push_back({"loss", &kind, complete_attributes(kind, {}, where), {prediction, kModelTarget}});
}

/// An in-place op destroys every tensor in its first input's storage: nobody else may need one of them afterwards.
void check_in_place(const Model& model) {
  const int nodes = static_cast<int>(model.nodes.size());
  auto node_of = [&](int n) -> const Node& { return model.nodes[static_cast<std::size_t>(n)]; };
  // Who needs an output: the last node that reads it, and the first one whose backward does (its own node as the
  // output, others as an input). None: −1 and `nodes`.
  struct Need {
    int last_reader = -1, first_saver = 0;
  };
  std::vector<Need> needs(model.nodes.size(), {-1, nodes});
  std::vector<OutputStorage> kinds;
  const std::vector<OpInstance> ops = model.instances(2);
  for (int n = 0; n < nodes; ++n) {
    const Signature s = ops[static_cast<std::size_t>(n)].signature();
    kinds.push_back(s.storage);
    for (int source : node_of(n).inputs)
      if (source >= 0) needs[static_cast<std::size_t>(source)].last_reader = n;
    for (const Operand& o : s.backward_reads) {
      const int tensor = o.from == Operand::From::output  ? n
                         : o.from == Operand::From::input ? node_of(n).inputs[static_cast<std::size_t>(o.index)]
                                                          : kModelInput;
      if (tensor >= 0)
        needs[static_cast<std::size_t>(tensor)].first_saver =
            std::min(needs[static_cast<std::size_t>(tensor)].first_saver, n);
    }
  }
  std::vector<int> storage;  // of every output: the node that allocated it, or kModelInput
  std::vector<std::vector<int>> held(model.nodes.size());  // by allocating node: the tensors not yet destroyed
  for (int n = 0; n < nodes; ++n) {
    const int source = node_of(n).inputs[0];
    storage.push_back(kinds[static_cast<std::size_t>(n)] == OutputStorage::fresh ? n
                      : source < 0                                               ? source
                                   : storage[static_cast<std::size_t>(source)]);
    if (kinds[static_cast<std::size_t>(n)] == OutputStorage::in_place) {
      if (storage.back() < 0)
        throw ConfigError("model '{}': node '{}' works in place on the model's input", model.name, node_of(n).name);
      std::vector<int>& destroyed = held[static_cast<std::size_t>(storage.back())];
      for (int tensor : destroyed) {
        const Need& need = needs[static_cast<std::size_t>(tensor)];
        if (need.first_saver >= n && need.last_reader <= n) continue;
        throw ConfigError("model '{}': node '{}' works in place on '{}', which '{}' still needs", model.name,
                          node_of(n).name, node_of(tensor).name,
                          node_of(need.first_saver < n ? need.first_saver : need.last_reader).name);
      }
      // The others are read no more after n, and by n for the last time: nobody can destroy them again.
      std::erase_if(destroyed, [&](int tensor) { return needs[static_cast<std::size_t>(tensor)].first_saver != n; });
    }
    if (storage.back() >= 0) held[static_cast<std::size_t>(storage.back())].push_back(n);
  }
}

/// The model's input and target come from a file: any size may stand there.
TensorSpec checked(const Model& model, TensorSpec spec) {
  if (!fits(spec.shape))
    throw ConfigError("model '{}': a batch {} is too large; at most 2^40 elements", model.name, sim::to_string(spec));
  return spec;
}

Timing timing_from(std::string_view name, std::string_view model) {
  constexpr std::array<std::string_view, 3> kNames{"step", "tutorial", "epoch"};  // as in Timing
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end())
    throw ConfigError("model '{}': timing={} must be one of {}", model, name, fmt::to_string(fmt::join(kNames, ", ")));
  return static_cast<Timing>(found - kNames.begin());
}

}  // namespace

std::vector<OpInstance> Model::instances(std::int64_t rows) const {
  std::vector<OpInstance> ops;
  std::vector<TensorSpec> outputs;
  ops.reserve(nodes.size());
  for (const Node& node : nodes) {
    OpInstance op{node.kind, node.attributes, {}};
    for (int from : node.inputs)
      op.inputs.push_back(from == kModelInput    ? input_spec(rows)
                          : from == kModelTarget ? target_spec(rows)
                                                 : outputs[static_cast<std::size_t>(from)]);
    try {
      outputs.push_back(op.signature().output);
    } catch (const ConfigError& error) {
      throw ConfigError("model '{}', node '{}': {}", name, node.name, error.what());
    }
    ops.push_back(std::move(op));
  }
  return ops;
}

TensorSpec Model::input_spec(std::int64_t rows) const {
  TensorSpec batch{dtype, {rows}};
  batch.shape.insert(batch.shape.end(), input.begin(), input.end());
  return checked(*this, batch);
}

TensorSpec Model::target_spec(std::int64_t rows) const {
  if (nodes.back().kind->name == "cross_entropy") return {Dtype::i64, {rows}};
  return checked(*this, {dtype, {rows, classes}});
}

int Model::node_index(std::string_view node_name) const {
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (nodes[i].name == node_name) return static_cast<int>(i);
  return -1;
}

std::string Model::text() const { return fmt::format("{},global_batch={}{}", source, global_batch, options); }

std::vector<bool> Model::outputs_need_grad() const {
  std::vector<bool> needed;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    bool any = nodes[n].kind->has_parameters;
    for (int from : nodes[n].inputs) any |= from >= 0 && needed[static_cast<std::size_t>(from)];
    needed.push_back(any);
  }
  return needed;
}

std::uint32_t Model::grads(std::size_t node, const std::vector<bool>& needed) const {
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < nodes[node].inputs.size(); ++i)
    if (const int from = nodes[node].inputs[i]; from >= 0 && needed[static_cast<std::size_t>(from)]) bits |= 1U << i;
  return bits | (nodes[node].kind->has_parameters ? kParameterGrads : 0);
}

Model load_model(std::string_view text) {
  const SpecText spec(text, "model");
  spec.finish({"image", "global_batch", "loss", "optimizer", "dtype", "timing"});
  if (spec.head().empty()) throw ConfigError("model '{}': no name; expected name,key=value,…", text);
  const std::filesystem::path path = catalog_file("models", "model", spec.head());
  JsonObject file = read_json_file(path);
  if (const std::string format = file.text("format"); format != "paragauge-model-1")
    throw ConfigError("{}: format '{}' is not 'paragauge-model-1'", path.string(), format);
  Model model;
  model.name = file.text("name");
  model.description = file.text("description", "");
  model.input = file.integers("input");
  if (model.input.empty()) throw ConfigError("{}: 'input' must list at least one size", path.string());
  for (std::int64_t size : model.input)
    if (size < 1 || size > 1'000'000)
      throw ConfigError("{}: 'input' sizes must be from 1 to 1000000, found {}", path.string(), size);
  JsonObject target = file.object("target");
  model.classes = target.integer("classes");
  target.finish();
  model.global_batch = file.integer("global_batch", 1);
  if (model.classes < 1 || model.global_batch < 1)
    throw ConfigError("{}: 'classes' and 'global_batch' must be positive", path.string());
  if (model.classes > kMostElements || model.global_batch > 10'000'000)
    throw ConfigError("{}: 'classes' must be at most {} and 'global_batch' at most 10000000, found {} and {}",
                      path.string(), kMostElements, model.classes, model.global_batch);
  model.dtype = dtype_from(spec.text("dtype").value_or("f32"));
  if (model.dtype != Dtype::f32 && model.dtype != Dtype::f64)
    throw ConfigError("model '{}': dtype={} must be f32 or f64", text, to_string(model.dtype));

  model.timing = timing_from(spec.text("timing").value_or("step"), text);

  if (spec.has("image")) {
    if (model.input.size() != 3)
      throw ConfigError("model '{}': image= needs a model with input [channels, height, width]", text);
    model.input[1] = model.input[2] = spec.integer("image", 0, 1, 100'000);
  }
  model.global_batch = spec.integer("global_batch", model.global_batch, 1, 10'000'000);

  NodeReader reader(file, model);
  reader.read(file.value("nodes"));
  const std::string loss = file.text("loss");
  append_loss(model, spec.text("loss").value_or(loss), reader.last(),
              spec.has("loss") ? fmt::format("model '{}'", text) : path.string());

  JsonObject optimizer = file.object("optimizer");
  if (const std::optional<std::string> given = spec.text("optimizer")) {
    model.optimizer = optimizer_from_text(*given);
  } else {
    Attributes attributes;
    const std::string kind = optimizer.text("kind");
    for (const std::string& key : optimizer.keys())
      if (key != "kind") attributes[key] = optimizer.number(key);
    model.optimizer = optimizer_from(kind, attributes, optimizer.where());
  }
  if (file.has("cuts")) {
    JsonObject cuts = file.object("cuts");
    for (const std::string& name : cuts.keys()) model.cuts[name] = cuts.texts(name);
  }
  file.finish();

  model.source = spec.head();
  if (spec.has("image")) model.options += fmt::format(",image={}", model.input[1]);
  if (spec.has("loss")) model.options += ",loss=" + std::string(model.nodes.back().kind->name);
  if (spec.has("optimizer")) model.options += ",optimizer=" + optimizer_to_text(model.optimizer);
  if (spec.has("dtype")) model.options += ",dtype=" + std::string(to_string(model.dtype));
  if (model.timing != Timing::step) model.options += fmt::format(",timing={}", *spec.text("timing"));
  std::vector<bool> used(model.nodes.size());
  for (const Node& node : model.nodes)
    for (int source : node.inputs)
      if (source >= 0) used[static_cast<std::size_t>(source)] = true;
  for (std::size_t n = 0; n + 1 < model.nodes.size(); ++n)
    if (!used[n]) throw ConfigError("{}: nobody reads the output of node '{}'", path.string(), model.nodes[n].name);
  check_in_place(model);
  const TensorSpec prediction = model.instances(2).back().inputs[0];
  if (prediction.shape != Shape{2, model.classes})
    throw ConfigError("{}: the last node gives {} per {} rows, but the target has classes={}", path.string(),
                      sim::to_string(prediction), 2, model.classes);
  return model;
}

std::vector<NodeSummary> summarize(const Model& model, std::int64_t rows) {
  const std::vector<OpInstance> ops = model.instances(rows);
  const std::vector<bool> needed = model.outputs_need_grad();
  std::vector<NodeSummary> rows_out;
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const Signature s = ops[n].signature();
    NodeSummary row{model.nodes[n].name, std::string(ops[n].kind->name), s.output.shape};
    for (const ParameterSpec& parameter : s.parameters) row.parameters += parameter.spec.elements();
    const std::uint32_t grads = model.grads(n, needed);
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
  for (const OpInstance& op : model.instances(2))
    for (const ParameterSpec& parameter : op.signature().parameters) count += parameter.spec.elements();
  return count;
}

}  // namespace sim
