#include "sim/plan/layers.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "sim/error.hpp"

namespace sim {
namespace {

constexpr std::array<std::string_view, 3> kChoices{"dp", "in", "out"};
/// Up to so many strategies are all tried: 3^6, such as three layers on two levels.
constexpr double kAll = 729;

Strategy uniform(const Model& model, const std::vector<std::uint32_t>& levels, std::string_view choice) {
  return parse_strategy(fmt::format("hypar,levels={},layers={}", fmt::join(levels, "x"), choice), model);
}

/// One level, or as many as there are prime factors, the smallest outermost.
std::vector<std::vector<std::uint32_t>> hierarchies(std::uint32_t devices) {
  std::vector<std::vector<std::uint32_t>> all{{devices}};
  std::vector<std::uint32_t> factors;
  for (std::uint32_t factor = 2; devices > 1; ++factor)
    for (; devices % factor == 0; devices /= factor) factors.push_back(factor);
  constexpr std::size_t kMostLevels = 8;
  if (factors.size() > 1 && factors.size() <= kMostLevels) all.push_back(factors);
  return all;
}

bool is_better(const std::optional<EstimatedStrategy>& a, const std::optional<EstimatedStrategy>& b) {
  return a && (!b || a->estimate.is_better_than(b->estimate));
}

}  // namespace

LayerSearch::LayerSearch(const Model& model, std::function<PlanEstimate(const Strategy&)> estimate)
    : model_(model), estimate_(std::move(estimate)) {
  layers_ = static_cast<std::size_t>(std::ranges::count_if(model.nodes, [](const Node& n) { return n.kind->matrix; }));
  if (layers_ == 0) throw ConfigError("model '{}' has no layer with weights to choose for", model.name);
}

std::optional<EstimatedStrategy> LayerSearch::try_one(const Strategy& given) {
  Strategy strategy = given;
  for (std::vector<std::string>& level : strategy.layers)  // one text for one thing
    if (std::ranges::count(level, level[0]) == std::ssize(level)) level.resize(1);
  const auto [at, is_new] = known_.try_emplace(strategy.text());
  if (is_new) try {
      at->second = estimate_(strategy);
    } catch (const ConfigError& error) {
      obstacle_ = error.what();
    }
  if (!at->second) return std::nullopt;
  return EstimatedStrategy{std::move(strategy), *at->second};
}

std::optional<EstimatedStrategy> LayerSearch::descend(const Strategy& start) {
  std::optional<EstimatedStrategy> best = try_one(start);
  if (!best) return best;
  Strategy current = start;  // with a choice for each layer
  for (std::vector<std::string>& level : current.layers)
    if (level.size() == 1) level.resize(layers_, level[0]);
  for (bool changed = true; changed;) {
    changed = false;
    for (std::vector<std::string>& level : current.layers)
      for (std::string& choice : level) {
        std::string chosen = choice;
        for (const std::string_view other : kChoices) {
          choice = other;
          if (auto tried = try_one(current); is_better(tried, best)) {
            best = std::move(tried);
            chosen = other;
            changed = true;
          }
        }
        choice = chosen;
      }
  }
  return best;
}

std::optional<EstimatedStrategy> LayerSearch::try_all(const std::vector<std::uint32_t>& levels) {
  Strategy strategy = uniform(model_, levels, kChoices[0]);
  for (std::vector<std::string>& level : strategy.layers) level.assign(layers_, std::string(kChoices[0]));
  std::optional<EstimatedStrategy> best;
  // Counts in threes: the choices are digits.
  const auto digits = static_cast<std::uint32_t>(layers_ * levels.size());
  std::vector<std::size_t> digit(digits, 0);
  while (true) {
    for (std::size_t d = 0; d < digits; ++d) strategy.layers[d / layers_][d % layers_] = kChoices[digit[d]];
    if (auto tried = try_one(strategy); is_better(tried, best)) best = std::move(tried);
    std::size_t d = digits;
    while (d-- > 0 && ++digit[d] == kChoices.size()) digit[d] = 0;
    if (d >= digits) return best;  // all were the last choice
  }
}

Proposal propose_layers(const PlanQuestion& question) {
  if (question.devices < 2)
    throw ConfigError("method layers cuts layers for 2 devices or more, found {}", question.devices);
  LayerSearch search(question.model, question.estimate);
  std::optional<EstimatedStrategy> best, best_uniform;
  std::vector<EstimatedStrategy> starts;
  bool all = true;
  for (const std::vector<std::uint32_t>& levels : hierarchies(question.devices)) {
    std::optional<EstimatedStrategy> start;
    for (const std::string_view choice : kChoices)
      if (auto tried = search.try_one(uniform(question.model, levels, choice)); is_better(tried, start)) start = tried;
    if (is_better(start, best_uniform)) best_uniform = start;
    if (start) starts.push_back(*start);
    const bool few = std::pow(3, static_cast<double>(search.layers() * levels.size())) <= kAll;
    all = all && few;
    if (auto tried = few ? search.try_all(levels) : std::nullopt; is_better(tried, best)) best = tried;
  }
  std::vector<Strategy> of_hypar;
  try {  // for chains and powers of two only
    of_hypar = propose_hypar(question).strategies;
  } catch (const ConfigError&) {
  }
  for (const Strategy& strategy : of_hypar)
    if (auto tried = search.try_one(strategy)) starts.push_back(*tried);
  for (const EstimatedStrategy& start : starts)
    if (auto tried = search.descend(start.strategy); is_better(tried, best)) best = tried;
  if (!best)
    throw ConfigError("model '{}' can't be cut into parts for {} devices: {}", question.model.name, question.devices,
                      search.last_obstacle());

  Proposal proposal;
  proposal.words =
      all ? fmt::format("all {} choices by layers and levels for {} devices tried\n", search.tried(), question.devices)
          : fmt::format(
                "{} choices by layers and levels for {} devices tried; no single change makes the "
                "best one better\n",
                search.tried(), question.devices);
  const auto add = [&](const Strategy& strategy) {
    if (std::ranges::none_of(proposal.strategies, [&](const Strategy& s) { return s.text() == strategy.text(); }))
      proposal.strategies.push_back(strategy);
  };
  add(best->strategy);
  if (best_uniform) add(best_uniform->strategy);
  if (!of_hypar.empty()) add(of_hypar[0]);
  return proposal;
}

}  // namespace sim
