#include "sim/strategy/strategy.hpp"

#include <map>

#include "sim/error.hpp"
#include "sim/model/model_file.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/option/option.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

/// They are too many for one line, where one of them is meant.
const StrategyKind& kind_named(std::string_view preset) {
  const Table<StrategyKind>& table = strategy_table();
  if (preset.empty()) preset = "mesh";
  if (const StrategyKind* kind = table.find(preset)) return *kind;
  if (const auto kind = std::ranges::find(table, preset, &StrategyKind::also); kind != table.end()) return *kind;
  std::vector<std::string_view> names;
  for (const StrategyKind& kind : table) names.push_back(kind.name);
  if (const std::string meant = did_you_mean(preset, names); !meant.empty())
    throw ConfigError("unknown strategy '{}'{} `paragauge list` names all", preset, meant);
  return table.at(preset);  // throws
}

/// What `kind` doesn't take but others do is no mistyped key: they are named.
void check_keys(const SpecText& text, const StrategyKind& kind) {
  const std::vector<std::string_view> known = kind.key_names();
  for (const auto& [key, value] : text.items()) {
    std::vector<std::string_view> others;
    for (const StrategyKind& other : strategy_table())
      if (other.takes(key)) others.push_back(other.name);
    if (kind.takes(key) || others.empty()) continue;
    throw ConfigError("strategy '{}': '{}' takes no '{}', but {}; known: {}", text.whole(), kind.name, key,
                      fmt::to_string(fmt::join(others, ", ")) + (others.size() > 1 ? " do" : " does"),
                      fmt::to_string(fmt::join(known, ", ")));
  }
  text.finish(known);
}

}  // namespace

std::string_view StrategyKind::word_otherwise(std::string_view key, std::string_view usual) const {
  const auto found = std::ranges::find(keys, key, &Key::option);
  return found == keys.end() || found->word.empty() ? usual : found->word;
}

double StrategyKind::otherwise(std::string_view key, double usual) const {
  const auto found = std::ranges::find(keys, key, &Key::option);
  return found == keys.end() ? usual : found->otherwise.value_or(usual);
}

std::vector<std::string_view> StrategyKind::key_names() const {
  std::vector<std::string_view> names;
  for (const Key& key : keys) names.push_back(key.option);
  return names;
}

const StrategyKind& Strategy::kind() const { return kind_named(preset); }

std::string Strategy::text() const {
  std::string text = preset;
  for (const StrategyOption& option : strategy_option_table()) {
    if (!kind().takes(option.name)) continue;
    if (const std::string value = option.write(*this, kind()); !value.empty())
      text += fmt::format(",{}={}", option.name, value);
  }
  return text;
}

std::uint32_t Strategy::ranks() const {
  std::uint32_t product = 1;
  for (const StrategyOption& option : strategy_option_table())
    if (option.ranks) product *= option.ranks(*this);
  return product;
}

void check_strategy_text(std::string_view given) {
  const SpecText text(given, "strategy");
  check_keys(text, kind_named(text.head()));
}

Strategy parse_strategy(std::string_view given, const Model& model) {
  check_internal(model.device_batch == 0, "the global batch of '{}' isn't known yet", model.text());
  const SpecText text(given, "strategy");
  const StrategyKind& kind = kind_named(text.head());
  check_keys(text, kind);
  Strategy strategy{.preset = std::string(kind.name)};
  for (const StrategyOption& option : strategy_option_table()) option.read({text, kind, model}, strategy);
  return strategy;
}

Model with_global_batch(const Model& model, std::string_view strategy) {
  if (model.device_batch == 0) return model;
  const SpecText text(strategy, "strategy");
  std::int64_t replicas = 1;
  const bool is_hybrid = text.has("replicas") || text.has("shard");  // then the other one is 2 unless given
  for (const std::string_view key : {"dp", "replicas", "shard", "nodes", "local"}) {
    const double usual = is_hybrid && (key == "replicas" || key == "shard") ? 2 : 1;
    replicas *= text.integer(key, static_cast<std::int64_t>(kind_named(text.head()).otherwise(key, usual)), 1, 1 << 20);
    replicas = std::min<std::int64_t>(replicas, 1 << 20);
  }
  Model whole = model;
  whole.device_batch = 0;
  whole.global_batch = model.device_batch * replicas;
  if (whole.global_batch > kLargestGlobalBatch)
    throw ConfigError("strategy '{}': device_batch={} of model '{}' makes global_batch={}; at most {}", strategy,
                      model.device_batch, model.name, whole.global_batch, kLargestGlobalBatch);
  return whole;
}

namespace {

/// What isn't trained (LoRA's base) is cut where ZeRO cuts weights, but not by tensor parallelism.
std::string remark_on_frozen(const Strategy& strategy, const Model& model) {
  const ParameterCycle cycle = strategy.kind().parameters(model, strategy);
  if (strategy.tp == 1 || (cycle.cut && cycle.cut->weights)) return "";
  double frozen = 0;
  for (const Given& given : model.given)
    if (given.is_frozen) frozen += static_cast<double>(given.spec.elements());
  if (frozen == 0) return "";
  std::map<std::string, double> trained;  // by name: nodes may share one
  const std::vector<OpInstance> ops = model.instances(model.global_batch);
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const std::vector<ParameterSpec> parameters = ops[n].signature().parameters;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const ParameterSpec whole = model.parameter(n, p, parameters[p]);
      trained[whole.name] = static_cast<double>(whole.spec.elements());
    }
  }
  double all = frozen;
  for (const auto& [name, elements] : trained) all += elements;
  if (frozen < 0.05 * all) return "";
  return fmt::format(
      "{}: what isn't trained, {:.0f} % of the parameters, isn't cut by tp here; Megatron's layers are cut in any "
      "case, "
      "which takes less memory and time",
      strategy.text(), 100 * frozen / all);
}

/// A zero bubble needs backwards in two: what else waits for, and what can wait.
std::string remark_on_backwards(const Strategy& strategy, const Model& model) {
  if (strategy.pp == 1 || !schedule_table().at(strategy.schedule).splits) return "";
  const auto is_whole = [](const Node& node) {
    return node.body != nullptr && !node.body->products.empty() && !node.body->parameters.empty();
  };
  const auto whole = std::ranges::count_if(model.nodes, is_whole);
  if (whole == 0) return "";
  return fmt::format(
      "{}: {} ops of '{}' that multiply by parameters are played as they were imported, with backwards in one piece, "
      "of "
      "which nothing fills bubbles; PyTorch splits any stage's backward",
      strategy.text(), whole, model.name);
}

}  // namespace

std::string remark_on(const Strategy& strategy, const Model& model) {
  if (strategy.daso)
    return fmt::format(
        "{}: an epoch of {} bodies of {} steps is played from one barrier to the next; a step's time is the mean of "
        "all bodies but the first; between averages the nodes' parameters differ, so it trains otherwise than the "
        "others",
        strategy.text(), strategy.bodies, steps_of_body(*strategy.daso));
  if (strategy.bodies > 1)
    return fmt::format(
        "{}: {} steps are played from one barrier to the next; a step's time is the period, of all but "
        "the first",
        strategy.text(), strategy.bodies);
  if (strategy.idle == 0) {
    const std::string on_backwards = remark_on_backwards(strategy, model),
                      on_frozen = remark_on_frozen(strategy, model);
    return on_backwards + (on_backwards.empty() || on_frozen.empty() ? "" : "; ") + on_frozen;
  }
  return fmt::format("{}: the {} samples are {} parts (torch.chunk); {} of {} devices have none", strategy.text(),
                     model.global_batch, strategy.dp, strategy.idle, strategy.dp + strategy.idle);
}

}  // namespace sim
