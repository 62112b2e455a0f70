#include "bench/machine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "backend/machine/environment.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/supervise.hpp"
#include "backend/world/world.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"

namespace bench {
namespace {

/// Between processes there may be a network: that's another world ("gloo@1gbit"), never to be mixed up with the bare
/// one.
std::string label(const std::string& world, const Machine& machine) {
  return machine.network.empty() || !backend::world_table().at(world).processes ? world : world + "@" + machine.network;
}

sim::Cluster cluster_of(const std::string& world, const Machine& machine, std::uint32_t ranks) {
  const sim::Cluster cluster =
      sim::load_cluster(machine.device == "cuda" ? "h200_local" : "cpu_" + world, ranks, backend::usable_cores());
  return label(world, machine) == world ? cluster : sim::with_network(cluster, machine.network);
}

}  // namespace

std::vector<Job> make_jobs(const Subject& subject, const Machine& machine) {
  std::vector<Job> jobs;
  std::set<std::string> seen;  // "ddp" is "ddp,dp=2": used once
  bool processes = false;
  for (const std::string& world : machine.worlds) processes |= backend::world_table().at(world).processes;
  if (!machine.network.empty() && !processes)
    throw sim::ConfigError("network={} is for ranks that are processes: world=gloo", machine.network);
  for (const std::string& model_text : subject.models) {
    const sim::Model model = sim::load_model(model_text);
    for (const std::string& strategy_text : subject.strategies) {
      const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
      if (machine.ranks != 0 && machine.ranks != strategy.ranks())
        throw sim::ConfigError("strategy '{}': dp={} × pp={} must be ranks={}", strategy_text, strategy.dp, strategy.pp,
                               machine.ranks);
      if (!seen.insert(model.text() + ' ' + strategy.text()).second) continue;
      const sim::Program program = sim::lower(model, strategy);
      for (const std::string& world : machine.worlds)
        jobs.push_back({model, strategy, label(world, machine), program, cluster_of(world, machine, strategy.ranks())});
    }
  }
  return jobs;
}

std::string world_of(const std::string& label) { return label.substr(0, label.find('@')); }

std::string to_text(const Job& job) {
  return sim::printable(fmt::format("{} | {} | {}", job.model.text(), job.strategy.text(), job.world));
}

std::string short_text(const Job& job) { return fmt::format("{} on {}", job.strategy.text(), job.world); }

// One process holds the machine still: who spawns the ranks, or rank 0.
Worlds::Worlds(const Machine& machine, const std::vector<Job>& jobs)
    : quiet_(machine.real_time && (!backend::is_rank_process() || backend::is_first_of_its_own())) {
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
    for (const auto& [label, count] : ranks) {
      const std::string world = world_of(label);
      const backend::WorldKind& kind = backend::world_table().at(world);
      if (kind.processes != processes) continue;
      if (processes && !backend::is_rank_process()) {
        elsewhere_ = backend::spawn_ranks(machine.argv, count, machine.timeout_s, machine.network);
        return;
      }
      sessions_[label] = backend::open_session({world, count, machine.device, machine.timeout_s, machine.real_time});
      if (!sessions_[label]) {
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
  const std::optional<std::int32_t> idle_latency = backend::idle_latency_us();
  return {{"command", fmt::to_string(fmt::join(machine.argv, " "))},
          {"device", machine.device},
          {"worlds", machine.worlds},
          {"network", machine.network},
          {"scheduling", worlds.real_time() ? "SCHED_FIFO" : "time-shared"},
          {"idle_latency_us", idle_latency ? nlohmann::json(*idle_latency) : nlohmann::json()},
          {"environment", environment.describe()}};
}

void add_measured(sim::Cell& cell, sim::Round& round, const backend::RunResult& run) {
  std::vector<sim::StepTime> steps;
  for (const backend::StepResult& step : run.steps) steps.push_back(sim::step_time(step.timeline));
  round.measured.add(steps);
  const auto largest = std::max_element(run.memory.begin(), run.memory.end(), [](const auto& a, const auto& b) {
    return a.program_peak_bytes < b.program_peak_bytes;
  });
  cell.memory.measured_peak_bytes = largest->program_peak_bytes;
  cell.memory.allocator_peak_bytes = largest->allocator_peak_bytes;
  cell.memory.resident_peak_bytes = largest->resident_peak_bytes;
}

}  // namespace bench
