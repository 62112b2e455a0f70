#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "bench/commands.hpp"
#include "bench/forecasts.hpp"
#include "sim/cost/profile.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/capture.hpp"
#include "sim/report/answer.hpp"
#include "sim/report/console.hpp"
#include "sim/report/report.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/what_if.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

/// "ddp,dp=2 on gloo (analytic): exposed communication 31 %, bubble 2 %, host 0 %; twice the bandwidth −14 %, …".
std::string limits_of(const std::string& cell, const sim::Program& program, const sim::Cluster& cluster,
                      const sim::Forecast& forecast) {
  constexpr double kWorthNaming = 0.005;
  const sim::StepTime& step = forecast.step;
  std::string text =
      fmt::format("  {}: compute {:.0f} %, exposed communication {:.0f} %, bubble {:.0f} %, host {:.0f} %;", cell,
                  100 * step.compute_s / step.step_s, 100 * step.exposed_communication_s / step.step_s,
                  100 * step.bubble_s / step.step_s, 100 * step.host_s / step.step_s);
  for (const sim::Sensitivity& s : sim::sensitivities(program, forecast.costs, cluster))
    if (std::abs(s.change_when_doubled) >= kWorthNaming)
      text +=
          fmt::format(" {} {} {:+.0f} %,", s.resource == "latency" || s.resource == "launch" ? "half the" : "twice the",
                      s.resource, 100 * s.change_when_doubled);
  text.pop_back();
  if (const std::string knowledge = sim::describe_knowledge(forecast); !knowledge.empty()) text += "; " + knowledge;
  return text;
}

}  // namespace

int predict(const Options& options) {
  if (!options.json.empty()) sim::check_replaceable(options.json, "predict");
  std::optional<sim::Profile> profile;
  if (!options.profile.empty()) profile = sim::load_profile(options.profile);
  const sim::Scale scale = sim::parse_scale(options.scale);
  sim::Result result;
  result.kind = "predict";
  result.sessions.push_back({.context = {{"command", "predict"},
                                         {"profile", options.profile},
                                         {"cluster", options.cluster},
                                         {"graph", options.machine.graph},
                                         {"scale", options.scale}}});
  std::map<std::size_t, std::vector<std::string>> limits;  // by cell
  std::vector<std::string> epochs;
  std::set<std::string> seen;  // "ddp" is "ddp,dp=2"
  for (const std::string& model_text : options.subject.models) {
    const sim::Model model = sim::load_model(model_text);
    for (const std::string& strategy_text : options.subject.strategies) {
      const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
      if (options.machine.ranks != 0 && options.machine.ranks != strategy.ranks())
        throw sim::ConfigError("strategy '{}' has {} ranks, which must be ranks={}", strategy_text, strategy.ranks(),
                               options.machine.ranks);
      if (!seen.insert(model.text() + ' ' + strategy.text()).second) continue;
      const sim::Program program = sim::lower(model, strategy);
      if (options.print_program) {
        fmt::print("{}", sim::printable(sim::to_text(program)));
        continue;
      }
      const std::int64_t steps = options.epoch / model.global_batch, rest = options.epoch % model.global_batch;
      std::optional<sim::Program> last_program;  // an epoch's smaller last step
      if (rest > 0) {
        sim::Model last = model;
        last.global_batch = rest;
        last_program = sim::lower(last, sim::parse_strategy(strategy_text, last));
      }
      for (sim::Cluster& cluster : clusters_of(options, strategy.ranks())) {
        if (options.machine.graph) sim::check_capture(program, cluster.world, cluster.device.asynchronous);
        cluster.one_launch = options.machine.graph;
        sim::Round round;
        std::vector<double> workspace_bytes;  // of the cost model that knows
        sim::Cell& found = result.cell(program, options.cluster.empty() ? cluster.world : cluster.name);
        if (options.machine.graph) found.settings = "graph";
        std::vector<std::string>& limits_of_cell = limits[static_cast<std::size_t>(&found - result.cells.data())];
        for (const std::string& name : options.cost_models) {
          const sim::Profile* measured = profile ? &*profile : nullptr;
          const sim::Forecast f = sim::forecast(program, cluster, name, measured, scale);
          round.add_forecast(name, f);
          if (sim::cost_model_table().at(name).needs_profile) workspace_bytes = f.costs.workspace_bytes;
          const std::string cell = sim::printable(fmt::format("{} on {} ({})", strategy.text(), cluster.world, name));
          limits_of_cell.push_back(limits_of(cell, program, cluster, f));
          if (options.epoch == 0) continue;
          double epoch_s = static_cast<double>(steps) * f.step.step_s;
          if (last_program) epoch_s += sim::forecast(*last_program, cluster, name, measured, scale).step.step_s;
          epochs.push_back(fmt::format("  {}: {:.4g} s, {} steps{}", cell, epoch_s, steps + (rest > 0),
                                       rest > 0 ? fmt::format(", the last with {} samples", rest) : ""));
        }
        sim::place(found, program, cluster, workspace_bytes);
        found.rounds.push_back(round);
      }
    }
  }
  if (options.print_program) return 0;
  const std::optional<sim::TrackRecord> record = track_record();
  const sim::Report report = sim::make_report(result, record ? &*record : nullptr);
  const sim::Answer answer = sim::answer_of(result, record ? &*record : nullptr);
  if (options.details)
    fmt::print("{}", sim::to_console(report, sim::Detail::full));
  else
    fmt::print("{}\n{}", answer.table, answer.words);
  if (!options.details)
    std::erase_if(limits, [&](const auto& cell) { return std::ranges::count(answer.fastest, cell.first) == 0; });
  if (!limits.empty()) fmt::print("What limits the step, and what twice as good a resource would give:\n");
  for (const auto& [cell, lines] : limits)
    for (const std::string& line : lines) fmt::print("{}\n", fmt::join(sim::wrap(line, ' ', 96), "\n    "));
  if (options.machine.graph) fmt::print("{}", kGraphRemark);
  if (options.epoch > 0) fmt::print("An epoch of {} samples:\n{}\n", options.epoch, fmt::join(epochs, "\n"));
  if (!options.json.empty()) sim::save_result(options.json, result);
  if (!options.csv.empty()) sim::write_text_file(options.csv, sim::to_csv(report));
  return 0;
}

}  // namespace bench
