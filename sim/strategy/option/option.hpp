// The keys of strategy texts, a row each: what a text may say, what it says canonically, what `list` prints and which values
// the tests try come from here. A preset's row (strategy/table.cpp) names those that it takes; a new key is a row in a file
// of this folder, a name there, and a member of Strategy.
//
//   const StrategyOption& dp = strategy_option_table().at("dp");
//   const StrategyKind& kind = strategy_table().at("ddp");
//   const SpecText spec("ddp,dp=4", "strategy");
//   dp.read({spec, kind, model}, strategy);      // what the text says; without it, what the preset has
//   dp.write(strategy, kind);                    // "4"; empty where the text needn't say it
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/strategy/strategy.hpp"
#include "sim/table.hpp"
#include "sim/text/spec.hpp"

namespace sim {

/// What an option is read from.
struct StrategyReading {
  const SpecText& text;
  const StrategyKind& kind;
  const Model& model;
};

struct StrategyOption {
  std::string_view name;
  std::string_view values;   // "0 or 1"
  std::string_view meaning;  // one line
  /// Called for each row in the table's order, whether the preset takes the key or not: later rows find what earlier
  /// ones have set. ConfigError where the value is none, or doesn't fit the model.
  void (*read)(const StrategyReading&, Strategy&);
  std::string (*write)(const Strategy&, const StrategyKind&);
  /// Values that every preset that takes the key, and nearly every model, can be tried with.
  std::vector<std::string> (*tried)(const Model&, const StrategyKind&);
  /// Of a degree: how many times as many ranks there are for it.
  std::uint32_t (*ranks)(const Strategy&) = nullptr;
};

/// In the order of canonical texts.
const Table<StrategyOption>& strategy_option_table();

}  // namespace sim
