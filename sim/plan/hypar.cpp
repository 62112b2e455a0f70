// The paper's question (R3): dp or in for each layer and level, so that least is communicated. Memory and time follow
// from the caller's forecasts of the strategies.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "sim/error.hpp"
#include "sim/plan/candidates.hpp"
#include "sim/plan/communication.hpp"
#include "sim/plan/method.hpp"

namespace sim {
namespace {

std::string_view to_string(Cut cut) { return cut == Cut::dp ? "dp" : "in"; }

Strategy strategy_of(const Model& model, const LevelCuts& cuts) {
  std::vector<std::string> levels;
  for (const std::vector<Cut>& level : cuts) {
    std::vector<std::string_view> names;
    for (const Cut cut : level) names.push_back(to_string(cut));
    const bool alike = std::ranges::all_of(names, [&](std::string_view name) { return name == names[0]; });
    levels.push_back(alike ? std::string(names[0]) : fmt::to_string(fmt::join(names, "+")));
  }
  const std::vector<int> twos(cuts.size(), 2);
  return parse_strategy(fmt::format("hypar,levels={},layers={}", fmt::join(twos, "x"), fmt::join(levels, "/")), model);
}

/// A line per layer: its sizes, and its choice on each level, the outermost first.
std::string table_of(const std::vector<ChainLayer>& chain, const LevelCuts& cuts) {
  std::size_t width = 5;
  for (const ChainLayer& layer : chain) width = std::max(width, layer.name.size());
  std::string text =
      fmt::format("{:<{}} {:>10} {:>10}  by level, outermost first\n", "layer", width, "weights MB", "output MB");
  for (std::size_t layer = 0; layer < chain.size(); ++layer) {
    text += fmt::format("{:<{}} {:>10.4g} {:>10.4g} ", printable(chain[layer].name), width,
                        chain[layer].weight_bytes / 1e6, chain[layer].output_bytes / 1e6);
    for (const std::vector<Cut>& level : cuts) text += fmt::format(" {}", to_string(level[layer]));
    text += "\n";
  }
  return text;
}

}  // namespace

Proposal propose_hypar(const PlanQuestion& question) {
  if (!std::has_single_bit(question.devices) || question.devices < 2 || question.devices > 256)
    throw ConfigError(
        "method hypar halves the devices level by level, so their number must be 2, 4, 8, … 256; found {}",
        question.devices);
  const auto levels = static_cast<std::size_t>(std::countr_zero(question.devices));
  const std::vector<ChainLayer> chain = chain_of(question.model);
  const LevelCuts paper = least_by_level(chain, levels), least = least_together(chain, levels);
  const LevelCuts all_dp = all_cut(chain, levels, Cut::dp), all_in = all_cut(chain, levels, Cut::in);
  const auto GB = [&](const LevelCuts& cuts) { return communicated_bytes(chain, cuts) / 1e9; };

  Proposal proposal;
  proposal.words = table_of(chain, paper);
  proposal.words +=
      fmt::format("communicated per step by HyPar's model: {:.3g} GB; all dp {:.3g} GB; all in {:.3g} GB\n", GB(paper),
                  GB(all_dp), GB(all_in));
  std::vector<std::pair<std::string_view, const LevelCuts*>> named{
      {"HyPar's choice", &paper}, {"all dp", &all_dp}, {"all in", &all_in}};
  if (GB(least) < GB(paper) * (1 - 1e-9)) {
    proposal.words += fmt::format("chosen for all levels together, not level by level: {:.3g} GB\n", GB(least));
    named.emplace_back("the choice for all levels together", &least);
  }
  for (const auto& [name, cuts] : named) {
    Strategy strategy = strategy_of(question.model, *cuts);
    if (std::ranges::any_of(proposal.strategies, [&](const Strategy& s) { return s.text() == strategy.text(); }))
      continue;
    const std::string why_not = obstacle(question.model, strategy);
    if (why_not.empty())
      proposal.strategies.push_back(std::move(strategy));
    else {
      proposal.words += fmt::format("{}, {}, can't be played: {}\n", name, strategy.text(), printable(why_not));
      proposal.skipped.push_back({strategy.text(), why_not});
    }
  }
  return proposal;
}

}  // namespace sim
