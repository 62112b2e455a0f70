// The commands' view of this machine: which cells to run, where, and the open worlds.
//
//   std::vector<Job> jobs = make_jobs(options.subject, options.machine);
//   const Worlds worlds = open_worlds(options.machine, jobs);
//   if (worlds.done) return *worlds.done;
//   worlds.at("gloo").run({.program = jobs[0].program});
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/calibrate.hpp"
#include "backend/machine/awake.hpp"
#include "backend/machine/quiet.hpp"
#include "backend/session.hpp"
#include "bench/commands.hpp"
#include "sim/lower/lower.hpp"
#include "sim/report/result.hpp"

namespace bench {

using sim::Job;

/// Every model × strategy × world. ConfigError for what doesn't fit, also degrees that don't multiply to
/// `machine.ranks`, and steps that `machine.graph` can't capture. With `result`, a strategy that a model can't be
/// played by is only skipped, in cells there that say why, unless all are.
std::vector<Job> make_jobs(const Subject& subject, const Machine& machine, sim::Result* result = nullptr);

/// "resnet50 | pipeline,pp=2 | gloo", for messages.
std::string to_text(const Job& job);
/// "pipeline,pp=2 on gloo", for progress.
std::string short_text(const Job& job);

/// The sessions of all worlds that the jobs need, with as many ranks as the largest job; and always `local`, for
/// calibration. Sessions end before the machine is let go.
struct Worlds {
  std::unique_ptr<backend::QuietMachine> quiet;
  std::unique_ptr<backend::AwakeCores> awake;
  std::map<std::string, std::unique_ptr<backend::Session>> sessions;  // by label: "gloo@1gbit"
  std::optional<int> done;  // set: the work is done, this process has only to end, with this status

  [[nodiscard]] backend::Session& at(const std::string& label) const { return *sessions.at(label); }
  [[nodiscard]] backend::Calibrator::SessionOf by_label() const {
    return [this](const std::string& label) -> backend::Session& { return at(label); };
  }
};

/// Opens the worlds. Where one has ranks that are processes, this starts them, each with this command line again, and
/// waits until they are done: rank 0 then does all the work of the command, and this process (and every other rank,
/// once it has served rank 0) has only to end.
Worlds open_worlds(const Machine& machine, const std::vector<Job>& jobs);

/// Why the devices haven't the memory that the job's tensors take by its forecast; none
/// where they have, and with --anyway.
std::optional<std::string> why_not(const Job& job, const Machine& machine, const Worlds& worlds);
/// The jobs that they have memory for; the others' cells say why they are skipped.
std::vector<Job> that_fit(std::vector<Job> jobs, const Machine& machine, const Worlds& worlds, sim::Result& result);

/// What every result file says about where it was made.
nlohmann::json context(const Machine& machine, const Worlds& worlds);

/// `hosts` of a context, by world, where one has several: Session::hosts as it is now.
void see_hosts(nlohmann::json& context, const Worlds& worlds);

/// `other_runs` of a context: the most that have been seen, also of those that began later; and its steal_share until now.
void see_neighbours(nlohmann::json& context);

/// A run of the job's Program. With --graph there are two warm-up steps at least: one as ever, one that is captured.
backend::RunRequest request_of(const Job& job, const Machine& machine, std::uint32_t warmup_steps, std::uint32_t steps);

/// What a user should know of the strategies beside the tables (sim::remark_on).
void print_remarks(const std::vector<Job>& jobs);

/// Puts the steps of a program's run into the round and its memory into the cell.
void add_measured(sim::Cell& cell, sim::Round& round, const sim::Program& program, const backend::RunResult& run);

}  // namespace bench
