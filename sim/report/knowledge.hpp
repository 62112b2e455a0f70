// What a forecast says of its own ground, in words.
//
//   fmt::print("{}\n", describe_knowledge(f, cost_model_table().at("fitted")));
#pragma once

#include <string>

#include "sim/cost/cost_model.hpp"
#include "sim/simulate/forecast.hpp"

namespace sim {

/// "by what the profile leaves open from 211 µs to 1.30 ms; 23 % of its compute is of kinds that the profile has never
/// seen: adam.update, f32, rank 1 (14 %), …". `by`: the cost model; empty where it says nothing of that.
std::string describe_knowledge(const Forecast& forecast, const CostModelKind& by);

}  // namespace sim
