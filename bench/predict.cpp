#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <optional>
#include <thread>

#include "bench/commands.hpp"
#include "sim/cost_model.hpp"
#include "sim/error.hpp"
#include "sim/lower.hpp"
#include "sim/profile.hpp"
#include "sim/report.hpp"
#include "sim/simulate.hpp"
#include "sim/spec.hpp"
#include "sim/what_if.hpp"

namespace bench {
namespace {

/// The clusters to predict for: the named one, or this machine in each of its worlds.
std::vector<sim::Cluster> clusters_of(const PredictOptions& options, std::uint32_t ranks) {
  if (!options.cluster.empty()) return {sim::load_cluster(options.cluster, ranks, options.devices)};
  if (options.machine.device != "cpu" && options.machine.device != "cuda")
    throw sim::ConfigError("unknown device '{}'; known: cpu, cuda", options.machine.device);
  const bool cuda = options.machine.device == "cuda";
  const std::uint32_t devices = options.devices != 0 ? options.devices : cuda ? 1 : std::thread::hardware_concurrency();
  std::vector<sim::Cluster> clusters;
  for (const std::string& world : options.machine.worlds) {
    if (world != "local" && world != "gloo") throw sim::ConfigError("unknown world '{}'; known: local, gloo", world);
    clusters.push_back(sim::load_cluster(cuda ? "h200_local" : "cpu_" + world, ranks, devices));
  }
  return clusters;
}

/// "ddp,dp=2 on gloo (analytic): exposed communication 31 %, bubble 2 %, host 0 %; twice the bandwidth −14 %, …".
std::string limits_of(const std::string& cell, const sim::Program& program, const sim::Prices& prices,
                      const sim::Cluster& cluster, const sim::StepTime& step) {
  constexpr double kWorthNaming = 0.005;
  std::string text =
      fmt::format("  {}: compute {:.0f} %, exposed communication {:.0f} %, bubble {:.0f} %, host {:.0f} %;", cell,
                  100 * step.compute_s / step.step_s, 100 * step.exposed_communication_s / step.step_s,
                  100 * step.bubble_s / step.step_s, 100 * step.host_s / step.step_s);
  for (const sim::Sensitivity& s : sim::sensitivities(program, prices, cluster))
    if (std::abs(s.change_when_doubled) >= kWorthNaming)
      text +=
          fmt::format(" {} {} {:+.0f} %,", s.resource == "latency" || s.resource == "launch" ? "half the" : "twice the",
                      s.resource, 100 * s.change_when_doubled);
  text.pop_back();
  return text;
}

}  // namespace

int predict(const PredictOptions& options) {
  std::optional<sim::Profile> profile;
  if (!options.profile.empty()) profile = sim::load_profile(options.profile);
  const sim::Scale scale = sim::parse_scale(options.scale);
  sim::Result result;
  result.context = {
      {"command", "predict"}, {"profile", options.profile}, {"cluster", options.cluster}, {"scale", options.scale}};
  std::vector<std::string> limits;
  for (const std::string& model_text : options.subject.models) {
    const sim::Model model = sim::load_model(model_text);
    for (const std::string& strategy_text : options.subject.strategies) {
      const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
      if (options.machine.ranks != 0 && options.machine.ranks != strategy.ranks())
        throw sim::ConfigError("strategy '{}': dp={} × pp={} must be ranks={}", strategy_text, strategy.dp, strategy.pp,
                               options.machine.ranks);
      const sim::Program program = sim::lower(model, strategy);
      if (options.print_program) {
        fmt::print("{}", sim::to_text(program));
        continue;
      }
      for (const sim::Cluster& cluster : clusters_of(options, strategy.ranks())) {
        sim::Round round;
        for (const std::string& name : options.cost_models) {
          const std::unique_ptr<sim::CostModel> cost_model =
              sim::cost_model_table().at(name).make(cluster, profile ? &*profile : nullptr);
          const sim::Prices prices = sim::scaled(sim::price(program, *cost_model, cluster), program, cluster, scale);
          round.predicted[name] = sim::expected_step(program, prices, cluster);
          limits.push_back(limits_of(fmt::format("{} on {} ({})", strategy.text(), cluster.world, name), program,
                                     prices, cluster, round.predicted[name]));
        }
        result.cell(program, options.cluster.empty() ? cluster.world : cluster.name).rounds.push_back(round);
      }
    }
  }
  if (options.print_program) return 0;
  const std::filesystem::path record_file = sim::catalog_directory() / "track_record.json";
  std::optional<sim::TrackRecord> record;
  if (std::filesystem::exists(record_file)) record = sim::load_track_record(record_file);
  const sim::Report report = sim::make_report(result, record ? &*record : nullptr);
  fmt::print("{}", sim::to_console(report, sim::Detail::full));
  fmt::print("What limits the step, and what twice as good a resource would give:\n");
  for (const std::string& limit : limits) fmt::print("{}\n", limit);
  if (!options.output.json.empty()) sim::save_result(options.output.json, result);
  if (!options.output.csv.empty()) sim::write_text_file(options.output.csv, sim::to_csv(report));
  return 0;
}

}  // namespace bench
