// The commands' view of this machine: which cells to play, where, and the open worlds.
//
//   std::vector<Job> jobs = make_jobs(options.subject, options.machine);
//   Worlds worlds(options.machine, jobs);
//   if (worlds.elsewhere()) return *worlds.elsewhere();      // the work was done by (or for) other processes
//   worlds.at("gloo").run({.program = jobs[0].program});
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/machine/quiet.hpp"
#include "backend/session.hpp"
#include "bench/commands.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/report/result.hpp"
#include "sim/strategy/strategy.hpp"

namespace bench {

/// One cell: a model by a strategy on a world.
struct Job {
  sim::Model model;
  sim::Strategy strategy;
  std::string world;
  sim::Program program;
  sim::Cluster cluster;
};

/// Every model × strategy × world. ConfigError for what doesn't fit, also degrees that don't multiply to
/// `machine.ranks`.
std::vector<Job> make_jobs(const Subject& subject, const Machine& machine);

/// The world's kind, without the network of its label: "gloo@1gbit" → "gloo".
std::string world_of(const std::string& label);

/// "resnet50 | pipeline,pp=2 | gloo", for messages.
std::string to_text(const Job& job);
/// "pipeline,pp=2 on gloo", for progress.
std::string short_text(const Job& job);

/// The sessions of all worlds that the jobs need, with as many ranks as the largest job; and always `local`, for
/// calibration.
class Worlds {
 public:
  Worlds(const Machine& machine, const std::vector<Job>& jobs);

  /// Set where this process isn't the one to go on: ranks were spawned and are done, or this one has served rank 0.
  [[nodiscard]] std::optional<int> elsewhere() const { return elsewhere_; }
  [[nodiscard]] backend::Session& at(const std::string& world) const { return *sessions_.at(world); }
  /// Ranks of `local` that can compute at the same time, each on a core of its own.
  [[nodiscard]] std::uint32_t busy_ranks() const;
  [[nodiscard]] bool real_time() const;

 private:
  backend::QuietMachine quiet_;
  std::optional<int> elsewhere_;
  std::map<std::string, std::unique_ptr<backend::Session>> sessions_;
};

/// What every result file says about where it was made.
nlohmann::json context(const Machine& machine, const Worlds& worlds);

/// Puts a run's steps into the round and its memory into the cell.
void add_measured(sim::Cell& cell, sim::Round& round, const backend::RunResult& run);

}  // namespace bench
