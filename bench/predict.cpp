#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "bench/commands.hpp"
#include "bench/forecasts.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/capture.hpp"
#include "sim/program/fold.hpp"
#include "sim/report/answer.hpp"
#include "sim/report/console.hpp"
#include "sim/report/knowledge.hpp"
#include "sim/report/report.hpp"
#include "sim/simulate/epoch_time.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/what_if.hpp"
#include "sim/strategy/epoch.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

/// "; the 4 rtx-3090 limit: rtx-4090 in their place -31 %", for each kind that is slower than another.
std::string kinds_text(const sim::Program& program, const sim::Cluster& cluster, const std::string& cost_model,
                       const Priced& priced, const sim::Scale& scale) {
  constexpr double kWorthNaming = 0.005;
  std::string text;
  for (const sim::KindLimit& limit : sim::kind_limits(program, cluster, cost_model, priced.profile.get(), scale))
    text += limit.change <= -kWorthNaming ? fmt::format("; the {} {} limit{}: {} in {} place {:+.0f} %", limit.ranks,
                                                        limit.slower, limit.ranks == 1 ? "s" : "", limit.faster,
                                                        limit.ranks == 1 ? "its" : "their", 100 * limit.change)
                                          : fmt::format("; that {} {} {} slower than {} costs nothing", limit.ranks,
                                                        limit.slower, limit.ranks == 1 ? "is" : "are", limit.faster);
  return text;
}

/// "ddp,dp=2 on gloo (analytic): exposed communication 31 %, bubble 2 %, host 0 %; twice the bandwidth −14 %, …".
std::string limits_of(const std::string& cell, const sim::Program& program, const sim::Cluster& cluster,
                      const sim::Forecast& forecast, const sim::CostModelKind& by, const sim::Scale& scale,
                      const std::string& of_kinds) {
  constexpr double kWorthNaming = 0.005;
  const sim::StepTime& step = forecast.step;
  const auto percent = [&](double seconds) { return std::round(100 * seconds / step.step_s) + 0.0; };  // no "-0"
  std::string text = fmt::format(
      "  {}: compute {:.0f} %, exposed communication {:.0f} %, bubble {:.0f} %, host {:.0f} %;", cell,
      percent(step.compute_s), percent(step.exposed_communication_s), percent(step.bubble_s), percent(step.host_s));
  for (const sim::Sensitivity& s : sim::sensitivities(program, forecast.costs, cluster, scale))
    if (std::abs(s.change_when_doubled) >= kWorthNaming)
      text +=
          fmt::format(" {} {} {:+.0f} %,", s.resource == "latency" || s.resource == "launch" ? "half the" : "twice the",
                      s.resource, 100 * s.change_when_doubled);
  text.pop_back();
  text += of_kinds;
  if (const std::string knowledge = sim::describe_knowledge(forecast, by); !knowledge.empty()) text += "; " + knowledge;
  return text;
}

struct Asked {
  sim::Model model;
  std::string text;                         // of the strategy
  std::string per_device;                   // the model's text where it says device_batch
  std::optional<sim::Strategy> strategy;    // where the model can be played by it
  std::optional<sim::ConfigError> refusal;  // else why not
};

/// Every model × strategy once: "ddp" is "ddp,dp=2".
std::vector<Asked> asked_of(const Options& options) {
  std::vector<Asked> all;
  std::set<std::string> seen;
  for (const std::string& model_text : options.subject.models) {
    const sim::Model given = sim::load_model(model_text);
    for (const std::string& text : options.subject.strategies) {
      sim::check_strategy_text(text);  // a mistyped one is no strategy that can't be played
      Asked asked{.model = given, .text = text, .per_device = {}, .strategy = {}, .refusal = {}};
      if (given.device_batch != 0) asked.per_device = given.text();
      try {
        asked.model = sim::with_global_batch(given, text);
        const sim::Strategy strategy = sim::parse_strategy(text, asked.model);
        if (options.machine.ranks != 0 && options.machine.ranks != strategy.ranks())
          throw sim::ConfigError("strategy '{}' has {} ranks, which must be ranks={}", text, strategy.ranks(),
                                 options.machine.ranks);
        asked.text = strategy.text();
        asked.strategy = strategy;
      } catch (const sim::ConfigError& error) {
        asked.refusal = error;
      }
      if (seen.insert(asked.model.text() + ' ' + asked.text).second) all.push_back(std::move(asked));
    }
  }
  return all;
}

/// "ddp,dp=2 has 2 ranks, so that 6 of 8 devices are idle; ddp,dp=8 has 8": who says --devices 8 may expect as many
/// ranks. The latter only where another value of one key has them, and the model can be played so. Nothing of `single`,
/// which is meant to leave them idle.
std::string idle_text(const sim::Strategy& strategy, const sim::Model& model, const Options& options) {
  const std::uint32_t devices = options.devices * options.hosts, used = strategy.ranks() * strategy.threads;
  if (strategy.ranks() == 1 || used >= devices) return "";
  const sim::SpecText spec(strategy.text(), "strategy");
  const std::string text = fmt::format("{} has {} ranks, so that {} of {} devices are idle", spec.whole(),
                                       strategy.ranks(), devices - used, devices);
  for (const auto& [key, value] : spec.items()) {
    if (value.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string given = fmt::format(",{}={}", key, value);
    std::string more = spec.whole();
    more.replace(more.find(given), given.size(), fmt::format(",{}={}", key, std::stod(value) * devices / used));
    try {
      const sim::Strategy all = sim::parse_strategy(more, model);
      if (all.ranks() * all.threads != devices) continue;
      sim::lower(model, all);
      return fmt::format("{}; {} has {}", text, all.text(), all.ranks());
    } catch (const sim::ConfigError&) {
      continue;
    }
  }
  return text;
}

struct Predictions {
  sim::Result result;
  std::map<std::size_t, std::vector<std::string>> limits;  // by cell
  std::vector<std::string> epochs;
  std::map<std::string, std::vector<std::pair<double, std::string>>> rates;  // samples per second, where batches differ
  std::string remarks;                                                       // on where the costs come from
};

/// "12.3 s, 5005 steps, the last with 144 samples; 3.6 s of it the host gets samples ready".
std::string epoch_text(const sim::Epoch& epoch, const sim::EpochTime& time) {
  std::string text = fmt::format("{:.4g} s, {} step{}", time.seconds, epoch.steps(), epoch.steps() == 1 ? "" : "s");
  if (epoch.last) text += fmt::format(", the last with {} samples", epoch.last->samples);
  if (!time.remark.empty()) text += fmt::format(" (taken as long as the others: {})", time.remark);
  if (time.loading_s > 0) text += fmt::format("; {:.3g} s of it the host gets samples ready", time.loading_s);
  return text;
}

/// "Of resnet50,device_batch=32 in a second: ddp,dp=8 3470 samples, single 451."
std::string rates_text(const std::string& model, std::vector<std::pair<double, std::string>> rates) {
  std::ranges::stable_sort(rates, std::greater(), [](const auto& rate) { return rate.first; });
  std::string text;
  for (const auto& [per_second, name] : rates)
    text += fmt::format("{}{} {:.4g}{}", text.empty() ? "" : ", ", name, per_second, text.empty() ? " samples" : "");
  return sim::paragraph(sim::printable(fmt::format("Of {} in a second: {}.", model, text)), ' ', 100);
}

/// What takes longer than a person waits without a word is announced.
void announce(const std::string& what, const sim::Program& program) {
  constexpr std::size_t kMany = 500'000;  // some 5 s
  std::size_t instructions = 0;
  for (const sim::Program::Place& place : program.places()) instructions += program.roles[place.role].size();
  if (instructions > kMany)
    fmt::print(stderr, "predict: {}: {} instructions to go through\n", sim::printable(what), instructions);
}

/// ConfigError where the strategy can't be played there, or its costs can't be known.
void predict_cell(const Asked& asked, const Priced& priced, const Options& options, Predictions& all) {
  if (asked.refusal) throw sim::ConfigError(*asked.refusal);
  const sim::Scale scale = sim::parse_scale(options.scale);
  sim::Program program = sim::lower(asked.model, *asked.strategy);
  std::optional<sim::Epoch> epoch;
  if (options.epoch > 0) epoch = sim::epoch_of(options.epoch, asked.model, *asked.strategy, options.drop_last);
  const sim::Cluster cluster = priced.of(program);
  sim::check_ranks(cluster);
  program = sim::fold_many(std::move(program), cluster);
  announce(asked.text, program);
  if (options.machine.graph) sim::check_capture(program, cluster.world, cluster.device.asynchronous);
  sim::Round round;
  std::vector<double> workspace_bytes;  // of the cost model that knows
  std::vector<std::string> limits, epochs;
  std::map<std::string, std::vector<sim::KindSpread>> spreads;
  for (const std::string& name : options.cost_models) {
    const sim::CostModel& cost_model = *priced.cost_models.at(name);
    const sim::Forecast f = sim::forecast(program, cluster, cost_model, scale);
    round.add_forecast(name, f);
    spreads[name] = f.spreads;
    if (sim::cost_model_table().at(name).needs_profile) workspace_bytes = f.costs.workspace_bytes;
    const std::string of_model = options.subject.models.size() > 1 ? asked.model.text() + " by " : "";
    const std::string cell = sim::printable(fmt::format("{}{} on {} ({})", of_model, asked.text, cluster.world, name));
    limits.push_back(limits_of(cell, program, cluster, f, sim::cost_model_table().at(name), scale,
                               kinds_text(program, cluster, name, priced, scale)));
    if (epoch)
      epochs.push_back(fmt::format("  {}: {}", cell,
                                   epoch_text(*epoch, sim::epoch_time(*epoch, asked.model, *asked.strategy, cluster,
                                                                      cost_model, f.step.step_s, scale))));
  }
  sim::Cell& found = all.result.cell(program, where_is(cluster, options));
  if (options.machine.graph) found.settings = "graph";
  sim::place(found, program, cluster, workspace_bytes);
  found.spreads = std::move(spreads);
  found.rounds.push_back(round);
  if (!asked.per_device.empty())
    all.rates[asked.per_device].emplace_back(
        static_cast<double>(program.global_batch) / round.predicted.at(options.cost_models[0]).step_s,
        options.machine.worlds.size() > 1 ? asked.text + " on " + cluster.world : asked.text);
  all.limits[static_cast<std::size_t>(&found - all.result.cells.data())] = limits;
  all.epochs.insert(all.epochs.end(), epochs.begin(), epochs.end());
}

/// One that can't be forecast is a row that says why; where all are, the reasons are the command's.
Predictions predict_all(const std::vector<Asked>& asked, const Options& options) {
  Predictions all;
  all.result.kind = "predict";
  all.result.sessions.push_back({.context = {{"command", "predict"},
                                             {"profile", options.profile},
                                             {"cluster", options.cluster},
                                             {"graph", options.machine.graph},
                                             {"scale", options.scale},
                                             {"memory_GiB", options.memory_GiB}}});
  std::uint32_t most_ranks = 1;
  for (const Asked& one : asked)
    if (one.strategy) most_ranks = std::max(most_ranks, one.strategy->ranks());
  const std::vector<Priced> clusters = priced_clusters(options, most_ranks);
  std::vector<const sim::Model*> models;
  for (const Asked& one : asked) models.push_back(&one.model);
  all.remarks = remarks_of(clusters, models);
  for (const Asked& one : asked)
    for (const Priced& priced : clusters) {
      try {
        predict_cell(one, priced, options, all);
      } catch (const sim::ConfigError& error) {
        const std::string where = where_is(priced.cluster, options);
        all.result.cell(one.model.text(), one.text, where) =
            sim::skipped_cell(one.model, one.text, where, error.what());
      }
    }
  sim::check_not_all_skipped(all.result);
  return all;
}

}  // namespace

int predict(const Options& options) {
  if (!options.json.empty()) sim::check_replaceable(options.json, "predict");
  const std::vector<Asked> asked = asked_of(options);
  if (options.print_program) {
    for (const Asked& one : asked) {
      if (one.refusal) throw sim::ConfigError(*one.refusal);
      fmt::print("{}", sim::printable(sim::to_text(sim::lower_periodic(one.model, *one.strategy))));
    }
    return 0;
  }
  auto [result, limits, epochs, rates, remarks] = predict_all(asked, options);
  const std::optional<sim::TrackRecord> record = track_record();
  const sim::Report report = sim::make_report(result, record ? &*record : nullptr);
  const sim::Answer answer = sim::answer_of(result, record ? &*record : nullptr);
  if (options.details)
    fmt::print("{}", sim::to_console(report, sim::Detail::full));
  else
    fmt::print("{}\n{}", answer.table, answer.words);
  for (const auto& [model, of_model] : rates)
    if (of_model.size() > 1) fmt::print("{}", rates_text(model, of_model));
  std::vector<std::string> of_strategies;
  for (const Asked& one : asked)
    if (one.strategy)
      for (const std::string& remark :
           {sim::remark_on(*one.strategy, one.model), idle_text(*one.strategy, one.model, options)})
        of_strategies.push_back(remark);
  fmt::print("{}", sim::remarks_text(of_strategies));
  if (!options.details)
    std::erase_if(limits, [&](const auto& cell) { return std::ranges::count(answer.fastest, cell.first) == 0; });
  fmt::print("{}", remarks);
  if (!limits.empty()) fmt::print("What limits the step, and what twice as good a resource would give:\n");
  for (const auto& [cell, lines] : limits)
    for (const std::string& line : lines) fmt::print("{}\n", fmt::join(sim::wrap(line, ' ', 96), "\n    "));
  if (options.machine.graph) fmt::print("{}", kGraphRemark);
  if (options.epoch > 0) fmt::print("An epoch of {} samples:\n{}\n", options.epoch, fmt::join(epochs, "\n"));
  if (!options.json.empty()) sim::save_report(options.json, result, record ? &*record : nullptr);
  if (!options.csv.empty()) sim::write_text_file(options.csv, sim::to_csv(report));
  return 0;
}

}  // namespace bench
