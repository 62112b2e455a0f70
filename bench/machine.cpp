#include "bench/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "backend/environment.hpp"
#include "backend/scheduling.hpp"
#include "backend/world/world.hpp"
#include "sim/error.hpp"
#include "sim/lower.hpp"

namespace bench {

std::vector<Job> make_jobs(const Subject& subject, const Machine& machine) {
  std::vector<Job> jobs;
  for (const std::string& world : machine.worlds) static_cast<void>(backend::world_table().at(world));
  for (const std::string& model_text : subject.models) {
    const sim::Model model = sim::load_model(model_text);
    for (const std::string& strategy_text : subject.strategies) {
      const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
      if (machine.ranks != 0 && machine.ranks != strategy.ranks())
        throw sim::ConfigError("strategy '{}': dp={} × pp={} must be ranks={}", strategy_text, strategy.dp, strategy.pp,
                               machine.ranks);
      const sim::Program program = sim::lower(model, strategy);
      for (const std::string& world : machine.worlds)
        jobs.push_back({model, strategy, world, program,
                        sim::load_cluster(machine.device == "cuda" ? "h200_local" : "cpu_" + world, strategy.ranks(),
                                          backend::usable_cores())});
    }
  }
  return jobs;
}

std::string to_text(const Job& job) {
  return fmt::format("{} | {} | {}", job.model.text(), job.strategy.text(), job.world);
}

Worlds::Worlds(const Machine& machine, const std::vector<Job>& jobs) {
  std::uint32_t most = 1;
  std::map<std::string, std::uint32_t> ranks;
  for (const Job& job : jobs) {
    std::uint32_t& count = ranks[job.world];
    count = std::max(count, job.strategy.ranks());
    most = std::max(most, job.strategy.ranks());
  }
  ranks["local"] = std::max(most, ranks["local"]);
  // Worlds of processes first: there the other ranks only serve.
  for (const bool processes : {true, false})
    for (const auto& [world, count] : ranks) {
      const backend::WorldKind& kind = backend::world_table().at(world);
      if (kind.processes != processes) continue;
      if (processes && !backend::is_rank_process()) {
        elsewhere_ = backend::spawn_ranks(machine.argv, count, machine.timeout_s);
        return;
      }
      sessions_[world] = backend::open_session({world, count, machine.device, machine.timeout_s, machine.real_time});
      if (!sessions_[world]) {
        elsewhere_ = 0;
        return;
      }
    }
}

std::uint32_t Worlds::busy_ranks() const { return std::min(backend::usable_cores(), at("local").options().ranks); }

bool Worlds::real_time() const {
  return std::all_of(sessions_.begin(), sessions_.end(), [](const auto& entry) { return entry.second->real_time(); });
}

nlohmann::json context(const Machine& machine, const Worlds& worlds) {
  static const backend::Environment environment;  // since the first call
  return {{"command", fmt::to_string(fmt::join(machine.argv, " "))},
          {"device", machine.device},
          {"worlds", machine.worlds},
          {"scheduling", worlds.real_time() ? "SCHED_FIFO" : "time-shared"},
          {"environment", environment.describe()}};
}

void add_measured(sim::Cell& cell, sim::Round& round, const backend::RunResult& run) {
  for (const backend::StepResult& step : run.steps) round.measured.push_back(sim::step_time(step.timeline));
  const auto largest = std::max_element(run.memory.begin(), run.memory.end(), [](const auto& a, const auto& b) {
    return a.program_peak_bytes < b.program_peak_bytes;
  });
  cell.memory.measured_peak_bytes = largest->program_peak_bytes;
  cell.memory.allocator_peak_bytes = largest->allocator_peak_bytes;
  cell.memory.resident_peak_bytes = largest->resident_peak_bytes;
}

}  // namespace bench
