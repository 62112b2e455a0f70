// How `plan` looks for strategies. A method is a file of this folder and a row of table.cpp.
//
//   const auto step_of = [](const Strategy& s) { return PlanEstimate{.step_s = 1.0 / s.ranks()}; };
//   const Proposal proposal = method_table().at("layers").propose({model, 4, step_of});
//   fmt::print("{}{}\n", proposal.words, proposal.strategies.at(0).text());
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/model/model.hpp"
#include "sim/strategy/strategy.hpp"
#include "sim/table.hpp"

namespace sim {

/// What a strategy is chosen by.
struct PlanEstimate {
  bool fits = true;  // into its devices' memory
  double step_s = 0;
  std::int64_t needed_bytes = 0;  // of the fullest memory

  /// What fits first, by time; what doesn't, by what it needs.
  [[nodiscard]] bool is_better_than(const PlanEstimate& other) const {
    if (fits != other.fits) return fits;
    return fits ? step_s < other.step_s : needed_bytes < other.needed_bytes;
  }
};

struct PlanQuestion {
  const Model& model;
  std::uint32_t devices = 1;
  /// The estimate on the machine in question; ConfigError where the strategy can't be played.
  std::function<PlanEstimate(const Strategy&)> estimate;
  bool are_cores = false;  // the devices: a rank may have several, a thread on each
};

/// A strategy that the model, or what prices it, doesn't allow.
struct SkippedStrategy {
  std::string strategy;  // its text
  std::string why;       // as a ConfigError says it
};

/// Strategies that aren't among the proposed ones, of one kind.
struct OmittedStrategies {
  std::string brief;  // "dp = 3, 5"
  std::string whole;  // "ddp, mesh with dp = 3, 5 (64 samples don't divide)"
};

struct Proposal {
  std::vector<Strategy> strategies;         // each can be played; the caller forecasts and ranks them
  std::vector<SkippedStrategy> skipped;     // what the method would have tried
  std::vector<OmittedStrategies> left_out;  // these by kind, and what isn't tried at all
  std::string words;                        // whole lines: what the method knows beside that; may be empty
};

struct Method {
  std::string_view name;
  std::string_view description;  // one line
  /// ConfigError where the method isn't for such a model or so many devices.
  Proposal (*propose)(const PlanQuestion&) = nullptr;
  /// What to try where a proposed strategy needs more memory than there is; nullopt: nothing. A method may have none.
  std::optional<Strategy> (*smaller)(const Model&, const Strategy&) = nullptr;
};
const Table<Method>& method_table();

// The rows of method_table.
Proposal propose_candidates(const PlanQuestion& question);
Proposal propose_hypar(const PlanQuestion& question);
Proposal propose_layers(const PlanQuestion& question);

}  // namespace sim
