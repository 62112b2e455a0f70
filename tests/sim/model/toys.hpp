// The small imported models of tests/models, and their Programs.
#pragma once

#include <string>

#include "sim/lower/lower.hpp"
#include "sim/strategy/strategy.hpp"
#include "tests/sim/testing.hpp"

namespace sim::testing {

/// Written by hand: a tied embedding, a frozen table, an input for each sample beside the tokens.
inline std::string toy_path(const std::string& name = "token_toy") {
  return (tests_folder() / "models" / (name + ".json")).string();
}

inline Program lowered(const std::string& strategy, const std::string& model = toy_path()) {
  const Model loaded = load_model(model);
  return lower(loaded, parse_strategy(strategy, loaded));
}

}  // namespace sim::testing
