#include "bench/machine.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "backend/machine/accelerator.hpp"
#include "backend/machine/address.hpp"
#include "backend/machine/arithmetic.hpp"
#include "backend/machine/environment.hpp"
#include "backend/machine/launch.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/supervise.hpp"
#include "sim/calibrate/conditions.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"
#include "sim/program/capture.hpp"
#include "sim/program/memory.hpp"
#include "sim/report/console.hpp"

namespace bench {
namespace {

/// ConfigError where only an emulation could be timed.
void check_arithmetic(sim::Precision precision) {
  if (precision == sim::Precision::bf16 && !backend::cpu_multiplies(sim::Dtype::bf16))
    throw sim::ConfigError("precision=bf16: this CPU has no bf16 arithmetic (avx512_bf16, amx_bf16)");
  if (precision == sim::Precision::fp16 && !backend::cpu_multiplies(sim::Dtype::f16))
    throw sim::ConfigError("precision=fp16: LibTorch doesn't train in f16 on a CPU, but emulates it 100 times slower");
}

/// The link between this host and the others of the launch: as its NIC says, else as the one inside a host.
sim::Link link_between(const sim::Cluster& host) {
  sim::Link link = host.link();
  link.shared = false;  // each host has a port of its own
  const char* chosen = std::getenv("GLOO_SOCKET_IFNAME");
  const char* meeting_place = std::getenv("MASTER_ADDR");
  const std::string interface =
      chosen != nullptr
          ? chosen
          : backend::interface_with(backend::reachable_address(meeting_place != nullptr ? meeting_place : ""));
  if (const std::optional<double> gigabits = backend::link_gigabits(interface))
    link.bandwidth = sim::gigabytes_per_second(*gigabits / 8);
  return link;
}

/// This machine, and the other hosts of the launch.
sim::Cluster machine_cluster_of(const std::string& world, const Machine& machine, std::uint32_t ranks,
                                std::uint32_t threads, const std::string& strategy) {
  const std::uint32_t each = backend::ranks_per_host();
  const bool several = each != 0 && sim::world_kind(world).processes;
  const sim::Cluster cluster =
      sim::with_threads(sim::machine_cluster(world, machine.device, several ? "" : machine.network,
                                             several ? each : ranks, sim::usable_cores()),
                        threads, strategy);
  if (!several) return cluster;
  return sim::with_hosts(cluster, backend::hosts_of_launch(), ranks, link_between(cluster), machine.network);
}

/// The world of the launch's ranks. ConfigError where each would be all ranks by itself.
const sim::WorldKind& launched_world(const Machine& machine) {
  for (const std::string& world : machine.worlds)
    if (sim::world_kind(world).processes) return sim::world_kind(world);
  std::vector<std::string_view> worlds;
  for (const sim::WorldKind& kind : sim::world_table())
    if (kind.processes) worlds.push_back(kind.name);
  throw sim::ConfigError("world '{}' has its ranks in one process, and {} have been launched; use --world {}",
                         machine.worlds.at(0), std::getenv("WORLD_SIZE"), fmt::to_string(fmt::join(worlds, " or ")));
}

/// What the launch's ranks must have alike (backend::SessionOptions::alike).
std::map<std::string, std::string> must_be_alike(const Machine& machine) {
  return {{"version", backend::version()},
          {"world", std::string(launched_world(machine).name)},
          {"device", machine.device}};
}

/// Whether the cores are kept awake: by whoever spawns the ranks, or the first of them.
bool kept_awake(const Machine& machine) { return machine.real_time && backend::AwakeCores::wanted(); }

/// One process of each host holds it still: who spawns the ranks, or the first of them.
void hold_still(Worlds& worlds, const Machine& machine) {
  if (backend::is_rank_process() && !backend::is_first_where_it_is()) return;
  worlds.quiet = std::make_unique<backend::QuietMachine>(machine.real_time);
  worlds.awake = std::make_unique<backend::AwakeCores>(kept_awake(machine));
  if (backend::measuring_runs().value_or(1) > 1)
    fmt::print(stderr, "paragauge: another run is measuring on this machine, and both disturb each other\n");
  if (machine.real_time && !backend::RealTime(backend::kComputePriority).permitted())
    fmt::print(stderr,
               "paragauge: no permission for real-time scheduling: times are noisier; root has it, or CAP_SYS_NICE\n");
}

}  // namespace

std::vector<Job> make_jobs(const Subject& subject, const Machine& machine, sim::Result* result) {
  std::vector<Job> jobs;
  const bool real_time = machine.real_time && backend::RealTime(backend::kComputePriority).permitted();
  std::set<std::string> seen;  // "ddp" is "ddp,dp=2": used once
  sim::Result skipped;
  const auto world_label = [&](const std::string& world) { return machine_cluster_of(world, machine, 1, 1, "").world; };
  sim::check_network(machine.network, machine.worlds);
  if (!machine.network.empty() && backend::ranks_per_host() != 0 && backend::hosts_of_launch() == 1)
    throw sim::ConfigError("network={} lies between several hosts, or between ranks that paragauge starts itself",
                           machine.network);
  sim::check_device(machine.device);
  std::optional<backend::Accelerator> accelerator;
  if (machine.device != "cpu") accelerator = backend::describe(machine.device);
  for (const std::string& model_text : subject.models) {
    sim::Model given = sim::load_model(model_text);
    if (!sim::is_autocast(given.precision)) {
      if (accelerator && given.precision != sim::Precision::f32)
        throw sim::ConfigError(
            "model '{}': precision={} is for forecasts only; runs on an accelerator take f32, bf16 or fp16", model_text,
            sim::to_string(given.precision));
      given.precision = sim::Precision::f32;  // on a CPU tf32 and ieee are one with it
    }
    for (const std::string& strategy_text : subject.strategies) {
      sim::check_strategy_text(strategy_text);
      sim::Model model = given;
      std::optional<sim::Strategy> strategy;
      std::optional<sim::Program> program;
      try {
        model = sim::with_global_batch(given, strategy_text);
        strategy = sim::parse_strategy(strategy_text, model);
        program = sim::lower(model, *strategy);
        if (!machine.anyway && !accelerator) check_arithmetic(model.precision);
      } catch (const sim::ConfigError& error) {
        if (result == nullptr) throw;
        for (const std::string& world : machine.worlds)
          skipped.cells.push_back(sim::skipped_cell(model, strategy_text, world_label(world), error.what()));
        continue;
      }
      if (machine.ranks != 0 && machine.ranks != strategy->ranks())
        throw sim::ConfigError("strategy '{}' has {} ranks, which must be ranks={}", strategy_text, strategy->ranks(),
                               machine.ranks);
      if (backend::is_launched() && strategy->ranks() > backend::ranks_of_launch())
        throw sim::ConfigError("strategy '{}' has {} ranks, and {} have been launched; launch as many", strategy_text,
                               strategy->ranks(), backend::ranks_of_launch());
      if (!seen.insert(model.text() + ' ' + strategy->text()).second) continue;
      for (const std::string& world : machine.worlds) {
        sim::Cluster cluster =
            machine_cluster_of(world, machine, strategy->ranks(), strategy->threads, strategy->text());
        if (accelerator)
          cluster = sim::with_accelerator(cluster, accelerator->name,
                                          sim::bytes(static_cast<double>(accelerator->memory_bytes)));
        if (!real_time) cluster.scheduling = sim::Scheduling::fair;
        if (machine.graph) sim::check_capture(*program, world, machine.device != "cpu");
        cluster.one_launch = machine.graph;
        jobs.push_back({model, *strategy, cluster.world, *program, cluster});
      }
    }
  }
  if (jobs.empty()) sim::check_not_all_skipped(skipped);
  for (const sim::Cell& cell : skipped.cells) result->cell(cell.model, cell.strategy, cell.world) = cell;
  return jobs;
}

std::string to_text(const Job& job) {
  return sim::printable(fmt::format("{} | {} | {}", job.model.text(), job.strategy.text(), job.world));
}

std::string short_text(const Job& job) { return fmt::format("{} on {}", job.strategy.text(), job.world); }

Worlds open_worlds(const Machine& machine, const std::vector<Job>& jobs) {
  std::map<std::string, std::uint32_t> ranks{{"local", 1}};  // by label
  for (const Job& job : jobs)
    for (const std::string& label : {job.world, std::string("local")})
      ranks[label] = std::max(ranks[label], job.strategy.ranks());

  std::map<std::string, std::string> alike;
  if (backend::is_launched()) {
    const std::uint32_t launched = backend::ranks_of_launch();
    for (auto& [label, count] : ranks) {
      if (!label.starts_with(launched_world(machine).name)) continue;
      if (machine.may_idle) count = launched;
      if (count != launched)
        throw sim::ConfigError("strategies have at most {} rank{}, and {} have been launched; launch as many", count,
                               count == 1 ? "" : "s", launched);
    }
    alike = must_be_alike(machine);
  }
  Worlds worlds;
  hold_still(worlds, machine);
  // Worlds of processes first: there the other ranks only serve.
  for (const bool processes : {true, false})
    for (const auto& [label, count] : ranks) {
      const sim::WorldKind& kind = sim::world_kind(label);
      if (kind.processes != processes) continue;
      if (processes && !backend::is_rank_process()) {
        worlds.done = backend::spawn_ranks(machine.argv, count, machine.timeout_s, machine.network);
        return worlds;
      }
      worlds.sessions[label] =
          backend::open_session({.world = std::string(kind.name),
                                 .ranks = count,
                                 .device = machine.device,
                                 .timeout_s = machine.timeout_s,
                                 .real_time = machine.real_time,
                                 .alike = processes ? alike : std::map<std::string, std::string>()});
      if (worlds.sessions[label] == nullptr) {
        worlds.done = 0;
        return worlds;
      }
    }
  return worlds;
}

int serve(const Machine& machine, double work_before_s) {
  Worlds worlds;
  hold_still(worlds, machine);
  backend::open_session({.world = std::string(launched_world(machine).name),
                         .ranks = backend::ranks_of_launch(),
                         .device = machine.device,
                         .timeout_s = machine.timeout_s,
                         .meeting_s = machine.timeout_s + work_before_s,
                         .real_time = machine.real_time,
                         .alike = must_be_alike(machine)});
  return 0;
}

std::optional<std::string> why_not(const Job& job, const Machine& machine, const Worlds& worlds) {
  if (machine.anyway) return std::nullopt;
  const std::optional<std::string> missing =
      worlds.at(job.world).missing_memory(sim::fit_memory(job.program, job.cluster).executor_bytes);
  return missing ? std::optional(*missing + " (--anyway runs it)") : std::nullopt;
}

std::vector<Job> that_fit(std::vector<Job> jobs, const Machine& machine, const Worlds& worlds, sim::Result& result) {
  std::erase_if(jobs, [&](const Job& job) {
    const std::optional<std::string> reason = why_not(job, machine, worlds);
    if (!reason) {
      const auto before = result.find(job.program.model, job.program.strategy, job.world, sim::kOurs);
      if (before) result.cells[*before].skipped.clear();  // an earlier run may have had less memory
      return false;
    }
    sim::Cell& cell = result.cell(job.program, job.world);
    sim::place(cell, job.program, job.cluster);
    cell.skipped = *reason;
    return true;
  });
  if (jobs.empty()) sim::check_not_all_skipped(result);
  return jobs;
}

nlohmann::json context(const Machine& machine, const Worlds& worlds) {
  const std::optional<std::int32_t> idle_latency = backend::idle_latency_us();
  const bool real_time =
      std::ranges::all_of(worlds.sessions, [](const auto& entry) { return entry.second->real_time(); });
  nlohmann::json context{{"command", fmt::to_string(fmt::join(machine.argv, " "))},
                         {"device", machine.device},
                         {"worlds", machine.worlds},
                         {"network", machine.network},
                         {"graph", machine.graph},
                         {"scheduling", real_time ? "SCHED_FIFO" : "time-shared"},
                         {"idle_latency_us", idle_latency ? nlohmann::json(*idle_latency) : nlohmann::json()},
                         {"awake_cores", kept_awake(machine) ? sim::usable_cores() : 0},
                         {"environment", backend::environment()}};
  if (machine.device != "cpu") context["device_name"] = backend::describe(machine.device).name;
  see_neighbours(context);
  see_hosts(context, worlds);
  return context;
}

void see_hosts(nlohmann::json& context, const Worlds& worlds) {
  for (const auto& [label, session] : worlds.sessions)
    if (!session->hosts().empty()) context["hosts"][label] = session->hosts();
}

void see_neighbours(nlohmann::json& context) {
  const std::optional<std::uint32_t> runs = backend::measuring_runs();
  context["environment"]["steal_share"] = backend::steal_share();
  if (runs) context["other_runs"] = std::max(context.value("other_runs", 0U), std::max(*runs, 1U) - 1);
}

backend::RunRequest request_of(const Job& job, const Machine& machine, std::uint32_t warmup_steps,
                               std::uint32_t steps) {
  return {.program = job.program,
          .warmup_steps = machine.graph ? std::max(2U, warmup_steps) : warmup_steps,
          .steps = steps,
          .graph = machine.graph};
}

void print_remarks(const std::vector<Job>& jobs) {
  std::vector<std::string> remarks;
  for (const Job& job : jobs) remarks.push_back(sim::remark_on(job.strategy, job.model));
  std::ranges::sort(remarks);
  fmt::print("{}", sim::remarks_text(remarks));
}

void add_measured(sim::Cell& cell, sim::Round& round, const sim::Program& program, const backend::RunResult& run) {
  std::vector<sim::StepTime> steps;
  for (const backend::StepResult& step : run.steps) steps.push_back(sim::step_time(program, step.timeline));
  round.measured.add(steps);
  const auto largest = std::ranges::max_element(run.memory, {}, &backend::RankMemory::peak_bytes);
  cell.memory.measured_peak_bytes = largest->peak_bytes;
  if (largest->allocator_peak_bytes > 0) cell.memory.allocator_peak_bytes = largest->allocator_peak_bytes;
  cell.memory.resident_peak_bytes = largest->resident_peak_bytes;
}

}  // namespace bench
