#include <fmt/format.h>

#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "bench/commands.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/collective/collective.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/error.hpp"
#include "sim/model/model_file.hpp"
#include "sim/plan/method.hpp"
#include "sim/strategy/option/option.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/strategy/strategy.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

template <class Entries>
void section(std::string_view title, Entries&& entries, auto describe) {
  fmt::print("{}\n", title);
  for (const auto& entry : entries) fmt::print("  {:<18} {}\n", entry.name, describe(entry));
}

/// An op's equation, and the attributes that a model's file gives it, with their defaults.
std::string describe(const sim::OpKind& kind) {
  std::vector<std::string> attributes;
  for (const sim::AttributeSpec& attribute : kind.attributes)
    attributes.push_back(attribute.required ? std::string(attribute.name)
                                            : fmt::format("{}={}", attribute.name, attribute.otherwise));
  if (attributes.empty()) return std::string(kind.equation);
  return fmt::format("{}; attributes: {}", kind.equation, fmt::join(attributes, ", "));
}

}  // namespace

int list(const Options& /*options*/) {
  fmt::print("models (sim/catalog/models, or a path to your own .json file)\n");
  for (const std::string& name : sim::catalog_names("models"))
    fmt::print("  {:<18} {}\n", name,
               sim::printable(sim::model_description(sim::catalog_file("models", "model", name))));
  section("strategies", sim::strategy_table(), [](const sim::StrategyKind& kind) {
    return fmt::format("{}{}; keys: {}; such as {}", kind.description,
                       kind.also.empty() ? "" : fmt::format("; also '{}'", kind.also),
                       fmt::join(kind.key_names(), ", "), kind.example);
  });
  section("keys of strategies", sim::strategy_option_table(),
          [](const sim::StrategyOption& option) { return fmt::format("{}: {}", option.meaning, option.values); });
  section("schedules", sim::schedule_table(), [](const sim::ScheduleKind& kind) { return kind.equation; });
  section("plan methods", sim::method_table(), [](const sim::Method& method) { return method.description; });
  section("cost models", sim::cost_model_table(), [](const sim::CostModelKind& kind) { return kind.equation; });
  section("collective algorithms", sim::collective_table(), [](const auto& kind) { return kind.equation; });
  for (const auto& [title, role] : {std::pair("layers", sim::OpRole::layer), std::pair("losses", sim::OpRole::loss),
                                    std::pair("optimizers", sim::OpRole::optimizer)}) {
    const auto is_one = [role = role](const sim::OpKind& kind) { return kind.role == role; };
    section(title, sim::op_table() | std::views::filter(is_one),
            [](const sim::OpKind& kind) { return describe(kind); });
  }
  fmt::print("devices            {}\n", fmt::join(sim::catalog_names("devices"), ", "));
  fmt::print("clusters           {}\n", fmt::join(sim::catalog_names("clusters"), ", "));
#ifdef PARAGAUGE_TORCH_PROGRAM
  section("worlds", sim::world_table(), [](const sim::WorldKind& kind) { return kind.description; });
#else
  fmt::print("worlds             none: built without LibTorch\n");
#endif
  return 0;
}

}  // namespace bench
