#include "sim/model/model_file.hpp"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include "sim/model/imported_file.hpp"

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

/// "width" of "$width": which of its block's arguments a value is.
std::optional<std::string> argument_of(const Json& value) {
  if (!value.is_string() || !value.get_ref<const std::string&>().starts_with('$')) return std::nullopt;
  return value.get<std::string>().substr(1);
}

/// The op kind of this name and role; `what` names it in messages ("a loss").
const OpKind& kind_of(const std::string& name, OpRole role, std::string_view what, const std::string& where) {
  std::vector<std::string_view> names;
  for (const OpKind& kind : op_table()) {
    if (kind.role != role) continue;
    if (kind.name == name) return kind;
    if (kind.inputs != OpKind::kAsBody) names.push_back(kind.name);  // nobody writes bodies by hand
  }
  throw ConfigError("{}: '{}' is not {}; known: {}{}", where, name, what, fmt::to_string(fmt::join(names, ", ")),
                    did_you_mean(name, names));
}

/// Reads the nodes of a model file: expands blocks and repeats, resolves names.
class NodeReader {
 public:
  /// halved: bodies where parameters are in half precision.
  NodeReader(JsonObject& file, Model& model, Bodies bodies, Bodies half, Bodies halved)
      : model_(model),
        where_(file.where()),
        bodies_(std::move(bodies)),
        half_(std::move(half)),
        halved_(std::move(halved)) {
    if (!file.has("blocks")) return;
    JsonObject blocks = file.object("blocks");
    for (const std::string& name : blocks.keys()) {
      JsonObject block = blocks.object(name);
      blocks_.emplace(name, block.value("nodes"));
      block.finish();
    }
  }

  /// The index of the last node.
  int read(const Json& nodes) {
    Scope scope{"", {{"input", kModelInput}}};
    for (std::size_t g = 0; g < model_.given.size(); ++g)
      scope.names[model_.given[g].name] = kModelGiven - static_cast<int>(g);
    read_list(nodes, scope, nullptr, where_ + ": nodes");
    return last_;
  }

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
          if (const std::optional<std::string> name = argument_of(value)) {
            if (!arguments->contains(*name))
              throw ConfigError("{}: '{}' wants ${}, which the block's user doesn't give", place, key, *name);
            value = arguments->at(*name);
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
          if (const std::optional<std::string> name = argument_of(value)) known.insert(*name);
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
    const std::string op = json.text("op"), place = fmt::format("{}: node '{}'", json.where(), node.name);
    if (const OpKind* other = op_table().find(op); other != nullptr && other->role == OpRole::loss)
      throw ConfigError("{}: '{}' is a loss: the model's key 'loss'", place, op);
    node.kind = &kind_of(op, OpRole::layer, "a layer", place);
    if (!json.has("inputs")) node.inputs = {last_};
    for (const std::string& input : json.has("inputs") ? json.texts("inputs") : std::vector<std::string>()) {
      const auto found = scope.names.find(input);
      if (found == scope.names.end())
        throw ConfigError("{}: input '{}' is not an earlier node of this list", place, input);
      node.inputs.push_back(found->second);
    }
    if (node.kind->inputs == OpKind::kAsBody) node.body = &read_body(json, "body", place);
    if (json.has("in_parts")) node.in_parts = &read_in_parts(json, node, place);
    if (json.has("parameters")) node.parameters = read_parameters(json, node, place);
    if (json.has("half")) node.half = &read_half_body(json, "half", half_, node, place);
    if (json.has("half_parameters")) {
      node.halved = &read_half_body(json, "half_parameters", halved_, node, place);
      check_halved(node, place);
    }
    if (node.half != nullptr && node.in_parts != nullptr)
      throw ConfigError(
          "{}: 'half' and 'in_parts' are for different nodes: what lies in parts in half precision is unknown", place);
    const std::size_t takes =
        node.body != nullptr ? node.body->inputs.size() : static_cast<std::size_t>(node.kind->inputs);
    if (node.inputs.size() != takes)
      throw ConfigError("{}: op '{}' takes {} inputs, found {}", place, op, takes, node.inputs.size());
    Attributes given;
    for (const std::string& key : json.keys())
      if (key != "name" && key != "op" && key != "inputs" && key != "body" && key != "half" && key != "in_parts" &&
          key != "half_parameters" && key != "parameters" && key != "initial")
        given[key] = json.value(key).is_boolean() ? json.boolean(key, false) : json.number(key);
    if (node.body == nullptr) node.attributes = complete_attributes(*node.kind, given, place);
    if (json.has("initial")) read_initial(json, node, place);
    if (node.body != nullptr && !given.empty())
      throw ConfigError(
          "{}: '{}' isn't known of an imported op; name, op, body, half, half_parameters, in_parts, inputs, parameters",
          place, given.begin()->first);
    last_ = static_cast<int>(model_.nodes.size());
    scope.names[local] = last_;
    model_.nodes.push_back(std::move(node));
  }

  static void read_initial(JsonObject& json, Node& node, const std::string& place) {
    if (node.kind->name != "conv2d" && node.kind->name != "linear")
      throw ConfigError("{}: 'initial' is of conv2d and linear, not of op '{}'", place, node.kind->name);
    if (const std::string initial = json.text("initial"); initial != "xavier_uniform")
      throw ConfigError("{}: initial '{}' isn't known; known: xavier_uniform; without it, PyTorch's default", place,
                        initial);
    node.xavier = true;
  }

  const Body& read_body(JsonObject& json, std::string_view key, const std::string& place) const {
    const std::string name = json.text(key);
    const auto found = bodies_.find(name);
    if (found != bodies_.end()) return *found->second;
    if (bodies_.empty())
      throw ConfigError("{}: op 'aten' is for imported models (paragauge-model-2), which have bodies", place);
    throw ConfigError("{}: unknown body '{}'", place, name);
  }

  /// What takes the place of the node's own body, or of its op, in half precision.
  static const Body& read_half_body(JsonObject& json, std::string_view key, const Bodies& bodies, const Node& node,
                                    const std::string& place) {
    const std::string name = json.text(key);
    const auto found = bodies.find(name);
    if (found == bodies.end()) throw ConfigError("{}: unknown body '{}' for half precision", place, name);
    const Body& half = *found->second;
    const bool has_own_parameters = node.body == nullptr && node.kind->has_parameters;
    if (has_own_parameters || half.parameters.size() != (node.body != nullptr ? node.body->parameters.size() : 0) ||
        half.inputs.size() != node.inputs.size())
      throw ConfigError("{}: body '{}' for half precision takes other inputs or parameters than the node has", place,
                        name);
    return half;
  }

  /// What it takes and gives, with all units.
  static std::vector<TensorSpec> specs(const Body& body) {
    const Extent all{.batch = 1, .units = body.units};
    std::vector<TensorSpec> found;
    for (const PartSpec& spec : body.inputs) found.push_back(spec.in_module(all));
    for (const PartSpec& spec : body.parameters) found.push_back(spec.in_module(all));
    found.push_back(body.output.in_module(all));
    return found;
  }

  /// A body where parameters are bf16; what takes its place in parts has the same types then.
  static void check_halved(const Node& node, const std::string& place) {
    const Body& halved = *node.halved;
    const auto shapes = [](const Body& body) {
      std::vector<Shape> all;
      for (const TensorSpec& spec : specs(body)) all.push_back(spec.shape);
      return all;
    };
    if (node.body != nullptr && (shapes(halved) != shapes(*node.body) || halved.input_grads != node.body->input_grads ||
                                 halved.backward.empty() != node.body->backward.empty()))
      throw ConfigError("{}: body '{}' for half precision has other shapes or gradients than the node's", place,
                        halved.name);
    for (const PartSpec& parameter : halved.parameters)
      if (parameter.dtype != Dtype::bf16)
        throw ConfigError("{}: parameters of body '{}' must be bf16, found {}", place, halved.name,
                          to_string(parameter.dtype));
    if (node.in_parts != nullptr && specs(body_in(*node.in_parts, Dtype::f32, Dtype::bf16)) != specs(halved))
      throw ConfigError("{}: body '{}' takes and gives other types than the one in parts does in bf16", place,
                        halved.name);
  }

  /// With all units it takes and gives what the node's own body does.
  const Body& read_in_parts(JsonObject& json, const Node& node, const std::string& place) const {
    const Body& parts = read_body(json, "in_parts", place);
    if (node.body == nullptr || node.body->units > 1 || parts.units == 1 || specs(*node.body) != specs(parts) ||
        node.body->inputs.size() != parts.inputs.size() || node.body->input_grads != parts.input_grads ||
        node.body->backward.empty() != parts.backward.empty())
      throw ConfigError(
          "{}: body '{}' isn't the node's in parts: it must have units, and the same inputs, parameters, "
          "output and gradients with all of them",
          place, json.text("in_parts"));
    return parts;
  }

  /// Names into the model's table of parameters.
  std::vector<std::string> read_parameters(JsonObject& json, const Node& node, const std::string& place) const {
    std::vector<std::string> names = json.texts("parameters");
    if (node.body != nullptr && names.size() != node.body->parameters.size())
      throw ConfigError("{}: body '{}' takes {} parameters, found {}", place, node.body->name,
                        node.body->parameters.size(), names.size());
    for (std::size_t p = 0; p < names.size(); ++p) {
      const auto listed = model_.parameters.find(names[p]);
      if (listed == model_.parameters.end())
        throw ConfigError("{}: unknown parameter '{}'; the file's 'parameters' lists them", place, names[p]);
      if (node.body == nullptr) continue;
      const TensorSpec takes = node.body->parameters[p].in_module({.units = node.body->units});
      if (takes.shape != listed->second.spec.shape)
        throw ConfigError("{}: parameter '{}' is {}, body '{}' takes {}", place, names[p],
                          to_string(listed->second.spec), node.body->name, to_string(takes));
    }
    return names;
  }

  Model& model_;
  std::string where_;
  Bodies bodies_, half_, halved_;
  std::map<std::string, Json> blocks_;
  std::set<std::string> taken_{"input", "target", "loss"};  // full names; these are tensors or nodes of every model
  int last_ = kModelInput, depth_ = 0;
};

OpInstance read_optimizer(JsonObject json) {
  Attributes attributes;
  const std::string kind = json.text("kind");
  for (const std::string& key : json.keys())
    if (key != "kind") attributes[key] = json.number(key);
  return make_optimizer(kind, attributes, json.where());
}

/// What a step's batch looks like: input, target, global_batch.
void read_batch(JsonObject& file, Model& model) {
  const std::string& where = file.where();
  model.input = file.integers("input");
  if (model.input.empty()) throw ConfigError("{}: 'input' must list at least one size", where);
  for (std::int64_t size : model.input)
    if (size < 1 || size > 1'000'000)
      throw ConfigError("{}: 'input' sizes must be from 1 to 1000000, found {}", where, size);
  JsonObject target = file.object("target");
  model.classes = target.integer("classes");
  target.finish();
  model.global_batch = file.integer("global_batch", 1);
  if (model.classes < 1 || model.global_batch < 1)
    throw ConfigError("{}: 'classes' and 'global_batch' must be positive", where);
  if (model.classes > kMostElements || model.global_batch > kLargestGlobalBatch)
    throw ConfigError("{}: 'classes' must be at most {} and 'global_batch' at most {}, found {} and {}", where,
                      kMostElements, kLargestGlobalBatch, model.classes, model.global_batch);
}

void check_all_are_read(const Model& model, const std::string& where) {
  std::vector<bool> read(model.nodes.size());
  for (const Node& node : model.nodes)
    for (int source : node.inputs)
      if (source >= 0) read[static_cast<std::size_t>(source)] = true;
  for (std::size_t n = 0; n + 1 < model.nodes.size(); ++n)
    if (!read[n]) throw ConfigError("{}: nobody reads the output of node '{}'", where, model.nodes[n].name);
}

}  // namespace

Node make_loss(const std::string& kind_name, int prediction, const std::string& where) {
  const OpKind& kind = kind_of(kind_name, OpRole::loss, "a loss", where);
  return {"loss", &kind, complete_attributes(kind, {}, where), {prediction, kModelTarget}};
}

OpInstance make_optimizer(const std::string& kind_name, const Attributes& given, const std::string& where) {
  const OpKind& kind = kind_of(kind_name, OpRole::optimizer, "an optimizer", where);
  return {&kind, complete_attributes(kind, given, where), {}};
}

std::string model_description(const std::filesystem::path& path) {
  return read_json_file(path).text("description", "");
}

Model read_model_file(const std::filesystem::path& path) {
  JsonObject file = read_json_file(path);
  const bool is_imported = file.text("format") != "paragauge-model-1";
  if (is_imported) check_format(file, "paragauge-model", 2, "write it as sim/model/model_file.hpp says");
  Model model;
  model.name = file.text("name");
  model.description = file.text("description", "");
  Bodies bodies, half, halved;
  if (is_imported) {
    bodies = read_imported(file, model);
    half = read_half(file, model);
    halved = read_half_parameters(file, model);
  } else {
    read_batch(file, model);
  }
  const int last =
      NodeReader(file, model, std::move(bodies), std::move(half), std::move(halved)).read(file.value("nodes"));
  model.nodes.push_back(make_loss(file.text("loss"), last, path.string()));
  model.optimizer = read_optimizer(file.object("optimizer"));
  if (file.has("cuts")) {
    JsonObject cuts = file.object("cuts");
    for (const std::string& name : cuts.keys()) model.cuts[name] = cuts.texts(name);
  }
  if (is_imported && file.has("units")) model.units = file.texts("units");
  if (!model.is_imported()) model.no_half.clear();  // sim knows all ops itself
  file.finish();
  check_all_are_read(model, path.string());
  return model;
}

}  // namespace sim
